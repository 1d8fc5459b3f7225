"""The policy fleet: trials visit the same rows soon after one another, in groups that end together."""

from __future__ import annotations

import random

import pytest

from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.fusion import Fusion, companions
from hopfleet.scheduler.policies.fleet import _alike, _late, _rows, fleet
from hopfleet.scheduler.slots import Assignment
from tests.helpers.schedule_desk import Desk, trial
from tests.helpers.shop_floor import shop_floor

ANY = Fusion(lambda config: None, memory=100, size=1)


def choice(desk: Desk) -> Assignment:
    found = fleet(desk.schedule, random.Random(0))
    assert found is not None
    return found


def train(desk: Desk, trial: str, *partitions: int, seconds: float = 1.0) -> None:
    """Train an epoch of a trial on w1."""
    desk.train("w1", trial, *partitions, seconds=seconds)
    desk.schedule.end_epoch(trial, None)


def timed(desk: Desk, *seconds: float) -> None:
    """Let the trials have these measured unit times."""
    for number, value in enumerate(seconds, 1):
        desk[f"t{number}"].seconds, desk[f"t{number}"].measured = value, 1


def started(desk: Desk) -> list[list[str]]:
    """Start groups until no worker is idle; return the trials of each."""
    groups = []
    while desk.schedule.idle:
        found = choice(desk)
        slot = desk.schedule.slots[found.worker]
        units = [
            found.unit,
            *companions(desk.schedule, slot, found.unit, ANY, together=found.together),
        ]
        for attempt, unit in enumerate(units, 1):
            desk.schedule.start(found.worker, unit, attempt, 1)
        groups.append([unit.trial for unit in units])
    return groups


def test_groups_take_equal_times():
    desk = Desk(None, None, trials=6, epochs=5)
    timed(desk, 1, 5, 2, 4, 3, 1)
    assert started(desk) == [["t2", "t5"], ["t4", "t1", "t3", "t6"]]  # 8 seconds each


def test_companions_by_number_would_not():
    desk = Desk(None, None, trials=6, epochs=5)
    timed(desk, 1, 5, 2, 4, 3, 1)
    unit = choice(desk).unit
    found = companions(desk.schedule, desk.schedule.slots["w1"], unit, ANY)
    assert [each.trial for each in found] == ["t1", "t3", "t4"][: len(found)]


def test_a_fast_worker_takes_a_larger_group():
    desk = Desk(None, None, trials=8, epochs=9)
    for at in range(2):
        for number in range(1, 9):
            for worker, seconds in (("w1", 1.0), ("w2", 3.0)):
                desk.schedule.estimates.measured(f"t{number}", number, worker, at, seconds)
    timed(desk, *[2.0] * 8)
    assert [len(group) for group in started(desk)] == [6, 2]


def test_workers_prepare_different_rows_and_then_exchange_them():
    desk = Desk(None, None, partitions=4, valid=0, trials=4, epochs=9)
    first = choice(desk)
    assert first.unit == Unit("t1", 1, 0) and first.together == ("t2",)
    desk.start("w1", "t1", 0)
    second = choice(desk)
    assert second.unit.partition == 1
    desk.schedule.start("w2", Unit("t3", 1, 1), 2)
    for worker, name in (("w1", "t1"), ("w2", "t3")):
        desk.schedule.finish(worker, desk.schedule.slots[worker].unit_of(name), 1.0, {})
        desk.schedule.saved(VersionRef(name, 1, 0), durable=False)
    # t2, t3 and t4 owe partition 0, which w1 has read.
    found = choice(desk)
    assert (found.worker, found.unit.partition) == ("w1", 0) and found.unit.trial != "t1"


def test_what_other_epochs_have_prepared_does_not_count():
    desk = Desk(None, partitions=2, valid=0, trials=3, epochs=9)
    train(desk, "t1", 1, 0)
    train(desk, "t2", 1, 0)
    # The first epoch is the oldest; both of its partitions are prepared, and partition 0 is warm.
    assert choice(desk).unit == Unit("t3", 1, 0)
    train(desk, "t3", 0, 1)
    # In the second epoch none is.
    assert choice(desk).unit.epoch == 2 and choice(desk).unit.partition == 0


def test_a_trial_that_would_end_last_goes_ahead():
    desk = Desk(None, partitions=2, valid=0, trials=4, epochs=3)
    desk.schedule.join("w2", None)
    train(desk, "t4", 0, 1, seconds=9.0)
    desk.schedule.saved(VersionRef("t4", 2, 0), durable=False)
    timed(desk, 1, 1, 1)
    found = choice(desk)
    assert found.unit.trial == "t4" and found.unit.epoch == 2 and found.together == ()


@pytest.mark.parametrize("memory", [1, 2, 100])
def test_memory_limits_what_the_policy_wants(memory):
    desk = Desk(None, trials=4, epochs=3)
    found = choice(desk)
    fusion = Fusion(lambda config: None, memory=memory, size=1)
    units = companions(desk.schedule, desk.schedule.slots["w1"], found.unit, fusion, together=found.together)
    assert len(units) == min(memory, 4) - 1


def test_no_idle_worker():
    desk = Desk(None, trials=2)
    desk.start("w1", "t1", 0)
    assert fleet(desk.schedule, random.Random(0)) is None


def test_a_worker_that_can_take_nothing_is_passed_over():
    desk = Desk((0,), (1,), trials=1, valid=0, epochs=3)
    desk.train("w1", "t1", 0)
    # The model is on w1 alone, which has nothing left for it; w2 has.
    assert fleet(desk.schedule, random.Random(0)) is None
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    assert choice(desk) == Assignment("w2", Unit("t1", 1, 1), ())


# ------------------------------------------------------------------------------------------ decision by decision


@pytest.mark.parametrize(("share", "late"), [(10.0, None), (16.0, None), (17.0, "t1")])
def test_a_trial_is_late_if_one_more_group_would_make_it_the_last(share, late):
    """Three trials of 32 s each on two workers end after 48 s at the earliest."""
    schedule = shop_floor("slow", "slow2", trials=0)
    for number in (1, 2, 3):
        schedule.add(trial(number)).expected = 8.0
    able = [*schedule.trials.values()]
    found = _late(schedule, schedule.slots["slow"], able, share)
    assert (found.trial.id if found else None) == late


def test_a_trial_without_a_partner_is_late_even_if_the_workers_have_time():
    """Alone it takes longer than all trials take on average, and any delay is one of the whole search."""
    schedule = shop_floor("slow", "slow2", trials=2)
    found = _late(schedule, schedule.slots["slow"], [*schedule.trials.values()], 1.0)
    assert found is not None and found.trial.id == "t2"
    assert _late(schedule, schedule.slots["slow"], [schedule.trials["t1"]], 32.0) is None


def test_trials_with_devices_share_the_workers_that_have_as_many():
    desk = Desk(None, trials=3)
    schedule = desk.schedule
    for worker, devices in (("two", 2), ("pair", 2)):
        schedule.join(worker, None, devices)
    everyone = ["w1", "two", "pair"]
    workers, trials = _alike(schedule, schedule.slots["two"])
    assert (workers, [each.trial.id for each in trials]) == (everyone, ["t1", "t2", "t3"])
    schedule.allocated = True
    for name, devices in (("t1", 1), ("t2", 2), ("t3", 2)):
        schedule.allocations.grant(desk[name], devices, 2)
    workers, trials = _alike(schedule, schedule.slots["two"])
    assert (workers, [each.trial.id for each in trials]) == (["two", "pair"], ["t2", "t3"])
    workers, trials = _alike(schedule, schedule.slots["w1"])
    assert (workers, [each.trial.id for each in trials]) == (["w1"], ["t1"])


class TestRows:
    def rows(self, desk: Desk, epoch: int, *names: str) -> int:
        return _rows(desk.schedule, desk.schedule.slots["w1"], epoch, [desk[name] for name in names])

    def test_rows_that_trials_of_an_earlier_epoch_have_visited_are_not_prepared(self):
        desk = Desk(None, None, valid=0, trials=2, epochs=9)
        train(desk, "t1", 0, 1)
        desk.train("w1", "t2", 1)
        desk.schedule.slots["w1"].warm = None
        # t2 has visited partition 1 in the first epoch; t1 begins the second.
        assert self.rows(desk, 2, "t1") == 0
        assert self.rows(desk, 1, "t2") == 0

    def test_rows_that_most_trials_owe_come_first(self):
        desk = Desk(None, None, partitions=2, valid=0, trials=3, epochs=9)
        desk.train("w1", "t1", 0)
        desk.train("w1", "t2", 1)
        desk.schedule.slots["w1"].warm = None
        assert self.rows(desk, 1, "t1", "t3") == 1
        assert self.rows(desk, 1, "t2", "t3") == 0

    def test_only_training_in_the_same_epoch_prepares_rows_elsewhere(self):
        desk = Desk(None, None, valid=1, trials=3, epochs=9)
        desk.train("w2", "t3", 0, 1)
        desk.start("w2", "t3", 0, evaluate=True)
        assert self.rows(desk, 1, "t1") == 0
        desk.schedule.finish("w2", desk.schedule.slots["w2"].unit, 1.0, {})
        desk.schedule.end_epoch("t3")
        desk.start("w2", "t3", 0)  # in the second epoch
        assert self.rows(desk, 1, "t1") == 0
        desk.schedule.give_up("w2", "t3")
        desk.start("w2", "t2", 0)
        assert self.rows(desk, 1, "t1") == 1
