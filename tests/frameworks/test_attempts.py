"""When ``fast`` tries stacks where steps are captured: not before an attempt takes a small part of the training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.batching import Batching
from hopfleet.domain.placement import CPU, Placement
from hopfleet.frameworks.torch.engines import comparison, rates
from hopfleet.frameworks.torch.engines.cuda_graphs import CudaGraphs
from hopfleet.frameworks.torch.engines.rates import Pace
from hopfleet.frameworks.torch.engines.stacked import attempts, flotilla, measured
from hopfleet.frameworks.torch.engines.stacked.attempts import SECONDS, SHARE, STEPS, Attempts, may_stack
from hopfleet.frameworks.torch.engines.stacked.flotilla import FEW, Stacked, StackedGraphs
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.captures import Batches, Place, bits, several

CONFIGS = [{"lr": 0.01 * (number + 1), "width": 8} for number in range(FEW)]


class Task(hop.TorchTask):
    """A perceptron in double precision, so that mistakes show."""

    def build(self, config: Mapping[str, Any]) -> Any:
        width = config["width"]
        layers = torch.nn.Linear(20, width), torch.nn.ReLU(), torch.nn.Linear(width, 3)
        model = torch.nn.Sequential(*layers).double()
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"].double()), batch["y"])


@pytest.fixture
def attempts_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "SHARE", math.inf)
    monkeypatch.setattr(flotilla, "begin", lambda session: False)  # kernels are compiled when they are needed


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that takes the durations of the next measurements, whose steps are taken all the same."""
    durations: list[float] = []

    def seconds(step: Callable[[], object], *_: object) -> float:
        step()
        return durations.pop(0)

    monkeypatch.setattr(measured, "seconds", seconds)
    return durations


def train(task: hop.TorchTask, members: list[TorchSession], place: Place, unit: int) -> Any:
    together = task.framework.flotilla(members, fast=True)
    return together.train(Batches(place.device, count=4, seed=unit), last=[False] * len(members))


def as_alone(task: hop.TorchTask, place: Place, folder: Path, units: int = 3) -> list[TorchSession]:
    """Train some units with ``fast`` and alone, and compare sums and bits; return the members."""
    together, alone = several(place, task, CONFIGS), several(place, task, CONFIGS)
    for unit in range(units):
        found = train(task, together, place, unit)
        assert found == [one.train(Batches(place.device, count=4, seed=unit), last=False) for one in alone]
        assert [bits(one, folder) for one in together] == [bits(one, folder) for one in alone]
    return together


def test_short_runs_are_those_of_exact(place: Place, tmp_path: Path) -> None:
    together = as_alone(Task(), place, tmp_path)
    assert type(Task().framework.flotilla(together, fast=True)) is CudaGraphs
    assert not any(Stack in one.kept for one in together)


@pytest.mark.usefixtures("attempts_pay")
def test_a_slower_stack_leaves_no_trace(place: Place, tmp_path: Path, timed: list[float], capfd: Any) -> None:
    timed += [0.0112, 0.0198]
    together = as_alone(Task(), place, tmp_path, units=4)
    assert timed == [] and not any(Stack in one.kept for one in together)
    assert capfd.readouterr().err.count("4 trials train side by side: 11.2 ms a step, 19.8 ms as a stack") == 1


@pytest.mark.usefixtures("attempts_pay")
def test_padded_members_are_compared_too(place: Place, tmp_path: Path, timed: list[float], monkeypatch: Any) -> None:
    monkeypatch.setitem(CONFIGS[0], "width", 6)
    timed += [0.01, 0.02]
    together = as_alone(Task(), place, tmp_path)
    assert timed == [] and not any(Stack in one.kept for one in together)


@pytest.mark.usefixtures("attempts_pay")
def test_a_faster_stack_is_kept_and_others_follow_at_once(place: Place, timed: list[float]) -> None:
    timed += [0.02, 0.01]
    together = several(place, Task(), CONFIGS)
    for unit in range(2):
        assert not any(Stack in one.kept for one in together)
        train(Task(), together, place, unit)
    assert all(Stack in one.kept for one in together) and may_stack(together[0])
    where = Placement.on(place.device)
    others = [
        Task().framework.open(config, seed=9, placement=where, threads=1, cache=together[0].cache) for config in CONFIGS
    ]
    train(Task(), others, place, 0)
    assert all(Stack in one.kept for one in others)


class Stepping(Task):
    """Momentum changes with each batch, so that updates are not captured."""

    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer = super().build(config)
        return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, config["lr"], total_steps=60)


class Uncaptured(Task):
    capture = False


@pytest.mark.parametrize("task", [Stepping, Uncaptured])
def test_where_steps_take_turns_a_stack_begins(place: Place, task: type[Task]) -> None:
    together = several(place, task(), CONFIGS)
    assert all(map(may_stack, together))
    train(task(), together, place, 0)
    assert all(Stack in one.kept for one in together)


def test_where_captures_are_refused_a_stack_follows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compared: the other way is known to be slow."""
    together = several(place, Task(), CONFIGS)
    monkeypatch.setattr(comparison, "same_bits", lambda *_: False)
    train(Task(), together, place, 0)
    assert not any(Stack in one.kept for one in together) and all(map(may_stack, together))
    train(Task(), together, place, 1)
    assert all(Stack in one.kept for one in together)


@pytest.mark.parametrize("loose", [True, False])
def test_one_comparison_holds_for_all_sizes_where_bits_may_differ(
    place: Place, loose: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    compare = comparison.compare
    monkeypatch.setattr(comparison, "compare", lambda *given: (compared.append(1), compare(*given)))
    sessions = several(place, Task(), [{"lr": 0.1, "width": width} for width in (4, 5, 6)])
    CudaGraphs(sessions, loose=loose).train(Batches(place.device, count=3, ragged=False), last=[False] * 3)
    assert len(compared) == (1 if loose else 3)
    CudaGraphs(sessions, loose=loose).evaluate(Batches(place.device, count=3, ragged=False), seed=0)
    assert len(compared) == (2 if loose else 6)


def test_parts_of_a_flotilla_compare_alike() -> None:
    sessions = several(Place("cpu"), Task(), CONFIGS)
    assert [CudaGraphs(sessions, loose=loose)._part([0]).loose for loose in (True, False)] == [True, False]
    assert StackedGraphs(sessions)._part([0]).loose


# ------------------------------------------------------------------------------------------- the time of attempts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(attempts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def planned(epochs: int) -> TorchSession:
    """A session that trains 100 batches in each epoch, half of them in each partition."""
    task = Task().planned(Batching((500, 500), 10, False, epochs))
    return task.framework.open(CONFIGS[0], seed=0, placement=CPU, threads=1)


def test_an_attempt_takes_a_small_part_of_what_was_trained(clock: list[float]) -> None:
    one = planned(0)
    tried = Attempts()
    clock[0] += 1e6
    assert not tried.pay(one), "it is not known how long a batch takes"
    one.kept[Pace] = 0.01
    clock[0] = 100 + (SECONDS + STEPS * 0.01) / SHARE - 0.001
    assert not tried.pay(one)
    clock[0] += 0.002
    assert tried.pay(one)
    tried.spent = 0.1
    assert not tried.pay(one)
    clock[0] += 0.1 / SHARE
    assert tried.pay(one)


def test_what_is_left_of_a_trial_counts(clock: list[float]) -> None:
    tried, one = Attempts(), planned(20)
    one.kept[Pace] = 0.02
    assert not tried.pay(one), "40 s are too few"
    one = planned(40)
    one.kept[Pace] = 0.02
    assert tried.pay(one), "80 s are enough"
    one.counters["units"] = 40
    assert not tried.pay(one), "half of them are over"
    one.counters["units"] = 100
    assert not tried.pay(one), "it was extended"


def test_a_trial_outside_of_an_experiment_has_nothing_left(clock: list[float]) -> None:
    one = Task().framework.open(CONFIGS[0], seed=0, placement=CPU, threads=1)
    one.kept[Pace] = 1e-3
    assert not Attempts().pay(one)


def test_a_pace_leaves_out_the_first_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(rates, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def work(durations: list[float]) -> Any:
        for duration in durations:
            now[0] += duration
            yield

    pace = Pace()
    assert len(list(pace.of(work([5.0, 3.0, 1.0, 0.5, 0.25])))) == 5
    now[0] += 0.25
    assert pace.seconds() == 0.5
    pace = Pace()
    list(pace.of(work([5.0, 3.0])))
    assert pace.seconds() == 4.0


# ------------------------------------------------------------------------------------------------------- step hooks


class Hooked(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer = super().build(config)
        optimizer.register_step_post_hook(lambda *_: model[0].weight.data.mul_(0.99))
        return model, optimizer


def test_optimizers_with_step_hooks_are_not_stacked(tmp_path: Path) -> None:
    together, alone = (
        [Hooked().framework.open(config, seed=0, placement=CPU, threads=1) for config in CONFIGS] for _ in range(2)
    )
    found = Stacked(together).train(Batches("cpu"), last=[False] * FEW)
    assert found == [one.train(Batches("cpu"), last=False) for one in alone]
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]


def test_a_pace_is_noted_for_training_with_fast_alone(place: Place) -> None:
    sessions = several(place, Task(), CONFIGS)
    for loose in (False, True):
        CudaGraphs(sessions, loose=loose).evaluate(Batches(place.device), seed=0)
        assert not any(Pace in one.kept for one in sessions)
        CudaGraphs(sessions, loose=loose).train(Batches(place.device), last=[False] * FEW)
        assert all((Pace in one.kept) is loose for one in sessions)
