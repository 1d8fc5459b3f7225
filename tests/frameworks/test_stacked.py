"""Members as one program: equal to training alone but for rounding, with any optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.engines.stacked import models
from hopfleet.frameworks.torch.engines.stacked import stack as stack_module
from hopfleet.frameworks.torch.engines.stacked.flotilla import Stacked
from hopfleet.frameworks.torch.engines.stacked.stack import Stack, _limited
from tests.helpers.recorded_capture import RecordedCapture, RecordedGraph
from tests.helpers.stacked_tasks import DEVICE, OPTIMIZERS, Batches, Task, close, configs, several, values

pytestmark = pytest.mark.usefixtures("stacked_at_once")

CAPTURES = [False, True] if DEVICE == "cpu" else [True]
with_captures = pytest.mark.parametrize("captures", CAPTURES)
SOME_SLOW = [
    pytest.param(name, norm, captures, marks=[pytest.mark.slow] * (name != "adam" and not (norm and captures)))
    for name in OPTIMIZERS
    for norm in (False, True)
    for captures in CAPTURES
]
"""All optimizers, with and without batch norm and captures; make test runs each optimizer with both."""


class Recurrent(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.LSTM(4, 4))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_recurrent_layers_of_cudnn_are_not_tried() -> None:
    (session,) = several(Recurrent(), [{}])
    session.device = torch.device("cpu")
    models.kind_of(session)
    session.device = torch.device("cuda")
    with pytest.raises(models.Unstackable, match="recurrent layers"):
        models.kind_of(session)


@pytest.mark.parametrize(("name", "norm", "captures"), SOME_SLOW)
def test_as_alone_but_for_rounding(name, norm, captures, capsys):
    """Train three units together, one alone, and one with other members; in double precision, so that mistakes show."""
    task = Task()
    alone, together = (several(task, configs(name, norm=norm), captures) for _ in range(2))
    stacks = []
    for unit, numbers in enumerate([[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0], [1, 0, 3]]):
        flotilla = Stacked([together[n] for n in numbers])
        found = flotilla.train(Batches(), last=[unit == 2] * len(numbers))
        for n, sums in zip(numbers, found, strict=True):
            expected = alone[n].train(Batches(), last=unit == 2)
            assert float(sums["train_loss"].mean) == pytest.approx(float(expected["train_loss"].mean), rel=1e-9)
            close(together[n], alone[n])
        stacks.append(together[0].kept[Stack])
        # The last, smaller batch is captured once it is known to come again.
        assert len(stacks[-1].captures) == ([1, 2, 2, 2, 1][unit] if captures else 0)
    assert [stack is stacks[0] for stack in stacks] == [True, True, True, True, False]
    assert flotilla.evaluate(Batches(), seed=1)[0].keys() == {"loss"}
    assert together[0].unused() == alone[0].unused() == together[3].unused()
    assert "are stacked" in capsys.readouterr().err


@with_captures
@pytest.mark.parametrize("name", ["sgd", "momentum", "adamw"])
def test_weights_that_are_frozen_or_trained_from_some_unit_on(
    name: str, captures: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Task()
    alone, together = (several(task, configs(name), captures) for _ in range(2))
    for unit, frozen in enumerate([True, False, False, True]):
        for one in (*alone, *together):
            one.model[0].bias.requires_grad_(not frozen)
            one.model[0].bias.grad = None
        Stacked(together).train(Batches(), last=[unit == 2] * 4)
        for one, other in zip(alone, together, strict=True):
            one.train(Batches(), last=unit == 2)
            close(one, other)
    late = "some weights have made fewer updates than others" in capsys.readouterr().err
    assert late == (name != "sgd")  # without momentum, updates do not depend on those before


class Apart(Task):
    """A group of the optimizer has frozen weights alone."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer, schedule = super().build(config)
        model[3].requires_grad_(False)
        return model, optimizer, schedule


def test_a_group_of_frozen_weights_is_not_stacked(capsys: pytest.CaptureFixture[str]) -> None:
    Stacked(several(Apart(), configs("adam"))).train(Batches(), last=[True] * 4)
    assert "trials train in turn: a group of the optimizer has frozen weights alone" in capsys.readouterr().err


@with_captures
def test_per_batch_schedules_and_dropout_rates(captures, capsys):
    class Quick(Task):
        lr_step = "batch"

    alone, together = (several(Quick(), configs("adam", dropout=0.0), captures) for _ in range(2))
    Stacked(together).train(Batches(), last=[True] * 4)
    for one, other in zip(alone, together, strict=True):
        one.train(Batches(), last=True)
        close(one, other)
    rates = [{**config, "dropout": 0.25 * n} for n, config in enumerate(configs("adam"))]
    alone, together = (several(Task(), rates, captures) for _ in range(2))
    Stacked(together).train(Batches(), last=[True] * 4)
    alone[0].train(Batches(), last=True)
    close(alone[0], together[0])  # no dropout, though its neighbours have some
    assert capsys.readouterr().err.count("are stacked") >= 1


class Clipping(Task):
    clip_norm = 0.05

    def build(self, config: Mapping[str, Any]) -> Any:
        model, *rest = super().build(config)
        if config.get("spare"):
            model.register_parameter("spare", torch.nn.Parameter(torch.zeros(2)))
        return model, *rest


@with_captures
@pytest.mark.parametrize("name", ["sgd", "adam", "centered"])
def test_norms_of_gradients_are_limited_for_each_member(name, captures, capsys):
    alone, together = (several(Clipping(), configs(name), captures) for _ in range(2))
    free = several(Task(), configs(name))
    for _ in range(2):
        Stacked(together).train(Batches(), last=[True] * 4)
        for one, other, limited in zip(alone, together, free, strict=True):
            one.train(Batches(), last=True)
            limited.train(Batches(), last=True)
            close(one, other)
    assert not torch.equal(alone[3].model[3].weight, free[3].model[3].weight), "the limit has an effect"
    assert "are stacked" in capsys.readouterr().err


def test_gradients_within_their_limit_keep_their_bits():
    """The limit scales down what exceeds it, and nothing up: each member has its own norm."""
    pieces = [torch.tensor([[0.3, 0.0], [30.0, 0.0]]), torch.tensor([[0.4], [40.0]])]
    first, second = _limited(pieces, 5.0)
    assert torch.equal(first[0], pieces[0][0]) and torch.equal(second[0], pieces[1][0])
    torch.testing.assert_close(torch.cat([first[1], second[1]]), torch.tensor([3.0, 0.0, 4.0]))


def test_a_limit_for_weights_that_do_not_train_keeps_trials_from_being_stacked(capsys):
    Stacked(several(Clipping(), configs("adam", spare=True))).train(Batches(), last=[True] * 4)
    assert "in turn: the limit of the gradients' norm is about weights that the optimizer" in capsys.readouterr().err


class Peeking(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        return loss if loss.item() < 1e9 else loss * 2


def test_members_that_cannot_be_stacked_train_in_turn(tmp_path, capsys):
    """Members with another width, an unknown optimizer or a loss that reads values get the bits that they get alone."""
    odd = [{**configs("adam")[0], "width": 5}, *configs("nadam", 1)]
    OPTIMIZERS["nadam"] = lambda p, c: torch.optim.NAdam(p, lr=c["lr"])
    try:
        for task, some in ((Task(), [*configs("adam", 2), *odd]), (Peeking(), configs("sgd"))):
            alone, together = (several(task, some) for _ in range(2))
            found = Stacked(together).train(Batches(), last=[True] * 4)
            expected = [one.train(Batches(), last=True) for one in alone]
            start = 2 if isinstance(task, Peeking) is False else 0
            assert found[start:] == expected[start:]
            assert all(
                torch.equal(a, b)
                for n in range(start, 4)
                for a, b in zip(values(alone[n]), values(together[n]), strict=True)
            )
    finally:
        del OPTIMIZERS["nadam"]
    said = capsys.readouterr().err
    assert "trials train in turn: the optimizer is NAdam" in said
    assert said.count("trials train in turn") == 2


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU large models are stacked")
def test_large_models_are_not_stacked_on_a_cpu(monkeypatch, capsys):
    weights = sum(weight.nbytes for weight in several(Task(), configs("adam"))[0].model.parameters())
    for limit, stacks in ((weights, 1), (weights - 1, 0)):
        monkeypatch.setattr(models, "LARGE", limit)
        alone, together = (several(Task(), configs("adam")) for _ in range(2))
        flotilla = Task().framework.flotilla(together, fast=True)
        found = flotilla.train(Batches(), last=[True] * 4)
        assert isinstance(flotilla, Stacked) and flotilla._stacks is not None and len(flotilla._stacks) == stacks
    assert found == [one.train(Batches(), last=True) for one in alone], "to the bit"
    assert "trials train in turn: models are large" in capsys.readouterr().err


@with_captures
def test_a_member_with_nan_leaves_the_others_alone(captures):
    some = configs("adam")
    some[1]["weight"] = float("nan")
    alone, together = (several(Task(), some, captures) for _ in range(2))
    found = Stacked(together).train(Batches(), last=[True] * 4)
    assert "the loss is nan" in str(found[1])
    for n in (0, 2, 3):
        alone[n].train(Batches(), last=True)
        close(alone[n], together[n])


on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="uses the stand-in for CUDA graphs")


@on_cpu
def test_replays_of_a_stack_draw_from_the_stream_of_its_first_member(monkeypatch):
    """With dropout, captured steps have the bits of steps of the same stack without captures."""
    some = [{**config, "dropout": 0.3} for config in configs("adam")]
    eager, replayed = (several(Task(), some, captures=True) for _ in range(2))
    for members, sizes in ((eager, 0), (replayed, stack_module.SIZES)):
        monkeypatch.setattr(stack_module, "SIZES", sizes)
        for last in (False, False, True):
            Stacked(members).train(Batches(), last=[last] * 4)
    assert [len(members[0].kept[Stack].captures) for members in (eager, replayed)] == [0, 2]
    backend = replayed[0].cache.part(GraphCache).backend
    assert isinstance(backend, RecordedCapture) and backend.unjoined() == [] and backend.captures == 2
    for one, other in zip(eager, replayed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(values(one), values(other), strict=True))
        assert torch.equal(one.random["torch"], other.random["torch"])


class Single(Task):
    """In single precision, in which fused updates can read learning rates from the device."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer, _ = super().build(config)
        model.float()
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"].float()), batch["y"]) * self.config["weight"]


class Cycling(Single):
    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer, _ = super().build(config)
        return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=40)


@on_cpu
@pytest.mark.parametrize(
    ("task", "name", "expected"),
    [
        # Units of four batches, the last one smaller. The capture of the smaller batch pays from the second unit on.
        (Single, "adam", [1, 2, 2, 2]),
        (Single, "momentum", [1, 2, 2, 2]),
        (Task, "adam", [1, 2, 2, 3]),  # in double precision, fused updates contain their learning rates
        (Cycling, "adamw", [3, 3, 3, 3]),  # momenta change: after one step, updates read all settings from tables
        (Cycling, "momentum", [2, 2, 2, 2]),
    ],
)
def test_schedules_change_tensors_and_no_captures(task, name, expected):
    members, alone = several(task(), configs(name), captures=True), several(task(), configs(name))
    backend = members[0].cache.part(GraphCache).backend
    assert isinstance(backend, RecordedCapture)
    made = []
    for last in (False, False, True, False):
        Stacked(members).train(Batches(), last=[last] * 4)
        made.append(backend.captures)
        for one, other in zip(alone, members, strict=True):
            one.train(Batches(), last=last)
            for mine, theirs in zip(values(one), values(other), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert made == expected


def test_a_stack_stays_whatever_the_order_of_its_members():
    alone, members = (several(Task(), configs("adam")) for _ in range(2))
    stacks = []
    for order in ((0, 1, 2, 3), (2, 0, 3, 1)):
        found = Stacked([members[n] for n in order]).train(Batches(), last=[False] * 4)
        stacks.append(members[0].kept[Stack])
        for n, sums in zip(order, found, strict=True):
            expected = alone[n].train(Batches(), last=False)
            assert float(sums["train_loss"].mean) == pytest.approx(float(expected["train_loss"].mean), rel=1e-9)
            close(members[n], alone[n])
    assert stacks[0] is stacks[1]


class Halves:
    """The batches of ``Batches``, each in two."""

    rows = Batches.rows

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in Batches():
            halves = {name: value.chunk(2) for name, value in batch.items()}
            yield from ({name: value[half] for name, value in halves.items()} for half in (0, 1))


@pytest.mark.slow
@with_captures
def test_stacks_with_batches_of_different_sizes(captures):
    some = [{**config, "batch_size": size} for config in configs("adam") for size in (16, 8)]
    alone, together = (several(Task(), some, captures) for _ in range(2))
    for _ in range(2):
        flotilla = Task().framework.flotilla(together, fast=True)
        found = flotilla.train_mixed([Batches(), Halves()], [0, 1] * 4, last=[False] * 8)
        for n, (one, other, sums) in enumerate(zip(alone, together, found, strict=True)):
            expected = one.train(Halves() if n % 2 else Batches(), last=False)
            assert float(sums["train_loss"].mean) == pytest.approx(float(expected["train_loss"].mean), rel=1e-9)
            close(one, other)
    assert [len(members[0].kept[Stack].sessions) for members in (together, together[1:])] == [4, 4]
    assert together[0].kept[Stack] is not together[1].kept[Stack]


@on_cpu
@pytest.mark.parametrize("reason", ["operation not permitted", "a replayed step differs from the step"])
def test_a_stack_that_cannot_be_captured_steps_all_the_same(reason, monkeypatch, capsys):
    if reason.startswith("operation"):
        monkeypatch.setattr(RecordedGraph, "capture_begin", lambda self, **_: _raise(RuntimeError(reason)))
    else:
        monkeypatch.setattr(RecordedGraph, "replay", lambda self: None)
    alone, together = several(Task(), configs("adam")), several(Task(), configs("adam"), captures=True)
    for last in (False, True):
        Stacked(together).train(Batches(), last=[last] * 4)
        for one, other in zip(alone, together, strict=True):
            one.train(Batches(), last=last)
            close(one, other)
    said = capsys.readouterr().err
    assert said.count("steps of the stack are not captured") == 1 and reason in said
    assert not together[0].kept[Stack].captures


def _raise(error: Exception) -> None:
    raise error
