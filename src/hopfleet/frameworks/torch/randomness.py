"""The random streams of a trial in PyTorch: python's, numpy's and torch's own, on the host and on the device.

They belong to a process, and a trial's code draws from them without knowing. So they are put in place while it runs,
and taken away again.
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


def seeded(seed: int) -> dict[str, Any]:
    """The random streams of a trial that begins: python, numpy and torch, each seeded with ``seed``."""
    return {
        "python": random.Random(seed).getstate(),
        "numpy": np.random.RandomState(seed).get_state(legacy=True),
        "torch": torch.Generator().manual_seed(seed).get_state(),
        "device": seed,
    }


QUICK = frozenset({"torch", "device"})
"""Streams whose state is read in an instant."""


def names(device: Any) -> frozenset[str]:
    """The streams that there are where a trial is on ``device``."""
    return frozenset({"python", "numpy", "torch"} | ({"device"} if device.type in ("cuda", "mps") else set()))


def current(device: Any, wanted: frozenset[str] | None = None) -> dict[str, Any]:
    """The states of the process's streams, all of them or those that are wanted."""
    return {name: _CURRENT[name](device) for name in (names(device) if wanted is None else wanted)}


_CURRENT: Mapping[str, Callable[[Any], Any]] = {
    "python": lambda device: random.getstate(),
    "numpy": lambda device: np.random.get_state(legacy=True),
    "torch": lambda device: torch.get_rng_state(),
    "device": lambda device: torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.mps.get_rng_state(),
}


def put(state: Mapping[str, Any], device: Any, wanted: frozenset[str] | None = None) -> None:
    """Set the process's streams, all of them or those that are wanted."""
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


def settled(state: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """The same streams with all their states spelled out. Moves the process's own on a device."""
    if device.type == "cpu" or torch.is_tensor(state.get("device")):
        return dict(state)
    put(state, device, frozenset({"device"}) & state.keys())
    return {**state, **current(device, frozenset({"device"}))}


def _put_device(state: Any, device: Any) -> None:
    """A state, or the seed of one that nobody has drawn from."""
    on_cuda = device.type == "cuda"
    if not torch.is_tensor(state):
        with torch.cuda.device(device) if on_cuda else contextlib.nullcontext():
            (torch.cuda if on_cuda else torch.mps).manual_seed(state)
    elif on_cuda:
        torch.cuda.set_rng_state(state, device)
    else:
        torch.mps.set_rng_state(state)


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> frozenset[str]:
    """The streams in ``now`` that are not as they were before."""
    return frozenset(name for name in now if not _same(before.get(name), now[name]))


def _same(one: Any, other: Any) -> bool:
    if torch.is_tensor(one) and torch.is_tensor(other):
        return bool(one.numpy().tobytes() == other.numpy().tobytes())  # ten times as quick as torch.equal
    if isinstance(one, tuple) and isinstance(one[1], np.ndarray):  # numpy's: a name, words, and where it stands
        return np.array_equal(one[1], other[1]) and one[2:] == other[2:]
    return bool(one == other)


def pack(state: Mapping[str, Any]) -> dict[str, Any]:
    """Random streams with all their long vectors in one tensor: a file with few tensors is read and written fast.

    Streams that nobody has drawn from are left out: they begin as torch's did, which knows its seed.
    """
    fresh = _beginning(state["torch"])
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


def unpack(packed: Mapping[str, Any]) -> dict[str, Any]:
    ends = list(itertools.accumulate(packed["lengths"]))
    words, keys, *others = np.split(packed["bytes"].numpy(), ends[:-1])
    if len(others) > 2:
        low, places, high, *device = others
        state: dict[str, Any] = {"torch": torch.from_numpy(_wide(low, places, high))}
    else:  # as it was once
        state = {"torch": torch.from_numpy(others[0])}
        device = others[1:]
    fresh = {} if len(words) and len(keys) else _beginning(state["torch"])
    version, gauss = packed["python"]
    name, *rest = packed["numpy"]
    state["python"] = (version, tuple(words.view(np.uint32).tolist()), gauss) if len(words) else fresh["python"]
    state["numpy"] = (name, keys.view(np.uint32), *rest) if len(keys) else fresh["numpy"]
    if device:
        state["device"] = torch.from_numpy(device[0])
    elif packed["device"] is not None:
        state["device"] = packed["device"]
    return state


def _beginning(state: Any) -> dict[str, Any]:
    """All streams of a trial as they began, if torch's was seeded by us."""
    generator = torch.Generator()
    generator.set_state(state)
    seed = generator.initial_seed()
    return _seeded(seed) if seed < 1 << 32 else {}


_seeded = functools.lru_cache(256)(seeded)


def _narrow(state: Any) -> list[Any]:
    """The lower halves of the words of a state, and where upper ones are not 0, and those: torch has few of them."""
    words = state.view(np.uint64)
    high = (words >> np.uint64(32)).astype(np.uint32)
    places = np.flatnonzero(high).astype(np.uint32)
    return [words.astype(np.uint32), places, high[places]]


def _wide(low: Any, places: Any, high: Any) -> Any:
    words = low.view(np.uint32).astype(np.uint64)
    words[places.view(np.uint32)] |= high.view(np.uint32).astype(np.uint64) << np.uint64(32)
    return words.view(np.uint8)
