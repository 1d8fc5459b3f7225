"""Programs of stacked steps: what they compute, and when they are used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hopfleet.frameworks.base import IsolationError
from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked import gradients, onednn
from hopfleet.frameworks.torch.engines.stacked.cache import Program, StackCache
from hopfleet.frameworks.torch.engines.stacked.flotilla import Stacked
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.stacked_tasks import DEVICE, Batches, Task, close, configs, several, values


def programs_of(sessions: list[TorchSession]) -> list[Program | None]:
    return list(sessions[0].cache.part(StackCache).programs.values())


@pytest.fixture(autouse=True)
def no_step_is_long(monkeypatch):
    """Write programs however slow a busy machine is: steps that take long are left as they are."""
    monkeypatch.setattr(onednn, "LONG", 60.0)


programs = pytest.mark.skipif(DEVICE != "cpu", reason="on CUDA steps are captured")


@pytest.mark.slow
@programs
@pytest.mark.parametrize("name", ["adam", "momentum"])
@pytest.mark.parametrize("norm", [False, True])
def test_a_program_does_what_it_stands_for(name, norm, monkeypatch):
    """With dropout and buffers, get the same bits as without a program."""
    some = [{**config, "dropout": 0.3, "norm": norm} for config in configs(name)]
    plain, written = (several(Task(), some) for _ in range(2))
    for members, pays in ((plain, 10**9), (written, 2)):
        monkeypatch.setattr(gradients, "PAYS", pays)
        for last in (False, True):
            Stacked(members).train(Batches(), last=[last] * 4)
    assert programs_of(plain) == []
    assert sum(program is not None for program in programs_of(written)) == 2  # of 16 and of 8 rows
    for one, other in zip(plain, written, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(values(one), values(other), strict=True))


class Counting(Task):
    """Weighs the loss by a counter of all trials that no program knows, from some call on.

    The counter is in an object of its own, where no stack looks for it before it is formed.
    """

    def __init__(self, start: int = 0) -> None:
        super().__init__()
        self.count = SimpleNamespace(calls=0, start=start)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        self.count.calls += 1
        return super().loss(model, batch) * (self.count.calls if self.count.calls > self.count.start else 1)


@pytest.mark.slow
@programs
def test_a_loss_that_changes_is_noticed(monkeypatch):
    task = Counting(start=10**9)
    members = several(task, configs("sgd"))
    Stacked(members).train(Batches(), last=[True] * 4)
    monkeypatch.setattr(gradients, "PAYS", 1)
    task.count.start = task.count.calls  # after the comparison with trials alone
    Stacked(members).train(Batches(), last=[True] * 4)
    assert programs_of(members) == [None, None]
    monkeypatch.setattr(gradients, "COMPARED", 2)
    task = Counting(start=10**9)
    members = several(task, configs("sgd"))
    Stacked(members).train(Batches(), last=[True] * 4)
    assert len(programs_of(members)) == 2 and None not in programs_of(members)
    task.count.start = task.count.calls + 1  # after the comparison in the first batch
    with pytest.raises(IsolationError, match="not always the same function"):
        Stacked(members).train(Batches(), last=[True] * 4)


@pytest.mark.slow
@pytest.mark.parametrize("off", [1e-13, 1.0])
def test_compiled_on_request(off, monkeypatch, capsys):
    """A compiled program may round differently; one that computes something else is not used."""
    compiled: list[Any] = []

    def compiler(program: Any, inputs: Any, **options: Any) -> Any:
        compiled.append(program)
        return lambda *inputs: [value * (1 + off) for value in program(*inputs)]

    monkeypatch.setattr("torch._inductor.compile", compiler)
    monkeypatch.setattr(torch, "compile", lambda model: None)  # the models are not compiled one by one
    task = Task()
    alone = several(task, configs("adam"))
    task.compile = True
    together = several(task, configs("adam"))
    for one in together:
        one.adopt_options()
    stacked_ones = Stacked(together)
    stacked_ones.train(Batches(), last=[True] * 4)
    stacked_ones.evaluate(Batches(), seed=0)
    assert len(compiled) == 2  # for batches of 16 and of 8 rows
    assert [program is None for program in programs_of(together)] == [off == 1.0] * 2
    for one, other in zip(alone, together, strict=True):
        one.train(Batches(), last=True)
        close(one, other)


@programs
def test_long_steps_are_not_worth_a_program(monkeypatch):
    monkeypatch.setattr(gradients, "PAYS", 2)
    monkeypatch.setattr(onednn, "LONG", 0.0)
    members = several(Task(), configs("sgd"))
    Stacked(members).train(Batches(), last=[True] * 4)
    assert programs_of(members) == [None]  # of 16 rows; there was one batch of 8 only


@pytest.mark.parametrize(("long", "times"), [(10.0, 6), (0.0, 4)])
def test_the_faster_library_is_chosen(long, times, monkeypatch):
    monkeypatch.setattr(onednn, "LONG", long)
    seen: list[bool] = []

    def work() -> None:
        seen.append(_compat.onednn_enabled())
        if seen[-1]:
            sum(range(200_000))

    before = _compat.onednn_enabled()
    assert onednn.faster_with_onednn(work) is not before
    assert len(seen) == times
    assert _compat.onednn_enabled() is before
