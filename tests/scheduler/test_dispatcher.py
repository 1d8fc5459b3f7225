"""What policies that look ahead have in common: when they choose, and what they wait for."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.planner import exact, portfolio
from hopfleet.scheduler.policies import dispatcher
from hopfleet.scheduler.policies.dispatcher import Dispatcher, _is_gathering
from hopfleet.scheduler.policies.portfolio import for_solver
from hopfleet.scheduler.shop_state import ShopState, Start
from hopfleet.scheduler.shop_view import PartitionLayout
from tests.helpers.schedule_desk import Desk
from tests.helpers.shop_floor import decide, shop_floor

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


@pytest.mark.parametrize(
    ("seconds", "start"), [((1.0, 1.0), ("t1", "w1")), ((1.0, 2.0), ("t1", "w3")), ((2.0, 1.0), ("t2", "w1"))]
)
def test_another_worker_is_tried_out_if_trials_do_not_take_as_long(
    seconds: tuple[float, float], start: tuple[str, str]
) -> None:
    """Either the trials differ, or the workers on which they are."""
    desk = Desk(None, None, None, trials=3, valid=0)
    for number, took in enumerate((*seconds, 1.0), 1):
        desk.train(f"w{number}", f"t{number}", 0, seconds=took)
        desk.schedule.saved(VersionRef(f"t{number}", 1, number), durable=False)
    desk.schedule.park("t3", TrialState.STOPPED)
    found = Waits()(desk.schedule, RNG)
    assert found is not None and (found.unit.trial, found.worker) == start


@pytest.mark.parametrize("units", [portfolio.SMALL, portfolio.SMALL + 1])
def test_the_solver_is_for_small_shops(units: int) -> None:
    assert for_solver(units) is (exact.installed() and units == portfolio.SMALL)


# ------------------------------------------------------------------------------------------ which policy decides


def named(monkeypatch: pytest.MonkeyPatch, policy: Dispatcher, *, scipy: bool = True) -> list[str]:
    """Let the policies behind a dispatcher start nothing; return a list that tells which were asked."""
    asked: list[str] = []
    policy._unequal = lambda *_: asked.append("unequal")  # type: ignore[assignment]
    policy._replicated = lambda *_: asked.append("replicated")
    policy._can_balance = scipy
    monkeypatch.setattr(dispatcher, "longest_remaining", lambda *_: asked.append("longest"))
    monkeypatch.setattr(policy, "_in_shop", lambda *_: asked.append("shop"))
    return asked


@pytest.mark.parametrize(
    ("workers", "reads", "scipy", "asked"),
    [
        (("fast", "quick"), None, True, "longest"),
        (("fast", "slow"), None, True, "unequal"),
        (("fast", "quick"), {"fast": (0,), "quick": (1,)}, True, "shop"),
        (("fast", "slow"), {"fast": (0,), "slow": (1,)}, True, "shop"),
        (("fast", "quick"), {"fast": (0,), "quick": (0, 1)}, True, "replicated"),
        (("fast", "quick"), {"fast": (0,), "quick": (0, 1)}, False, "longest"),
    ],
)
def test_who_reads_what_decides(monkeypatch, workers, reads, scipy, asked) -> None:
    policy = Waits()
    found = named(monkeypatch, policy, scipy=scipy)
    policy(shop_floor(*workers, reads=reads), RNG)
    assert found == [asked]


@pytest.mark.parametrize(
    ("other", "onward", "sticky", "chains"),
    [
        ("quick", 0, False, False),
        ("quick", 2, False, True),
        ("quick", 2, True, False),
        ("slow", 0, False, True),
        ("slow", 0, True, True),
    ],
)
def test_chains_are_planned_where_workers_differ_or_trials_wait_for_others(other, onward, sticky, chains) -> None:
    schedule = shop_floor("fast", other, onward=onward)
    schedule.sticky = sticky
    assert Waits()._plans_chains(schedule) is chains


def test_who_reads_what_is_looked_at_when_it_changes(monkeypatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(dispatcher, "layout", lambda schedule: looked.append(1) or PartitionLayout.PINNED)
    schedule, policy = shop_floor("fast", "quick"), Waits()
    for _ in range(2):
        policy._find_layout(schedule)
    assert len(looked) == 1
    schedule.join("slow", None)
    policy._find_layout(schedule)
    assert len(looked) == 2


class Twice(Waits):
    """Starts the first trial on the first worker, and the second on the second."""

    def _choose(self, state: ShopState, rng: random.Random) -> Sequence[Start]:
        super()._choose(state, rng)
        return [(0, 0), (1, 1)]


def test_several_starts_are_one_choice() -> None:
    desk, policy = Desk((0,), (1,), trials=3, valid=0), Twice()
    assert decide(policy, desk.schedule) == [("t1", "w1"), ("t2", "w2")]
    assert policy.choices == 1


def test_some_unit_starts_where_there_is_nothing_to_wait_for() -> None:
    found = Waits()(Desk((0,), (1,), trials=1, valid=0).schedule, RNG)
    assert found is not None and found.unit.trial == "t1"


# ------------------------------------------------------------------------------------------ runs that begin


def test_a_run_gathers_while_the_first_units_run_and_some_partition_has_no_worker() -> None:
    desk = Desk((0,), (), partitions=2, trials=2, valid=0)
    assert _is_gathering(desk.schedule) is False, "nothing runs that could end"
    desk.start("w1", "t1", 0)
    assert _is_gathering(desk.schedule) is True
    desk.schedule.join("w3", (1,))
    assert _is_gathering(desk.schedule) is False
    desk.schedule.leave("w3")
    desk.schedule.finish("w1", Unit("t1", 1, 0), 1.0, {})
    desk.start("w1", "t2", 0)
    assert _is_gathering(desk.schedule) is False, "a unit has ended"
