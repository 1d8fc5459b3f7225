"""Random streams in a file: they come back exactly, and streams without a draw take no room."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from hopfleet.domain.placement import Placement
from hopfleet.frameworks.torch import randomness
from tests.helpers.sample_tasks import Plain

CPU = torch.device("cpu")


def drawn(*names: str, seed: int = 7) -> dict[str, Any]:
    """Return the streams of a trial after draws from some of them."""
    before = randomness.current(CPU)
    try:
        randomness.put(randomness.seeded(seed), CPU)
        draws = {
            "python": lambda: random.gauss(0, 1),
            "numpy": np.random.standard_normal,
            "torch": lambda: torch.rand(3),
        }
        for name in names:
            draws[name]()
        return {**randomness.current(CPU), "device": seed}
    finally:
        randomness.put(before, CPU)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and not randomness.changed(one, other)


@pytest.mark.parametrize("names", [(), ("torch",), ("python",), ("numpy",), ("python", "numpy", "torch")])
def test_what_went_in_comes_out(names):
    state = drawn(*names)
    packed = randomness.pack(state)
    assert same(randomness.unpack(packed), state)
    room = {"python": 2500, "numpy": 2496}
    assert packed["lengths"][:2] == [size if name in names else 0 for name, size in room.items()]
    assert len(packed["bytes"]) < 2700 + sum(room[name] for name in names if name in room)


def test_a_state_of_a_device_is_kept():
    state = {**drawn("torch"), "device": torch.arange(16, dtype=torch.uint8)}
    assert same(randomness.unpack(randomness.pack(state)), state)


def test_the_same_streams_give_the_same_bytes():
    one, other = (randomness.pack(drawn("torch")) for _ in range(2))
    assert torch.equal(one.pop("bytes"), other.pop("bytes")) and one == other


def test_a_task_that_seeds_torch_with_something_of_its_own():
    state = drawn()
    state["torch"] = torch.Generator().manual_seed(1 << 40).get_state()
    packed = randomness.pack(state)
    assert same(randomness.unpack(packed), state) and 0 not in packed["lengths"][:2]


def test_versions_of_old_are_read():
    state = drawn("torch")
    words, keys = np.array(state["python"][1], np.uint32), state["numpy"][1]
    pieces = [vector.view(np.uint8) for vector in (words, keys, state["torch"].numpy())]
    old = {
        "bytes": torch.from_numpy(np.concatenate(pieces)),
        "lengths": [len(piece) for piece in pieces],
        "python": [state["python"][0], state["python"][2]],
        "numpy": [state["numpy"][0], *state["numpy"][2:]],
        "device": state["device"],
    }
    assert same(randomness.unpack(old), state)


class Batches(list):
    rows = 4


def test_a_trial_on_a_cpu_keeps_the_stream_of_a_device_that_it_may_come_to(tmp_path):
    task = Plain()
    session = task.framework.open({"lr": 0.1, "batch_size": 4}, seed=7, placement=Placement.on("cpu"), threads=1)
    batches = Batches([{"x": torch.ones(4, 1, 6, 6), "y": torch.zeros(4, dtype=torch.long)}])
    session.train(batches, last=True)
    assert session.random["device"] == 7
    there = torch.arange(16, dtype=torch.uint8)
    session.random["device"] = there  # as if it had been on one
    session.train(batches, last=True)
    session.save(tmp_path / "version")
    again = task.framework.open({"lr": 0.1, "batch_size": 4}, seed=7, placement=Placement.on("cpu"), threads=1)
    again.load(tmp_path / "version")
    assert torch.equal(again.random["device"], there)
