"""The random streams of a trial in PyTorch: python's, numpy's and torch's own, on the host and on the device.

They belong to a process, and a trial's code draws from them without knowing. So they are put in place while it runs,
and taken away again.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Mapping
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


def current(device: Any) -> dict[str, Any]:
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=True),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["device"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["device"] = torch.mps.get_rng_state()
    return state


def put(state: Mapping[str, Any], device: Any) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if device.type == "cpu" or "device" not in state:
        return
    if not torch.is_tensor(state["device"]):
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            (torch.cuda if device.type == "cuda" else torch.mps).manual_seed(state["device"])
    elif device.type == "cuda":
        torch.cuda.set_rng_state(state["device"], device)
    else:
        torch.mps.set_rng_state(state["device"])


def pack(state: Mapping[str, Any]) -> dict[str, Any]:
    """Random streams with all their long vectors in one tensor: a file with few tensors is read and written fast."""
    version, words, gauss = state["python"]
    name, keys, *rest = state["numpy"]
    vectors = [np.array(words, np.uint32), keys, state["torch"].numpy()]
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
    words, keys, generator, *device = np.split(packed["bytes"].numpy(), ends[:-1])
    version, gauss = packed["python"]
    name, *rest = packed["numpy"]
    state = {
        "python": (version, tuple(words.view(np.uint32).tolist()), gauss),
        "numpy": (name, keys.view(np.uint32), *rest),
        "torch": torch.from_numpy(generator),
    }
    if device:
        state["device"] = torch.from_numpy(device[0])
    elif packed["device"] is not None:
        state["device"] = packed["device"]
    return state
