"""Comparison of a checkpoint with live PyTorch objects, bit for bit."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, safe_open

from hopfleet.frameworks.torch.randomness import unpack


def same_bits(first: Any, second: Any) -> bool:
    if torch.is_tensor(first) and torch.is_tensor(second):
        return (
            first.dtype == second.dtype
            and first.shape == second.shape
            and first.numpy().tobytes() == second.detach().cpu().numpy().tobytes()
        )
    return bool(first == second)


def assert_same_state(checkpoint: Path, model: Any, optimizer: Any, schedule: Any) -> None:
    """The file holds exactly the state of these three, and the random streams as they stand now."""
    tensors = load_file(checkpoint)
    with safe_open(checkpoint, framework="pt") as file:
        tree = json.loads(file.metadata()["hopfleet-torch-1"])
    for name, digest in tree.get("shared", {}).items():
        tensors |= {name: load_file(checkpoint.parents[1] / "shared" / f"{digest}.safetensors")["tensor"]}
    state = model.state_dict()
    saved = {name: tensors[place["$array"]] for name, place in tree["model"]["state"].items()}
    assert saved.keys() == state.keys()
    for name in state:
        assert same_bits(saved[name], state[name]), name
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    (optimizer_tree,) = tree["optimizer"]
    entries = dict(optimizer_tree["state"]["$dict"]) if optimizer_tree["state"] else {}
    assert len(entries) == len(optimizer.state)
    for index, entry in entries.items():
        expected = optimizer.state[parameters[index]]
        assert entry.keys() == expected.keys()
        for key, place in entry.items():
            value = tensors[place["$array"]] if isinstance(place, dict) else place
            assert same_bits(value, expected[key]), (index, key)
    assert optimizer_tree["groups"][0]["lr"] == optimizer.param_groups[0]["lr"]
    if schedule is not None:
        assert tree["scheduler"][0]["last_epoch"] == schedule.last_epoch
    assert_same_random(unpack({**tree["random"], "bytes": tensors["random.bytes"]}))


def assert_same_random(streams: dict[str, Any]) -> None:
    """The saved states of all generators are those of this process."""
    assert streams["python"] == random.getstate()
    assert np.array_equal(streams["numpy"][1], np.random.get_state(legacy=True)[1])
    assert streams["numpy"][2:] == np.random.get_state(legacy=True)[2:]
    assert torch.equal(streams["torch"], torch.get_rng_state())
    if torch.is_tensor(streams.get("device")):
        assert torch.equal(streams["device"], torch.cuda.get_rng_state())
