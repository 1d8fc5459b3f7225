"""What policies that look ahead have in common: when they choose, and which workers they try out first."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hopfleet.domain.trial import TrialState
from hopfleet.domain.version_ref import VersionRef
from hopfleet.planner import exact, portfolio
from hopfleet.scheduler.policies.dispatcher import Dispatcher
from hopfleet.scheduler.policies.portfolio import for_solver
from hopfleet.scheduler.shop_state import ShopState, Start
from tests.helpers.schedule_desk import Desk

RNG = random.Random(0)


class Waits(Dispatcher):
    """Starts nothing."""

    choices = 0

    def _choose(self, state: ShopState, rng: random.Random) -> Sequence[Start]:
        self.choices += 1
        return ()


def test_a_choice_holds_until_something_happens() -> None:
    desk, policy = Desk((0,), (1,), trials=3, valid=0), Waits()
    desk.train("w1", "t1", 0)
    desk.start("w1", "t2", 0)
    for _ in range(3):
        assert policy(desk.schedule, RNG) is None
    assert policy.choices == 1
    desk.schedule.finish("w1", desk.schedule.slots["w1"].unit, 1.0, {})
    desk.start("w1", "t3", 0)
    assert policy(desk.schedule, RNG) is None and policy.choices == 2


@pytest.mark.parametrize(("seconds", "worker"), [((1.0, 1.0), "w1"), ((1.0, 2.0), "w2"), ((2.0, 1.0), "w2")])
def test_another_worker_is_tried_out_if_trials_do_not_take_as_long(seconds: tuple[float, float], worker: str) -> None:
    """Either the trials differ, or the workers on which they are."""
    desk = Desk(None, None, None, trials=3, valid=0)
    for number, took in enumerate((*seconds, 1.0), 1):
        desk.train(f"w{number}", f"t{number}", 0, seconds=took)
        desk.schedule.saved(VersionRef(f"t{number}", 1, number), durable=False)
    desk.schedule.park("t3", TrialState.STOPPED)
    found = Waits()(desk.schedule, RNG)
    assert found is not None and (found.worker, found.unit.trial) == (worker, "t1")


@pytest.mark.parametrize("units", [portfolio.SMALL, portfolio.SMALL + 1])
def test_the_solver_is_for_small_shops(units: int) -> None:
    assert for_solver(units) is (exact.installed() and units == portfolio.SMALL)
