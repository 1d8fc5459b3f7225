"""Several optimizers and schedules per trial: the bits of a plain loop, alone, after a hop and in a flotilla."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.errors import TaskError
from hopfleet.frameworks.torch.session import TorchSession

LR = torch.optim.lr_scheduler

UNITS = 3


class Batches:
    """Five batches of eight rows."""

    rows = 40

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(5):
            yield {"x": torch.randint(0, 6, (8, 3), generator=generator), "y": torch.randn(8, generator=generator)}


class Pair(hop.TorchTask):
    """A sparse embedding and a dense head, each with an optimizer and a schedule of its own."""

    lr_step = "batch"

    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            setattr(self, name, value)

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Flatten(), torch.nn.Linear(12, 1))
        first = torch.optim.SGD(model[0].parameters(), lr=config["lr"], momentum=0.9)
        second = torch.optim.Adam(model[2].parameters(), lr=config["lr"])
        return model, [first, second], [LR.ExponentialLR(first, 0.9), LR.StepLR(second, 4, 0.5)]

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return ((model(batch["x"]).squeeze(1) - batch["y"]) ** 2).mean()


def opened(task: hop.TorchTask, number: int = 0) -> TorchSession:
    return task.framework.open({"lr": 0.01 * (number + 1)}, seed=number, placement=CPU, threads=1)


def by_hand(task: hop.TorchTask, *, every: int = 1, norm: float | None = None) -> Any:
    """Train in a plain loop without Hopfleet."""
    torch.manual_seed(0)
    model, optimizers, schedulers = task.build({"lr": 0.01})
    for _ in range(UNITS):
        batches = list(Batches())
        for number, batch in enumerate(batches, 1):
            (task.loss(model, batch) / every).backward()
            if number % every == 0 or number == len(batches):
                if norm is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch expects an update before the schedule's first step
                for scheduler in schedulers:
                    scheduler.step()
    return model


@pytest.mark.parametrize(
    ("options", "by"),
    [
        ({}, {}),
        ({"accumulate": 2}, {"every": 2}),
        ({"clip_norm": 0.01}, {"norm": 0.01}),
        ({"precision": "fp16", "lr_step": "epoch"}, None),
    ],
)
def test_all_optimizers_and_schedules_step(tmp_path: Path, options: Any, by: Any) -> None:
    task = Pair(**options)
    alone, hopping = opened(task), opened(task)
    for unit in range(UNITS):
        alone.train(Batches(), last=False)
        hopping.train(Batches(), last=False)
        hopping.save(tmp_path / str(unit))
        hopping = opened(task)
        hopping.load(tmp_path / str(unit))
    if by is not None:
        expected = by_hand(task, **by)
        assert all(map(torch.equal, alone.model.parameters(), expected.parameters()))
    for session, name in ((alone, "alone"), (hopping, "hopping")):
        session.save(tmp_path / name)
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "hopping").read_bytes()


@pytest.mark.parametrize("fast", [False, True])
def test_trials_with_several_optimizers_train_together(tmp_path: Path, fast: bool) -> None:
    task = Pair()
    alone, together = ([opened(task, number) for number in range(3)] for _ in range(2))
    for _ in range(UNITS):
        results = task.framework.flotilla(together, fast=fast).train(Batches(), last=[False] * 3)
        assert results == [session.train(Batches(), last=False) for session in alone]
    for one, other in zip(alone, together, strict=True):
        one.save(tmp_path / "one")
        other.save(tmp_path / "other")
        assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_hooks_see_a_list_exactly_if_there_are_several() -> None:
    class Looking(Pair):
        def loss(self, model: Any, batch: dict[str, Any]) -> Any:
            seen.append((type(self.optimizer), type(self.lr_scheduler)))
            return super().loss(model, batch)

    class Loose(Looking):
        def build(self, config: Mapping[str, Any]) -> Any:
            model, optimizers, schedulers = super().build(config)
            return (model, *optimizers, *schedulers)

    class Single(Looking):
        def build(self, config: Mapping[str, Any]) -> Any:
            model, optimizers, schedulers = super().build(config)
            return model, optimizers[0], schedulers[0]

    seen: list[Any] = []
    for task in (Looking(), Loose(), Single()):
        opened(task).train(Batches(), last=False)
    assert list(dict.fromkeys(seen)) == [(list, list), (torch.optim.SGD, LR.ExponentialLR)]


# ------------------------------------------------------------------------------------------- gradients that accumulate


@pytest.mark.parametrize("together", [False, True])
def test_the_last_update_of_a_unit_uses_the_learning_rate_of_its_last_batch(together: bool) -> None:
    """Five batches with two per update: the fifth makes an update by itself, before the schedule steps."""
    task = Pair(accumulate=2)
    sessions = [opened(task, number) for number in range(2)]
    for _ in range(UNITS):
        if together:
            task.framework.flotilla(sessions).train(Batches(), last=[False, False])
        else:
            sessions[0].train(Batches(), last=False)
    expected = by_hand(task, every=2)
    assert all(map(torch.equal, sessions[0].model.parameters(), expected.parameters()))
    assert [scheduler.last_epoch for scheduler in sessions[0].schedulers] == [5 * UNITS] * 2


# -------------------------------------------------------------------------------------- schedules that follow a metric


class Plateau(Pair):
    lr_step = "epoch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model, (first, second), _ = super().build(config)
        return model, [first, second], [LR.ReduceLROnPlateau(first, patience=0, factor=0.5), LR.StepLR(second, 1, 0.1)]


def rates(session: TorchSession) -> list[float]:
    return [optimizer.param_groups[0]["lr"] for optimizer in session.optimizers]


def test_reduce_lr_on_plateau_follows_the_metric_and_hops(tmp_path: Path) -> None:
    session = opened(Plateau())
    for epoch, (metric, expected) in enumerate([(1.0, 0.01), (0.5, 0.01), (0.7, 0.005), (0.6, 0.0025)]):
        session.train(Batches(), last=True)
        session.save(tmp_path / str(epoch))
        session = opened(Plateau())
        session.load(tmp_path / str(epoch))
        session.observe(metric)
        assert rates(session) == [expected, pytest.approx(0.01 * 0.1 ** (epoch + 1))]


def test_a_plateau_that_watches_in_the_wrong_direction() -> None:
    session = opened(Plateau())
    session.check_goal("loss", "min")
    with pytest.raises(TaskError, match="'accuracy' is better if it is larger; build the schedule with mode='max'"):
        session.check_goal("accuracy", "max")


def steps_of(task: Callable[[], hop.TorchTask]) -> list[float]:
    session = opened(task())
    session.observe(1.0)
    session.observe(1.0)
    return rates(session)


def test_other_schedules_ignore_the_metric() -> None:
    assert steps_of(Pair) == [0.01, 0.01]
