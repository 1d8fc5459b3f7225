"""Schedules that step with batches: the numbers of steps that hooks are told, and checks of lengths before training."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import hopfleet as hop
from hopfleet.clients.replay import replay
from hopfleet.domain.batching import Batching
from hopfleet.errors import TaskError
from hopfleet.frameworks.paced import Paced
from hopfleet.frameworks.torch.schedules import check_lengths
from tests.helpers.marks import LONG


class Counting(hop.TorchTask):
    """A task whose metrics are the steps that were taken and those that were announced."""

    lr_step = "batch"

    def __init__(self, accumulate: int = 1) -> None:
        self.accumulate = accumulate

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        assert type(self.total_steps) is int and type(self.steps_per_epoch) is int
        return model, optimizer, lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=self.total_steps)

    def loss(self, model: Any, batch: Any) -> Any:
        return model(batch["x"]).square().mean()

    def metrics(self, model: Any, batch: Any) -> dict[str, float]:
        state = next(iter(self.optimizer.state.values()), {"step": torch.tensor(0.0)})
        return {
            "updates": state["step"].item(),
            "stepped": self.lr_scheduler.last_epoch,
            "total": self.total_steps,
            "per_epoch": self.steps_per_epoch,
            "rate": self.lr_scheduler.get_last_lr()[0],
        }


def data(folder: Path, rows: int, partitions: int, seed: int = 0) -> hop.Dataset:
    columns = {"x": np.ones((rows, 2), "float32")}
    rng = np.random.default_rng(seed)
    return hop.partition(columns, folder, capacities=rng.uniform(1, 4, partitions).tolist())


def run(folder: Path, task: hop.Task, train: hop.Dataset, epochs: int = 2, **more: Any) -> hop.Results:
    given: dict[str, Any] = {"space": {"lr": 0.1}, "search": hop.Grid(max_epochs=epochs)}
    given["valid"] = {"x": train.head(3)["x"]}
    given |= {
        "metric": "total",
        "mode": "max",
        "seed": 1,
        "backend": "inline",
        "workers": 1,
        "name": folder.name,
        **more,
    }
    return hop.Experiment(task, train=train, **given).fit(quiet=True)


def check_numbers(folder: Path, seed: int) -> None:
    """Train trials with random partitions, batch sizes and options; all steps must be those that were announced."""
    rng = random.Random(seed)
    train = data(folder / "data", rng.randint(8, 60), rng.randint(1, 4), seed)
    sizes = sorted({rng.randint(1, min(train.partition_rows)) for _ in range(3)})
    accumulate, epochs, drop_last = rng.choice([1, 1, 2, 3]), rng.randint(1, 3), rng.random() < 0.5
    results = run(
        folder / f"s{seed}", Counting(accumulate), train, epochs, space={"batch_size": hop.grid_search(sizes)},
        worker_options=hop.WorkerOptions(drop_last=drop_last),
    )  # fmt: skip
    assert len(results.trials) == len(sizes)
    for trial in results.trials:
        found, plan = trial.history[-1], Batching(train.partition_rows, trial.config["batch_size"], drop_last, epochs)
        assert found["stepped"] == found["total"] == epochs * found["per_epoch"] == plan.total_steps()
        assert found["updates"] == plan.total_steps(accumulate)
        # The last update has the last learning rate of the cycle, and the schedule has no step left.
        alone = optimizer()
        schedule = lr_scheduler.OneCycleLR(alone, max_lr=0.1, total_steps=plan.total_steps())
        alone.step()
        for _ in range(plan.total_steps()):
            schedule.step()
        assert schedule.get_last_lr()[0] == found["rate"]
        with pytest.raises(ValueError, match="Tried to step"):
            schedule.step()


@pytest.mark.parametrize("seed", range(3))
def test_announced_steps_are_taken(tmp_path: Path, seed: int) -> None:
    check_numbers(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 40 if LONG else 13))
def test_announced_steps_are_taken_in_many_trials(tmp_path: Path, seed: int) -> None:
    check_numbers(tmp_path, seed)


def test_folds_have_steps_of_their_own(tmp_path: Path) -> None:
    train = data(tmp_path / "data", 31, 5)
    results = run(tmp_path / "folds", Counting(), train, valid="kfold(2)", batch_size=2)
    # Each model is evaluated on the rows of its fold.
    rows, plan = train.partition_rows, Batching(train.partition_rows, 2, False, 2)
    totals = [plan.without(range(fold, 5, 2)).total_steps() for fold in range(2)]
    weights = [sum(rows[fold::2]) for fold in range(2)]
    expected = sum(total * weight for total, weight in zip(totals, weights, strict=True)) / sum(rows)
    assert results.best.history[-1]["total"] == results.best.history[-1]["stepped"] == expected


@pytest.mark.slow
def test_a_trial_keeps_its_steps_if_it_is_extended(tmp_path: Path) -> None:
    class Cosine(Counting):
        def build(self, config: Mapping[str, Any]) -> Any:
            model, optimizer, _ = super().build(config)
            return model, optimizer, lr_scheduler.ExponentialLR(optimizer, 1 - 1 / self.total_steps)

    train = data(tmp_path / "data", 20, 2)
    results = run(tmp_path / "long", Cosine(), train, batch_size=4)
    before = results.best.history[-1]["total"]
    control = hop.control("long")
    control.resume("t0001", epochs=5)
    control.clone("t0001", epochs=7)
    control.extend(epochs=1)
    experiment = hop.Experiment(
        Cosine(), train=train, valid={"x": train.head(3)["x"]}, space={"lr": 0.1}, search=hop.Grid(max_epochs=2),
        metric="total", mode="max", seed=1, backend="inline", workers=1, name="long", batch_size=4,
    )  # fmt: skip
    results = experiment.fit(quiet=True)
    first, clone = results["t0001"], results["t0002"]
    assert (len(first.history), {epoch["total"] for epoch in first.history}) == (5, {before})
    assert {epoch["total"] for epoch in clone.history} == {before / 2 * 7}
    assert replay(results, task=Cosine(), backend="inline").ok
    model = results["t0002"].model(Cosine())  # outside of a run, hooks know the steps, too
    assert isinstance(model, torch.nn.Linear)


def test_without_a_trial() -> None:
    with pytest.raises(TaskError, match=r"self\.total_steps: must be read while a trial is trained or loaded"):
        _ = Counting().total_steps
    with pytest.raises(TaskError, match="read it in build"):
        _ = Counting().steps_per_epoch


def test_a_task_may_have_a_number_of_its_own() -> None:
    task = Counting()
    task.total_steps = 7
    assert task.total_steps == task.planned(Batching((3,), 1, False, 1)).total_steps == 7


def test_functions_get_the_task(tmp_path: Path) -> None:
    def model_fn(config: Mapping[str, Any], task: hop.TorchTask) -> Any:
        model = torch.nn.Linear(2, 1)
        model.steps = task.total_steps
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def train_fn(model: Any, optimizer: Any, batches: Any, config: Any) -> dict[str, float]:
        return {"total": float(model.steps), "seen": float(len(list(batches)))}

    train = data(tmp_path / "data", 20, 2)
    task = hop.FunctionTask(lambda batch: batch["x"], model_fn, train_fn)
    assert run(tmp_path / "functions", task, train, batch_size=4).best.metrics["total"] == 2 * sum(
        -(-rows // 4) for rows in train.partition_rows
    )


# ------------------------------------------------------------------------------------------------ lengths of schedules

PLAN = Batching((10, 11), 4, False, 5)
"""30 steps in 5 epochs, where 21 rows divided by 4 would make 30 as well, but 22 rows in batches of 4 make 6 each."""


class Hooks:
    """A task as the check reads it."""

    def __init__(self, lr_step: str = "batch", plan: Batching | None = PLAN, accumulate: int = 1) -> None:
        self.lr_step, self.batching = lr_step, plan
        self.total_steps = 0 if plan is None else plan.total_steps(accumulate)


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def lambdas(kind: str, steps: int) -> Any:
    """Return a schedule like those of transformers."""

    def cosine(step: int, *, num_training_steps: int) -> float:
        return 0.5 * (1 + float(np.cos(np.pi * step / num_training_steps)))

    def linear(step: int, *, num_training_steps: int, end: float = 0.0) -> float:
        return max(end, 1 - step / num_training_steps)

    function = {"cosine": cosine, "linear": linear, "floor": functools.partial(linear, end=0.1)}[kind]
    return lr_scheduler.LambdaLR(optimizer(), functools.partial(function, num_training_steps=steps))


def sequence(warmup: int, then: Any) -> Any:
    own = then.optimizer
    first = lr_scheduler.LinearLR(own, 0.1, total_iters=warmup)
    return lr_scheduler.SequentialLR(own, [first, then], [warmup])


def checked(schedule: Any, hooks: Hooks) -> str:
    """Return the warning of a check; empty if there is none."""
    return "".join(check_lengths([schedule], hooks))  # type: ignore[arg-type]


cosine = lambda steps: lr_scheduler.CosineAnnealingLR(optimizer(), T_max=steps)  # noqa: E731
cycle = lambda steps: lr_scheduler.OneCycleLR(optimizer(), max_lr=0.1, total_steps=steps)  # noqa: E731
poly = lambda steps: lr_scheduler.PolynomialLR(optimizer(), total_iters=steps)  # noqa: E731
line = lambda steps, end=0.0: lr_scheduler.LinearLR(optimizer(), 1.0, end, steps)  # noqa: E731

FINE = {
    "the whole length": cosine(30),
    "the last step is not used": cosine(29),
    "whole cycles": cosine(10),
    "longer, without reaching the end": cosine(100),
    "one cycle": cycle(30),
    "polynomial": poly(30),
    "linear to 0": line(30),
    "a warm-up": line(3, 1.0),
    "linear to a floor": line(20, 0.1),
    "restarts": lr_scheduler.CosineAnnealingWarmRestarts(optimizer(), 7),
    "steps": lr_scheduler.StepLR(optimizer(), 7),
    "a function": lr_scheduler.LambdaLR(optimizer(), lambda step: 1 / (step + 1)),
    "transformers": lambdas("linear", 30),
    "transformers with a floor": lambdas("floor", 20),
    "warm-up, then cosine": sequence(5, cosine(25)),
    "chained": lr_scheduler.ChainedScheduler([cosine(30)]),
    "every few batches": Paced(cosine(7), "step", 3, 1),
    "paced by epoch": Paced(cosine(5), "epoch", 1, 1),
    "paced by step": Paced(cosine(30), "step", 1, 1),
}
WRONG = {
    "short": (cosine(27), r"CosineAnnealingLR\(T_max=27\): must be 30 steps.*own short|climb again; use self"),
    "epochs": (cosine(5), r"T_max=5\): must be 30 .*climb again; use self\.total_steps"),
    "long cycle": (cycle(40), "would not come to its end"),
    "polynomial": (poly(5), "would be 0 from then on"),
    "linear": (line(20), "would be 0 from then on"),
    "transformers' cosine": (lambdas("cosine", 20), r"num_training_steps=20\): must be 30 .*climb again"),
    "transformers' line": (lambdas("linear", 20), "would be 0 from then on"),
    "after a warm-up": (sequence(5, cosine(20)), r"T_max=20\): must be 25 .*use self\.total_steps - 5"),
    "chained": (lr_scheduler.ChainedScheduler([cosine(20)]), "climb again"),
    "paced by epoch": (Paced(cosine(30), "epoch", 1, 1), r"T_max=30\): must be 5 .*come to its end"),
}


@pytest.mark.parametrize("case", FINE)
def test_lengths_that_fit(case: str) -> None:
    assert checked(FINE[case], Hooks()) == ""
    assert checked(FINE[case], Hooks(plan=None)) == ""


@pytest.mark.parametrize("case", WRONG)
def test_lengths_that_do_not_fit(case: str) -> None:
    schedule, message = WRONG[case]
    assert re.search(message, checked(schedule, Hooks()))


@pytest.mark.parametrize(("schedule", "message"), [(cosine(30), "come to its end"), (cosine(28), "lr_step = 'batch'")])
def test_batches_instead_of_epochs(schedule: Any, message: str) -> None:
    text = checked(schedule, Hooks("epoch"))
    assert message in text and "must be 5 steps" in text
    assert not checked(cosine(5), Hooks("epoch")) and not checked(cosine(12), Hooks("epoch"))


def test_batches_instead_of_updates() -> None:
    text = checked(cosine(30), Hooks(accumulate=2))
    assert "must be 20 steps" in text and "one after each update" in text


@pytest.mark.parametrize("lr_step", ["batch", "epoch"])
def test_a_cycle_that_is_too_short_is_refused(lr_step: str) -> None:
    steps = {"batch": 30, "epoch": 5}[lr_step]
    with pytest.raises(TaskError, match=rf"total_steps={steps - 1}\): must be {steps} steps.*training would fail"):
        list(check_lengths([cycle(steps - 1)], Hooks(lr_step)))  # type: ignore[arg-type]


def test_a_short_cycle_is_refused_before_training(tmp_path: Path) -> None:
    class Short(Counting):
        def build(self, config: Mapping[str, Any]) -> Any:
            model, optimizer, _ = super().build(config)
            return model, optimizer, lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)

    train = data(tmp_path / "data", 21, 2)
    with pytest.raises(hop.HopfleetError, match=r"OneCycleLR\(total_steps=10\): must be 12 steps"):
        run(tmp_path / "short", Short(), train, batch_size=4)


def test_a_schedule_that_climbs_is_named(tmp_path: Path) -> None:
    class Climbing(Counting):
        def build(self, config: Mapping[str, Any]) -> Any:
            model, optimizer, _ = super().build(config)
            return model, optimizer, lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)

    train = data(tmp_path / "data", 21, 2)
    results = run(tmp_path / "climbing", Climbing(), train, batch_size=4)
    log = "".join(path.read_text() for path in results.folder.logs.iterdir())
    assert log.count("T_max=9): must be 12 steps") == 1
