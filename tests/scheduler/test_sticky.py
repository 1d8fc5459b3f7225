"""Trials that stay where their models are, because hops cost, never keep others from training."""

from __future__ import annotations

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import RunStarted, RunUnit
from hopfleet.domain.space import uniform
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Work
from hopfleet.scheduler.policies import POLICIES
from hopfleet.scheduler.schedule import Schedule
from hopfleet.search.base import Goal
from hopfleet.search.random import Random
from hopfleet.simulation.backend import Simulated
from hopfleet.simulation.driver import simulated_driver

TRIALS, EPOCHS, PARTITIONS = 6, 8, 4
ALL = [0, 1, 2, 3]

UNEVEN = {
    "a node has come back": [ALL, [0, 1]],
    "two nodes have taken over": [ALL, ALL, [0, 1]],
    "one node has everything": [ALL, [0], [1], [2]],
    "some partitions are there twice": [[0, 1], [1, 2], [2, 3], [3]],
}


def makespan(held: list[list[int]], *, fixed: bool) -> float:
    """Return how long a search takes whose units take a second."""
    search = Random(trials=TRIALS, max_epochs=EPOCHS)
    search.setup({"x": uniform(0, 1)}, seed=0, goal=Goal("loss", "min"))
    controller = Controller(
        search, POLICIES["auto"](), partitions=PARTITIONS, valid_partitions=1, sticky=True, fixed_order=fixed
    )

    def seconds(command: RunUnit, trial: Trial) -> float:
        return 1.0 if command.unit.work is Work.TRAIN else 0.1

    backend = Simulated(seconds, lambda trial, epoch: {"loss": 1.0 / (epoch + trial.number)}, partitions=held)
    backend.start(None, len(held))
    driver = simulated_driver(controller, backend)
    for events in driver.moments([RunStarted("test", len(held))]):
        driver.step(events)
    assert controller.finished
    return backend.makespan


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "open"])
@pytest.mark.parametrize("name", UNEVEN)
def test_no_worker_waits_for_trials_that_another_keeps(name: str, fixed: bool) -> None:
    held = UNEVEN[name]
    bound = TRIALS * EPOCHS * (PARTITIONS + 0.1) / len(held)
    assert makespan(held, fixed=fixed) <= 1.1 * bound


@pytest.mark.parametrize(
    ("held", "stays"),
    [
        ([None, None], True),
        ([[0, 1], [2, 3]], True),
        ([[0, 1, 2], [3]], True),
        ([[0, 1], [1, 2], [2, 3], [3, 0]], True),
        ([ALL, [0, 1]], False),
        ([None, [0, 1]], False),
        ([[0, 1], [2, 3], [0, 1, 2, 3]], False),
        ([[0, 1], [0, 1], [2, 3]], False),
    ],
)
def test_trials_stay_where_partitions_are_copied_evenly(held: list[list[int] | None], stays: bool) -> None:
    schedule = Schedule(PARTITIONS, 0)
    schedule.sticky = True
    for number, partitions in enumerate(held):
        schedule.join(f"w{number}", partitions)
    assert schedule.sticks is stays
    schedule.sticky = False
    assert not schedule.sticks


def test_it_is_found_again_when_workers_come_and_go() -> None:
    schedule = Schedule(PARTITIONS, 0)
    schedule.sticky = True
    schedule.join("w1", ALL)
    assert schedule.sticks
    schedule.join("w2", [0, 1])
    assert not schedule.sticks
    schedule.retire("w2")
    assert schedule.sticks
