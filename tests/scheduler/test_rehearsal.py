"""Rehearsals of policies on a copy of the schedule, and the policy that they choose for replicated partitions."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.dryrun import rehearse
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.policies import replicated
from hopfleet.scheduler.policies.balanced import Balanced
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.policies.replicated import Replicated
from hopfleet.scheduler.progress import Outcome
from hopfleet.scheduler.schedule import Schedule
from hopfleet.simulation.layouts import simulate_scenario
from hopfleet.simulation.scenario import Scenario, SimulatedNode
from tests.helpers.schedule_desk import trial


def schedule_of(*seconds: float, epochs: int = 1, workers: tuple[Any, ...] = ((0,), (0,), (1,))) -> Schedule:
    """Trials with these times of a unit, on two partitions; by default two workers read the first."""
    schedule = Schedule(2, 1, Estimates([1, 1], lambda number, worker, partition: seconds[number - 1]))
    for number, partitions in enumerate(workers, 1):
        schedule.join(f"w{number}", partitions)
    for number in range(1, len(seconds) + 1):
        schedule.add(trial(number, epochs))
    return schedule


@pytest.mark.parametrize(("epochs", "laps", "expected"), [(1, 5, 2.0), (3, 5, 6.0), (3, 1, 4.0), (3, 0, 2.0)])
def test_a_rehearsal_takes_the_time_of_all_units(epochs: int, laps: int, expected: float) -> None:
    schedule = schedule_of(1.0, 1.0, epochs=epochs)
    assert rehearse(schedule, longest_remaining, laps=laps) == expected
    assert len(schedule.idle) == 3 and not schedule.measured, "nothing has happened"


def test_what_is_under_way_is_counted() -> None:
    schedule = schedule_of(4.0, 1.0, 2.0, workers=(None, None, None))
    schedule.start("w1", Unit("t1", 1, 0), 1)
    schedule.start("w2", Unit("t2", 1, 0), 2)
    schedule.retire("w2")
    schedule.now = 3.0
    # One more second of t1, then the other half of it; t2 and t3 have w3 meanwhile, and w1 after that.
    assert rehearse(schedule, longest_remaining, laps=1) == 5.0
    # A flotilla takes as long as all of its units; a trial that ends trains no more.
    schedule = schedule_of(4.0, 1.0, 2.0, workers=(None,))
    for number in (1, 2, 3):
        schedule.start("w1", Unit(f"t{number}", 1, 0), number, flotilla=1)
    schedule.settle("t3", Outcome(TrialState.STOPPED))
    assert rehearse(schedule, longest_remaining, laps=1) == 10.0


def test_a_trial_goes_on_where_it_was() -> None:
    schedule = schedule_of(1.0, 3.0, workers=(None,), epochs=2)
    for partition in (0, 1):
        unit = Unit("t1", 1, partition)
        schedule.start("w1", unit, 1)
        schedule.finish("w1", unit, 1.0, {})
        schedule.saved(VersionRef("t1", partition + 1, 1), durable=False)
    assert rehearse(schedule, longest_remaining, laps=1) == 2 + 12, "an evaluation takes no time"
    assert rehearse(Schedule(2, 0), longest_remaining, laps=1) == 0.0


class Noted:
    """Rehearsals that take as long as the test says, by policy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
        self.seconds, self.policies = list(seconds), list[Any]()
        monkeypatch.setattr(replicated, "rehearse", self)

    def __call__(self, schedule: Schedule, policy: Any, *, laps: int) -> float:
        self.policies.append(policy)
        return self.seconds[len(self.policies) - 1]


def chosen(policy: Replicated, schedule: Schedule) -> Any:
    policy(schedule, random.Random(0))
    return policy._chosen


@pytest.mark.parametrize(
    ("seconds", "which"), [((3.0, 3.0, 3.0), "kept"), ((3.0, 2.0, 3.0), "balanced"), ((3.0, 3.0, 2.0), "longest")]
)
def test_the_policy_that_ends_first_is_chosen(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], which: str
) -> None:
    pytest.importorskip("scipy")
    noted, policy = Noted(monkeypatch, *seconds), Replicated()
    before = policy._balanced
    found = chosen(policy, schedule_of(1.0, 2.0))
    assert len(noted.policies) == 3
    assert (found is before) == (which == "kept")
    assert isinstance(found, Balanced) != (found is longest_remaining) == (which == "longest")
    assert found not in noted.policies or found is longest_remaining, "what was rehearsed is not used"


def test_the_choice_is_made_again_when_much_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    noted, policy, schedule = Noted(monkeypatch, *[1.0] * 20), Replicated(), schedule_of(*[1.0] * 6, epochs=2)
    chosen(policy, schedule)
    chosen(policy, schedule)
    assert len(noted.policies) == 3
    schedule.join("w4", (1,))
    chosen(policy, schedule)
    assert len(noted.policies) == 6
    schedule.owed[0] -= 8
    chosen(policy, schedule)
    assert len(noted.policies) == 9


def test_balanced_shares_without_a_rehearsal_where_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    noted = Noted(monkeypatch, 3.0, 3.0, 2.99)
    many = Replicated()
    assert chosen(many, schedule_of(*[1.0] * (replicated.UNITS // 4 + 1))) is many._balanced
    assert not noted.policies
    for noise, rehearsals in ((0.3, 0), (0.1, 3)):
        loose, schedule = Replicated(), schedule_of(1.0, 2.0)
        schedule.estimates._squares = noise**2, 1
        assert chosen(loose, schedule) is loose._balanced
        assert len(noted.policies) == rehearsals, "a gain of less than a percent is not clear in noise of 10%"


def test_auto_ends_no_later_than_either() -> None:
    pytest.importorskip("scipy")
    rng = random.Random(2)
    nodes = tuple(SimulatedNode(f"n{number}", size, teams=(1,) * size) for number, size in enumerate((4, 2, 2)))
    rates = tuple(1000 / rng.uniform(100, 1000) for _ in range(16))
    scenario = Scenario(nodes, rates, 8000, 3, 1, scaling=(1.0, 1.9), switch=False, sharded=True, fuse=False)
    auto, longest, balanced = (
        simulate_scenario(scenario, policy).simulation.makespan
        for policy in ("auto", "longest-remaining", "match-reserve")
    )
    assert auto <= min(longest, balanced) * (1 + 1e-9)
    assert longest != balanced
    assert simulate_scenario(replace(scenario, epochs=2)).simulation.ratio < 1.05
