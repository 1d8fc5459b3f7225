"""What starts next whatever the policy, and what a trial tells about itself."""

from __future__ import annotations

import random

import pytest

from hopfleet.domain.trial import TrialState
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.dispatch import _urgent, possible
from hopfleet.scheduler.policies.longest_remaining import by_load
from hopfleet.scheduler.policies.nearly_done import nearly_done
from hopfleet.scheduler.progress import Outcome
from tests.helpers.schedule_desk import Desk
from tests.helpers.shop_floor import shop_floor


def test_the_longest_trial_starts_where_a_policy_must_not_wait() -> None:
    desk = Desk((0,), (1,), trials=2, valid=0)
    desk.schedule.resume("t2", 5)
    found = possible(desk.schedule)
    assert found is not None and (found.worker, found.unit.trial) == ("w1", "t2")
    desk.start("w1", "t2", 0)
    found = possible(desk.schedule)
    assert found is not None and (found.worker, found.unit.trial) == ("w2", "t1")
    desk.start("w2", "t1", 1)
    assert possible(desk.schedule) is None


def test_an_urgent_trial_stays_with_the_worker_that_has_its_model() -> None:
    desk = Desk(None, None, trials=2, valid=0)
    desk.train("w2", "t1", 0)
    desk.schedule.saved(VersionRef("t1", 1, 1), durable=False)
    assert _urgent(desk.schedule) is None
    desk.schedule.prioritise("t1", 1)
    found = _urgent(desk.schedule)
    assert found is not None and (found.worker, found.unit.trial) == ("w2", "t1")
    desk.start("w2", "t2", 0)
    found = _urgent(desk.schedule)
    assert found is not None and (found.worker, found.unit.trial) == ("w1", "t1")


def test_the_metric_of_the_last_epoch_is_known_until_the_next_one_has_a_unit() -> None:
    desk = Desk(None)
    assert desk["t1"].last_metric is None
    desk.train("w1", "t1", 0, 1)
    desk.schedule.end_epoch("t1", metric=0.5)
    assert desk["t1"].last_metric == 0.5
    desk.train("w1", "t1", 0)
    assert desk["t1"].last_metric is None


@pytest.mark.parametrize(
    ("outcome", "gives_up"),
    [
        (None, False),
        (Outcome(TrialState.STOPPED), False),
        (Outcome(TrialState.STOPPED, delete=True), True),
        (Outcome(TrialState.FAILED), True),
    ],
)
def test_a_trial_that_fails_or_is_removed_ends_without_another_version(outcome: Outcome | None, gives_up: bool) -> None:
    desk = Desk(None)
    desk["t1"].outcome = outcome
    assert desk["t1"].gives_up is gives_up


def test_the_longest_evaluation_of_a_trial_is_known() -> None:
    progress = Desk(None, valid=2)["t1"]
    for seconds in (2.0, 3.0, 1.0):
        progress.finish_evaluation(0, seconds, {}, 1)
    assert progress.evaluation_seconds == 3.0


def test_an_urgent_trial_that_runs_is_not_started_again() -> None:
    desk = Desk(None, None, trials=2, valid=0)
    desk.schedule.prioritise("t1", 1)
    desk.start("w1", "t1", 0)
    assert _urgent(desk.schedule) is None


def test_rows_that_were_read_last_come_first_then_those_of_the_lowest_number() -> None:
    desk = Desk(None, partitions=3, trials=2, valid=0)
    found = possible(desk.schedule)
    assert found is not None and found.unit.partition == 0
    desk.schedule.slots["w1"].warm = 1
    found = possible(desk.schedule)
    assert found is not None and found.unit.partition == 1


def test_workers_are_served_by_load_then_by_speed_then_by_devices() -> None:
    desk = Desk(None, (0,), trials=1, valid=0)
    assert [slot.worker for slot in by_load(desk.schedule)] == ["w1", "w2"]
    desk = Desk((0,), None, trials=1, valid=0)
    assert [slot.worker for slot in by_load(desk.schedule)] == ["w2", "w1"], "it has more work to do"
    assert [slot.worker for slot in by_load(shop_floor("slow", "fast"))] == ["fast", "slow"]
    desk = Desk(None, trials=1, valid=0)
    for worker, devices in (("pair", 2), ("single", 1)):
        desk.schedule.join(worker, None, devices)
    assert [slot.worker for slot in by_load(desk.schedule)] == ["pair", "w1", "single"]


def test_of_trials_that_are_as_nearly_done_one_stays_with_its_worker() -> None:
    desk = Desk(None, None, trials=2, valid=0)
    for name, worker in (("t2", "w1"), ("t1", "w2")):
        desk.train(worker, name, 0)
        desk.schedule.saved(VersionRef(name, 1, 1), durable=False)
    found = nearly_done(desk.schedule, random.Random(0))
    assert found is not None and (found.worker, found.unit.trial) == ("w1", "t2")
