"""Policies where partitions have replicas."""

from __future__ import annotations

import pytest

from hopfleet.domain.trial import TrialState
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.policies import balanced
from hopfleet.scheduler.policies.auto import Auto
from hopfleet.scheduler.policies.balanced import Balanced
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.progress import Outcome
from tests.helpers.online_runs import decide
from tests.helpers.schedule_desk import Desk, trial

pytestmark = pytest.mark.usefixtures("quick_solver")


def test_replicas_are_shared_out_by_speed():
    """Two workers hold both partitions; the slow one gets less."""
    estimates = Estimates([1, 1], prior=lambda number, worker, partition: 1.0 if worker == "w1" else 9.0)
    desk = Desk((0, 1), (0, 1), (), trials=4, epochs=1, valid=0)
    desk.schedule.estimates = estimates
    policy = Balanced()
    first = decide(policy, desk)
    assert first.worker == "w1"
    desk.start("w1", first.unit.trial, first.unit.partition)
    # It would end after all the others: better to leave everything to w1.
    assert decide(policy, desk) is None


def test_replicas_without_scipy_are_left_to_the_longest_remaining(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(Balanced, "__call__", lambda *_: pytest.fail("balanced"))
    desk = Desk((0, 1), (0, 1), (), trials=4, epochs=1, valid=0)
    assert decide(Auto(), desk) == decide(longest_remaining, desk) is not None


def test_while_workers_are_still_coming_short_units_come_first():
    estimates = Estimates([1, 1, 1], prior=lambda number, worker, partition: 9.0 - number)
    desk = Desk((0, 1), (1, 2), partitions=3, trials=4, epochs=1, valid=0)
    desk.schedule.estimates = estimates
    desk.schedule.starting = 1
    policy = Balanced()
    for name in ("t4", "t3"):
        choice = decide(policy, desk)
        assert choice.unit.trial == name
        desk.start(choice.worker, name, choice.unit.partition)
    assert decide(policy, desk) is None
    desk.schedule.join("w3", (2, 0))
    assert decide(policy, desk).unit.trial in ("t1", "t2")


def test_unit_times_that_turn_out_otherwise_need_a_new_balance(monkeypatch):
    made = []
    original = balanced.balance
    monkeypatch.setattr(balanced, "balance", lambda cells, **ready: made.append(ready) or original(cells, **ready))
    desk = Desk((0, 1), (0, 1), (), trials=4, epochs=1, valid=0)
    desk.schedule.estimates = Estimates([1, 1], prior=lambda number, worker, partition: 1.0)
    policy = Balanced()
    first = decide(policy, desk)
    desk.start(first.worker, first.unit.trial, first.unit.partition)
    second = decide(policy, desk)
    desk.start(second.worker, second.unit.trial, second.unit.partition)
    assert made == [{"worker_ready": {}, "config_ready": {}}]
    desk.schedule.finish(first.worker, first.unit, 1.0, {})
    assert decide(policy, desk) is not None
    assert len(made) == 1, "it took as long as expected"
    desk.schedule.finish(second.worker, second.unit, 40.0, {})
    third = decide(policy, desk)
    assert len(made) == 2
    desk.start(third.worker, third.unit.trial, third.unit.partition)
    desk.schedule.finish(third.worker, third.unit, 40.0, {})
    decide(policy, desk)


def test_trials_that_end_leave_nothing_behind():
    desk = Desk((0, 1), (0, 1), (), trials=3, epochs=1, valid=0)
    policy = Balanced()
    assert decide(policy, desk) is not None
    desk.schedule.settle("t1", Outcome(TrialState.STOPPED))
    desk.schedule.park("t1", TrialState.STOPPED)
    for _ in range(4):
        choice = decide(policy, desk)
        assert choice.unit.trial in ("t2", "t3")
        desk.train(choice.worker, choice.unit.trial, choice.unit.partition)
        desk.schedule.saved(VersionRef(choice.unit.trial, desk[choice.unit.trial].version, 0), durable=False)
    assert decide(policy, desk) is None


def test_replicas_of_some_and_none_of_others():
    desk = Desk((0,), (0,), partitions=2, trials=1, valid=0)
    policy = Balanced()
    choice = decide(policy, desk)
    assert choice.unit.partition == 0
    desk.train(choice.worker, "t1", 0)
    assert decide(policy, desk) is None


def test_a_few_new_trials_need_no_new_balance(monkeypatch):
    made = []
    original = balanced.balance
    monkeypatch.setattr(balanced, "balance", lambda cells, **ready: made.append(1) or original(cells, **ready))
    desk = Desk((0, 1), (0, 1), (), trials=20, epochs=1, valid=0)
    policy = Balanced()
    assert decide(policy, desk) is not None
    desk.schedule.add(trial(21, 1))
    assert decide(policy, desk) is not None
    assert len(made) == 1
    desk.schedule.add(trial(22, 1))
    desk.schedule.add(trial(23, 1))
    assert decide(policy, desk) is not None
    assert len(made) == 2
