"""The record of the load of workers: sampled beside the run from what workers tell anyway, and written as a chore."""

from __future__ import annotations

import contextlib
import time as clocks
from functools import partial
from pathlib import Path

from hopfleet.backends.base import Supervisor, WorkerHealth
from hopfleet.monitor.load import (
    MOST_BYTES,
    MOST_SAMPLES,
    MOST_WORKERS,
    Figures,
    Sample,
    decode_samples,
    encode_sample,
    thinned,
)
from hopfleet.monitor.observer import Observer
from hopfleet.support import clock
from hopfleet.support.background import Chores
from hopfleet.support.files import append, read_bytes, write_bytes

SAMPLE_SECONDS = 1.0
"""Seconds between two samples at the beginning of a run. They double each time that samples are thinned out."""


class LoadRecord(Observer):
    """Writes a sample of the load of workers every few seconds. A disk that does not take it is ignored.

    A run that is continued adds to the file.
    """

    def __init__(self, file: Path, backend: Supervisor, chores: Chores) -> None:
        self._file = file
        self._backend = backend
        self._chores = chores
        self._due = 0.0
        self._pause = SAMPLE_SECONDS
        self._known: dict[str, WorkerHealth] = {}  #: as of the last sample
        self._count: int | None = None  #: lines of the file; None before the first is written

    def refresh(self) -> None:
        now = clocks.monotonic()
        if now < self._due:
            return
        self._due = now + self._pause
        before = self._known
        self._known = {each.worker: each for each in self._backend.health()[:MOST_WORKERS]}
        loads = {name: load(before[name], each) for name, each in self._known.items() if name in before}
        workers = {name: figures for name, figures in loads.items() if figures is not None}
        if workers:
            self._chores.add(partial(self._write, Sample(round(clock.now(), 2), workers)))

    def _write(self, sample: Sample) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._count is None:
                self._count = len(self._samples())
                if self._count and not read_bytes(self._file, MOST_BYTES).endswith(b"\n"):
                    append(self._file, b"\n")  # the line before was cut off
            append(self._file, encode_sample(sample))
            self._count += 1
            if self._count >= MOST_SAMPLES:
                kept = thinned(self._samples())
                write_bytes(self._file, b"".join(map(encode_sample, kept)), durable=False, private=True)
                self._count, self._pause = len(kept), 2 * self._pause

    def _samples(self) -> list[Sample]:
        try:
            return decode_samples(read_bytes(self._file, MOST_BYTES))
        except FileNotFoundError:
            return []


def load(before: WorkerHealth, now: WorkerHealth) -> Figures | None:
    """Return the load of a worker between two reports; None if there was none between, or the process is another."""
    seconds = now.clock - before.clock
    if now.pid != before.pid or seconds <= 0 or now.processor < before.processor:
        return None
    share = round((now.processor - before.processor) / seconds, 3)
    return share, now.memory, now.device_load, now.device_memory
