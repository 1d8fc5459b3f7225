"""The load of workers over the time of a run: samples, their lines in a file, and how they are thinned out.

Each line of the file is a sample in JSON and a digest of it, so a run appends lines, and a line that was cut off or
damaged is left out. Once there are too many samples, neighbours are merged.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_SAMPLES, MOST_WORKERS = 480, 64
"""Samples in a file, and workers in a sample."""

MOST_BYTES = 1 << 23
"""Bytes of the largest file that is read: more than all samples of all workers need."""

FIGURES = ("processor", "memory", "device", "device_memory")
"""What is measured of a worker: cores in use, bytes, the busy share of its devices or None, and bytes on them."""

Figures = tuple[float, float, float | None, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """The load of all workers until ``time``, in seconds since the epoch."""

    time: float
    workers: Mapping[str, Figures]


def encode_sample(sample: Sample) -> bytes:
    """Return a sample as a line."""
    text = json.dumps([sample.time, sample.workers], separators=(",", ":"))
    return f"{text} {_digest(text)}\n".encode()


def decode_samples(content: bytes) -> list[Sample]:
    """Return the samples in the lines of a file, without those that are damaged."""
    found = (_decode(line) for line in content.decode(errors="replace").splitlines())
    return [sample for sample in found if sample is not None]


def _decode(line: str) -> Sample | None:
    text, _, digest = line.rpartition(" ")
    if not text or digest != _digest(text):
        return None
    try:
        time, workers = json.loads(text)
        return Sample(float(time), {str(name): _figures(*each) for name, each in workers.items()})
    except (AttributeError, TypeError, ValueError, RecursionError):
        return None


def _figures(processor: Any, memory: Any, device: Any, device_memory: Any) -> Figures:
    found = float(processor), float(memory), None if device is None else float(device), float(device_memory)
    if not all(math.isfinite(each) for each in found if each is not None):
        raise ValueError("a figure is not finite")
    return found


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def thinned(samples: Sequence[Sample]) -> list[Sample]:
    """Return half of the samples: two neighbours become one, with mean shares and the higher of their bytes."""
    return [_merged(samples[place : place + 2]) for place in range(0, len(samples), 2)]


def _merged(samples: Sequence[Sample]) -> Sample:
    names = dict.fromkeys(name for sample in samples for name in sample.workers)
    workers = {name: _merge([each.workers[name] for each in samples if name in each.workers]) for name in names}
    return Sample(samples[-1].time, workers)


def _merge(figures: Sequence[Figures]) -> Figures:
    processor, memory, device, device_memory = zip(*figures, strict=True)
    known = [each for each in device if each is not None]
    return _mean(processor), max(memory), _mean(known) if known else None, max(device_memory)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def series(samples: Sequence[Sample]) -> dict[str, dict[str, list[float | None]]]:
    """Return times and figures by worker; figures that are 0 or unknown in all samples are left out."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for sample in samples:
        for name, figures in sample.workers.items():
            columns = found.setdefault(name, {each: [] for each in ("time", *FIGURES)})
            for each, value in zip(("time", *FIGURES), (sample.time, *figures), strict=True):
                columns[each].append(value)
    return {name: {each: values for each, values in columns.items() if any(values)} for name, columns in found.items()}
