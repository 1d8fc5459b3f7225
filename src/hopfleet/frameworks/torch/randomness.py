"""The random streams of a trial: those of Python, NumPy and PyTorch, on the host and on the device.

The generators belong to the process, and a trial's code draws from them as usual. So the streams of a trial are put in
place while its code runs, and taken away afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

Stream = Any
"""The state of one generator, in the format of its library; for a device, the seed until the first draw."""

Streams = dict[str, Stream]
"""The states of all generators of a trial, by name: python, numpy, torch, device."""

Words = np.ndarray[Any, np.dtype[Any]]
"""A vector of machine words."""


def seeded(seed: int) -> Streams:
    """Return the streams of a new trial: python, numpy and torch, each seeded with ``seed``."""
    return {
        "python": random.Random(seed).getstate(),
        "numpy": np.random.RandomState(seed).get_state(legacy=True),
        "torch": torch.Generator().manual_seed(seed).get_state(),
        "device": seed,
    }


class SeededStreams:
    """The initial streams of the seeds used last: one part of a worker's engine cache."""

    def __init__(self) -> None:
        self._seeded = functools.lru_cache(256)(seeded)

    def __call__(self, seed: int) -> Streams:
        return self._seeded(seed)


QUICK = frozenset({"torch", "device"})
"""Streams whose state is cheap to read, so that they are checked after each batch."""


def names(device: torch.device) -> frozenset[str]:
    """Return the names of the streams of a trial on ``device``."""
    return frozenset({"python", "numpy", "torch"} | ({"device"} if device.type in ("cuda", "mps") else set()))


def current(device: torch.device, wanted: frozenset[str] | None = None) -> Streams:
    """Return the states of the process's streams: all of them, or those wanted."""
    return {name: _CURRENT[name](device) for name in (names(device) if wanted is None else wanted)}


_CURRENT: Mapping[str, Callable[[torch.device], Stream]] = {
    "python": lambda device: random.getstate(),
    "numpy": lambda device: np.random.get_state(legacy=True),
    "torch": lambda device: torch.get_rng_state(),
    "device": lambda device: torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.mps.get_rng_state(),
}


def put(state: Mapping[str, Stream], device: torch.device, wanted: frozenset[str] | None = None) -> None:
    """Set the process's streams: all of them, or those wanted."""
    for name in names(device) & state.keys() if wanted is None else wanted:
        match name:
            case "python":
                random.setstate(state[name])
            case "numpy":
                np.random.set_state(state[name])
            case "torch":
                torch.set_rng_state(state[name])
            case _:
                _put_device(state[name], device)


def settled(state: Mapping[str, Stream], device: torch.device) -> Streams:
    """Return the streams with a seed of the device turned into a state."""
    if device.type == "cpu" or torch.is_tensor(state.get("device")):
        return dict(state)
    own = frozenset({"device"})
    before = current(device, own)
    put(state, device, own & state.keys())
    found = {**state, **current(device, own)}
    put(before, device, own)
    return found


def _put_device(state: Stream, device: torch.device) -> None:
    """Set the stream of a device to a state, or to the beginning if ``state`` is a seed."""
    on_cuda = device.type == "cuda"
    if not torch.is_tensor(state):
        with torch.cuda.device(device) if on_cuda else contextlib.nullcontext():
            (torch.cuda if on_cuda else torch.mps).manual_seed(state)
    elif on_cuda:
        torch.cuda.set_rng_state(state, device)
    else:
        torch.mps.set_rng_state(state)


def changed(before: Mapping[str, Stream], now: Mapping[str, Stream]) -> frozenset[str]:
    """Return the names of the streams in ``now`` whose state differs from that in ``before``."""
    return frozenset(name for name in now if not _same(before.get(name), now[name]))


def _same(one: Stream, other: Stream) -> bool:
    if torch.is_tensor(one) and torch.is_tensor(other):
        return one.numpy().tobytes() == other.numpy().tobytes()  # ten times faster than torch.equal
    if isinstance(one, tuple) and isinstance(one[1], np.ndarray):  # of numpy: name, words, position, ...
        return np.array_equal(one[1], other[1]) and one[2:] == other[2:]
    return bool(one == other)


def pack(state: Mapping[str, Stream], initial: Callable[[int], Streams] = seeded) -> Streams:
    """Return streams with all their long vectors in one tensor: a file with few tensors is read and written fast.

    Streams without a draw so far are left out: ``initial`` makes them from the seed, which torch's stream holds.
    """
    fresh = _beginning(state["torch"], initial)
    version, words, gauss = state["python"]
    name, keys, *rest = state["numpy"]
    vectors = [
        np.array([] if _same(state["python"], fresh.get("python")) else words, np.uint32),
        np.array([], np.uint32) if "numpy" in fresh and _same(state["numpy"], fresh["numpy"]) else keys,
        *_narrow(state["torch"].numpy()),
    ]
    device = state.get("device")
    if torch.is_tensor(device):
        vectors.append(device.numpy())
    pieces = [vector.view(np.uint8) for vector in vectors]
    return {
        "bytes": torch.from_numpy(np.concatenate(pieces)),
        "lengths": [len(piece) for piece in pieces],
        "python": [version, gauss],
        "numpy": [name, *rest],
        "device": None if torch.is_tensor(device) else device,
    }


def unpack(packed: Mapping[str, Stream], initial: Callable[[int], Streams] = seeded) -> Streams:
    """Invert ``pack``."""
    ends = list(itertools.accumulate(packed["lengths"]))
    words, keys, *others = np.split(packed["bytes"].numpy(), ends[:-1])
    if len(others) > 2:
        low, places, high, *device = others
        state: Streams = {"torch": torch.from_numpy(_wide(low, places, high))}
    else:  # the format of early versions
        state = {"torch": torch.from_numpy(others[0])}
        device = others[1:]
    fresh = {} if len(words) and len(keys) else _beginning(state["torch"], initial)
    version, gauss = packed["python"]
    name, *rest = packed["numpy"]
    state["python"] = (version, tuple(words.view(np.uint32).tolist()), gauss) if len(words) else fresh["python"]
    state["numpy"] = (name, keys.view(np.uint32), *rest) if len(keys) else fresh["numpy"]
    if device:
        state["device"] = torch.from_numpy(device[0])
    elif packed["device"] is not None:
        state["device"] = packed["device"]
    return state


def _beginning(state: torch.Tensor, initial: Callable[[int], Streams]) -> Streams:
    """Return all streams of a trial at its beginning; nothing if torch's stream was not seeded by Hopfleet."""
    generator = torch.Generator()
    generator.set_state(state)
    seed = generator.initial_seed()
    return initial(seed) if seed < 1 << 32 else {}


def _narrow(state: Words) -> list[Words]:
    """Return the lower halves of 64-bit words, the positions of upper halves other than 0, and those halves.

    Few words of torch's generator have an upper half.
    """
    words = state.view(np.uint64)
    high = (words >> np.uint64(32)).astype(np.uint32)
    places = np.flatnonzero(high).astype(np.uint32)
    return [words.astype(np.uint32), places, high[places]]


def _wide(low: Words, places: Words, high: Words) -> Words:
    words = low.view(np.uint32).astype(np.uint64)
    words[places.view(np.uint32)] |= high.view(np.uint32).astype(np.uint64) << np.uint64(32)
    return words.view(np.uint8)
