"""Values of single steps: the same whichever engine trains a trial, bounded, and without an effect on the bits.

Each test of engines runs with CUDA where there is a GPU, and everywhere on the CPU, with a stand-in for CUDA graphs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.domain.step_values import NAMES, POINTS, StepValues
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Flotilla
from hopfleet.frameworks.step_log import StepLog, averaged, mentions_log
from hopfleet.frameworks.torch import step_log
from hopfleet.frameworks.torch.engines.cuda_graphs import CudaGraphs
from hopfleet.frameworks.torch.engines.interleaved import Interleaved
from hopfleet.frameworks.torch.engines.stacked.flotilla import Stacked, StackedGraphs
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps
from tests.helpers.captures import Batches, Place, bits, several

pytestmark = pytest.mark.usefixtures("stacked_at_once")

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
places = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=needs_gpu)])
ENGINES: dict[str, Callable[[list[TorchSession]], Flotilla]] = {
    "interleaved": Interleaved,
    "cuda graphs": CudaGraphs,
    "stacked": Stacked,
    "stacked graphs": StackedGraphs,
}
UNITS = (False, True, False)
"""For each unit, whether it closes an epoch."""


class Quiet(hop.TorchTask):
    """Logs nothing."""

    def build(self, config: Mapping[str, Any]) -> Any:
        width = config.get("width", 8)
        model = torch.nn.Sequential(torch.nn.Linear(20, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


class Rates(Quiet):
    """Logs learning rates alone: steps are captured and stacked as ever."""

    log_lr = True

    @property
    def lr_step(self) -> str:  # type: ignore[override]
        return str(self.config.get("lr_step", "batch"))


class Talkative(Quiet):
    """Logs a tensor of its device, a number of the host that changes, and a value now and then."""

    calls = 0

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        self.calls += 1
        self.log("loss", loss)
        self.log("calls", self.calls)
        if self.calls % 4 == 3:
            self.log("rare", loss * 2)
        return loss


class Seldom(Quiet):
    """Logs nothing in its first steps: an engine that looks at those alone would lose all values."""

    calls = 0

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        self.calls += 1
        if self.calls % 5 == 0:
            self.log("loss", loss)
        return loss


def note(task: hop.TorchTask, loss: Any) -> None:
    task.log("loss", loss)


class Hidden(Quiet):
    """Logs in a function of its own, which cannot be seen in the code of the task."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        note(self, loss)
        return loss


SLOW = [
    *((task, engine) for task in (Talkative, Hidden) for engine in ("interleaved", "stacked graphs")),
    *((task, "interleaved") for task in (Seldom, Rates)),
    (Hidden, "cuda graphs"),
]
"""Slow cases; faster ones cover nearly all of them."""

CONFIGS = [{"lr": 0.01 * (number + 1)} for number in range(4)]


def logged(
    task: hop.TorchTask, place: Place, train: Callable[[list[TorchSession], Any, bool], object], units: int = len(UNITS)
) -> tuple[list[list[StepValues | None]], list[TorchSession]]:
    """Train four trials; return what each logged in each unit, and the trials."""
    members = several(place, task, CONFIGS)
    found = []
    for unit, last in enumerate(UNITS[:units]):
        train(members, Batches(place.device, count=7, seed=unit), last)
        found.append([member.logged() for member in members])
        assert [member.logged() for member in members] == [None] * 4, "a report has the values of its own unit"
    return found, members


def one_by_one(members: list[TorchSession], batches: Any, last: bool) -> None:
    for member in members:
        member.train(batches, last=last)


@pytest.mark.parametrize(
    ("task", "engine"),
    [
        pytest.param(task, engine, id=f"{task.__name__}-{engine}", marks=[pytest.mark.slow] * ((task, engine) in SLOW))
        for task in (Talkative, Seldom, Hidden, Rates)
        for engine in ENGINES
    ],
)
@places
def test_a_trial_logs_the_same_in_every_engine(engine, device, task, tmp_path):
    place = Place(device)

    def together(members: list[TorchSession], batches: Any, last: bool) -> None:
        ENGINES[engine](members).train(batches, last=[last] * len(members))

    alone, ones = logged(task(), place, one_by_one)
    found, members = logged(task(), place, together)
    exact = task is not Rates or not engine.startswith("stacked")
    assert found == alone
    if exact:  # stacked steps round differently, and trials that log are not stacked
        assert [bits(one, tmp_path) for one in members] == [bits(one, tmp_path) for one in ones]
    if task is Rates:  # nothing is given up for learning rates
        assert all(Stack in one.kept for one in members) == engine.startswith("stacked")
        assert all(Steps in one.kept for one in members) == (engine == "cuda graphs")
    else:
        assert not any(Stack in one.kept or one.kept.get(Steps) for one in members)


@pytest.mark.slow
@places
def test_logging_changes_no_bits(device, tmp_path):
    for train in (one_by_one, lambda some, batches, last: Interleaved(some).train(batches, last=[last] * 4)):
        (_, quiet), (_, talkative) = (logged(task(), Place(device), train) for task in (Quiet, Talkative))
        assert [bits(one, tmp_path) for one in quiet] == [bits(one, tmp_path) for one in talkative]


def test_values_belong_to_their_steps():
    found, (first, *_) = logged(Talkative(), Place("cpu"), one_by_one)
    batches = list(range(7))
    for unit, (one, *_) in enumerate(found):
        assert one is not None
        steps, values = one.columns["calls"]
        assert (list(steps), list(values)) == (batches, [7 * unit + number + 1 for number in batches])
        rare = [number for number in batches if (7 * unit + number + 1) % 4 == 3]
        assert list(one.columns["rare"][0]) == rare
        expected = [2 * one.columns["loss"][1][number] for number in rare]
        assert list(one.columns["rare"][1]) == expected
    first.evaluate(Batches("cpu"), seed=0)  # metrics() calls loss() by default
    assert first.logged() is None


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("lr_step", ["batch", "epoch"])
def test_learning_rates_are_those_of_the_updates(lr_step, accumulate):
    task = Rates()
    task.accumulate = accumulate
    session = task.framework.open({"lr": 0.1, "lr_step": lr_step}, seed=0, placement=CPU, threads=1)
    used: list[float] = []
    session.optimizers[0].register_step_pre_hook(lambda optimizer, *_: used.append(optimizer.param_groups[0]["lr"]))
    for unit in range(2):
        used.clear()
        session.train(Batches("cpu", count=7, seed=unit), last=True)
        found = session.logged()
        assert found is not None
        steps, rates = found.columns["lr"]
        assert list(steps) == list(range(7))
        assert [rates[min(last, 6)] for last in range(accumulate - 1, 7 + accumulate - 1, accumulate)] == used
        assert len(set(rates)) == (7 if lr_step == "batch" else 1)


def test_a_rate_that_the_loss_sets_is_the_one_logged():
    class ByHand(Rates):
        lr_step = "epoch"

        def loss(self, model: Any, batch: dict[str, Any]) -> Any:
            group = self.optimizer.param_groups[0]
            group["lr"] = group["lr"] / 2
            return super().loss(model, batch)

    session = ByHand().framework.open({"lr": 1.0}, seed=0, placement=CPU, threads=1)
    session.train(Batches("cpu", count=3), last=False)
    assert session.logged() == StepValues({"lr": ((0, 1, 2), (0.5, 0.25, 0.125))})


def test_several_rates_have_numbers():
    class Two(Quiet):
        log_lr = True

        def build(self, config: Mapping[str, Any]) -> Any:
            model, *_ = super().build(config)
            groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": torch.tensor(2.0)}]
            return model, torch.optim.SGD(groups, lr=1.0)

    session = Two().framework.open({"lr": 1.0}, seed=0, placement=CPU, threads=1)
    session.train(Batches("cpu", count=1), last=False)
    assert session.logged() == StepValues({"lr_0": ((0,), (1.0,)), "lr_1": ((0,), (2.0,))})


class Own(Quiet):
    """Owns its loop."""

    log_lr = True

    def train(self, model: Any, batches: Any, config: Any) -> Any:
        total = torch.zeros(())
        for batch in batches:
            self.optimizer.zero_grad()
            loss = self.loss(model, batch)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
            self.log("total", total)  # it is changed in place later
            self.lr_scheduler.step()
        self.log("end", math.nan)
        return {"loss": total / len(batches)}


def test_a_loop_of_ones_own():
    session = Own().framework.open({"lr": 1.0}, seed=0, placement=CPU, threads=1)
    sums = session.train(Batches("cpu", count=3), last=False)
    found = session.logged()
    assert found is not None
    assert found.columns["lr"] == ((0, 1, 2), (1.0, 0.9, pytest.approx(0.81)))
    steps, totals = found.columns["total"]
    assert steps == (0, 1, 2) and totals[0] < totals[1] < totals[2]
    assert float(sums["train_loss"].mean) == pytest.approx(totals[2] / 3)
    ((step,), (end,)) = found.columns["end"]
    assert step == 2 and math.isnan(end)
    session.evaluate(Batches("cpu"), seed=0)
    assert session.logged() is None


def test_a_schedule_may_log():
    class Told(torch.optim.lr_scheduler.LambdaLR):
        def __init__(self, optimizer: Any, task: hop.TorchTask) -> None:
            self.task = [task]
            super().__init__(optimizer, lambda step: 1 / (1 + step))

        def step(self, epoch: Any = None) -> None:
            self.task[0].log("stepped", self.last_epoch)
            super().step(epoch)

        def state_dict(self) -> Any:
            return {"last_epoch": self.last_epoch}

    class Scheduled(Quiet):
        lr_step = "batch"

        def build(self, config: Mapping[str, Any]) -> Any:
            model, optimizer, _ = super().build(config)
            return model, optimizer, Told(optimizer, self)

    session = Scheduled().framework.open({"lr": 1.0}, seed=0, placement=CPU, threads=1)
    session.train(Batches("cpu", count=3), last=False)
    assert session.logged() == StepValues({"stepped": ((0, 1, 2), (0.0, 1.0, 2.0))})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("x", torch.zeros(3), "must be one number, got a tensor of shape (3,); log its mean"),
        ("x", "text", "must be a number or a tensor of one element, got 'text'"),
        ("x", None, "must be a number or a tensor of one element, got None"),
        ("x", 10**400, "must be a number or a tensor of one element"),
        ("", 1.0, "the name must be text of 1 to 200 characters"),
        (3, 1.0, "the name must be text of 1 to 200 characters"),
    ],
)
def test_what_cannot_be_logged(name, value, message):
    log = StepLog()
    log.batch = 0
    with pytest.raises(TaskError) as refused:
        step_log.put(log, name, value)
    assert str(refused.value).startswith(f"self.log({name!r}, ...): {message}")


def test_a_unit_logs_a_bounded_number_of_names():
    log = StepLog()
    log.batch = 0
    for number in range(NAMES):
        log.put(f"value {number}", 1.0)
    log.put("value 0", 2.0)
    with pytest.raises(TaskError, match="a unit must log at most 20 names, got one more; log fewer values"):
        log.put("value 20", 1.0)


@pytest.mark.parametrize(
    ("task", "of"), [(hop.TorchTask, "a trial trains, got a task"), (None, "are logged by tasks of PyTorch")]
)
def test_tasks_that_cannot_log_say_so(task, of):
    class Other(hop.frameworks.base.Task):
        framework = None  # type: ignore[assignment]

    with pytest.raises(TaskError, match=of):
        (task or Other)().log("x", 1.0)


@settings(deadline=None, max_examples=20)
@given(steps=st.lists(st.integers(0, 2000), unique=True, max_size=450).map(sorted))
def test_points_are_thinned_out_evenly(steps):
    log = StepLog()
    for step in steps:
        log.put_at(step, "x", float(step))
        log.put_at(step, "x", -float(step))  # a step has one value
    found = log.take()
    assert (found is None) == (not steps)
    if found is None:
        return
    kept, values = found.columns["x"]
    assert list(values) == [-step for step in kept]
    assert kept[0] == steps[0] and kept[-1] == steps[-1] and len(kept) <= POINTS
    assert len(kept) == len(steps) if len(steps) <= POINTS else len(kept) > POINTS // 2
    numbers = list(map(steps.index, kept[:-1]))
    assert len({after - before for before, after in itertools.pairwise(numbers)}) <= 1


def test_steps_of_several_batches():
    log = StepLog()
    log.start(batches_per_step=3)
    for batch in range(7):
        log.put_at(batch, "x", float(batch))
    assert log.take() == StepValues({"x": ((0, 1, 2), (2.0, 5.0, 6.0))}, 3)

    class Slow(Rates):
        batches_per_step = 3  # type: ignore[assignment]

    alone, together = (
        logged(Slow(), Place("cpu"), train, units=1)[0]
        for train in (one_by_one, lambda some, batches, last: Interleaved(some).train(batches, last=[last] * 4))
    )
    assert alone == together and alone[0][0] is not None and alone[0][0].columns["lr"][0] == (0, 1, 2)


def test_folds_log_their_mean():
    one, other = (
        StepValues({"x": ((0, 1), (1.0, 2.0))}),
        StepValues({"x": ((0, 1), (3.0, math.inf)), "y": ((0,), (7.0,))}),
    )
    assert averaged([one, None, other]) == StepValues({"x": ((0, 1), (2.0, math.inf)), "y": ((0,), (7.0,))})
    assert averaged([None]) is None


class Plain:
    def loss(self, model: Any) -> Any:
        return torch.log(model) + math.log(2)


class Nested(Plain):
    def loss(self, model: Any) -> Any:
        return [self.log("x", each) for each in model]  # type: ignore[attr-defined]


class Aliased(Plain):
    def helper(this, value: Any) -> Any:  # noqa: N805
        write = this.log  # type: ignore[attr-defined]
        write("x", value)


class Inherits(Nested):
    pass


@pytest.mark.parametrize(
    ("kind", "uses"), [(Plain, False), (Nested, True), (Aliased, True), (Inherits, True), (hop.TorchTask, False)]
)
def test_uses_of_log_are_seen_in_code(kind, uses):
    assert mentions_log(kind) is uses
