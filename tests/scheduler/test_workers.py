"""Workers join, leave, retire and make room for teams: what the schedule counts meanwhile."""

from __future__ import annotations

import pytest

from hopfleet.domain.placement import TeamShape
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.invariants import validate
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.progress import Save
from hopfleet.scheduler.schedule import Schedule
from tests.helpers.schedule_desk import Desk, trial


def names(found):
    return sorted(progress.trial.id for progress in found)


def test_a_new_schedule_has_no_workers_and_no_teams():
    schedule = Schedule(2, 1)
    assert (schedule.starting, schedule.regrouping, schedule.spare, schedule.devices) == (0, 0, 0, 0)
    assert (schedule.longest_seconds, schedule.evaluation_seconds, schedule.model_bytes) == (0.0, 0.0, 0)
    assert (schedule.epochs_begun, schedule.epochs_left, schedule.overspent) == (0, float("inf"), "")


def test_a_worker_has_one_device_unless_told():
    schedule = Schedule(2, 1)
    schedule.join("w1", None)
    assert schedule.devices == 1
    schedule.join("team", None, 4)
    assert schedule.devices == 5


def test_every_change_of_who_reads_what_is_counted():
    desk = Desk((0,), (1,))
    schedule, counted = desk.schedule, [desk.schedule.layouts]
    schedule.join("w3", (0,))
    counted.append(schedule.layouts)
    schedule.place("w3", 1)
    counted.append(schedule.layouts)
    schedule.retire("w3")
    counted.append(schedule.layouts)
    schedule.leave("w3")
    counted.append(schedule.layouts)
    desk.train("w1", "t1", 0)
    counted.append(schedule.layouts)
    assert counted == [2, 3, 4, 5, 6, 6]


def test_all_devices_make_room_for_teams():
    desk = Desk(None, None)
    schedule = desk.schedule
    schedule.join("w3", None, 3)
    schedule.retire("w1")
    schedule.retire("w2")
    assert schedule.regrouping == 0  # a person retired them: one is left
    schedule.retire("w3")
    assert schedule.regrouping == 5
    schedule.join("late", None, 2)
    assert schedule.regrouping == 5
    schedule.retire("late", for_teams=True)
    assert schedule.regrouping == 7
    for worker in ("w1", "w3", "late"):
        schedule.release(worker)
        schedule.leave(worker)
    assert schedule.regrouping == 7
    schedule.form_teams([TeamShape("ddp", 4), TeamShape("ddp", 2)])
    assert (schedule.regrouping, schedule.spare) == (0, 1)
    schedule.leave("w2")
    schedule.join("team", None, 6)
    assert (schedule.regrouping, schedule.devices) == (0, 7)


def test_some_workers_make_room_while_others_train_on():
    desk = Desk(None, None, None)
    schedule = desk.schedule
    schedule.spare = 1
    schedule.retire("w1", for_teams=True)
    schedule.retire("w2", for_teams=True)
    assert (schedule.regrouping, schedule.spare) == (3, 0)
    schedule.leave("w3")  # it was lost, and another will take its place
    assert schedule.regrouping == 3
    for worker in ("w1", "w2"):
        schedule.release(worker)
        schedule.leave(worker)
    assert schedule.under_way, "policies may wait for the team"
    schedule.form_teams([TeamShape("ddp", 2)])
    assert (schedule.regrouping, schedule.spare, schedule.forming) == (0, 1, 1)
    schedule.join("w4", None, 2)
    assert schedule.forming == 0 and not schedule.under_way and schedule.devices == 3


def test_no_device_is_spare_if_the_teams_have_as_many():
    desk = Desk(None)
    desk.schedule.retire("w1")
    desk.schedule.form_teams([TeamShape("ddp", 2)])
    assert desk.schedule.spare == 0


def test_a_device_that_is_lost_meanwhile_does_not_count():
    desk = Desk(None, None, None)
    for worker in ("w1", "w2", "w3"):
        desk.schedule.retire(worker)
    left = []
    for worker in ("w1", "w2", "w3"):  # none was told to go
        desk.schedule.leave(worker)
        left.append(desk.schedule.regrouping)
    assert left == [2, 1, 1]  # 0 would say that no teams are formed


def test_a_worker_without_teams_leaves():
    desk = Desk(None, None)
    desk.schedule.leave("w1")
    assert desk.schedule.regrouping == 0


def test_trials_are_compared_by_their_times_on_the_first_worker():
    schedule = Schedule(2, 0, Estimates([1, 3], lambda number, worker, partition: number * (1 + partition)))
    schedule.add(trial(1))
    schedule.add(trial(2))
    assert [schedule.trials[name].expected for name in ("t1", "t2")] == [None, None]
    schedule.join("w1", None)
    assert [schedule.trials[name].expected for name in ("t1", "t2")] == [1.5, 3.0]
    assert names([schedule.longest(schedule.slots["w1"])]) == ["t2"]
    schedule.trials["t1"].expected = 7.0
    schedule.join("w2", None)
    assert schedule.trials["t1"].expected == 7.0
    schedule.leave("w1")
    schedule.leave("w2")
    schedule.join("w3", None)
    assert schedule.trials["t1"].expected == 1.5


def test_a_placed_partition_is_read_where_it_was_not():
    desk = Desk((0,), (1,))
    for worker, partition in (("w1", 0), ("w2", 1)):
        with pytest.raises(AssertionError):
            desk.schedule.place(worker, partition)
    desk.schedule.join("w3", None)
    with pytest.raises(AssertionError):
        desk.schedule.place("w3", 0)


def test_who_shared_a_queue_does_so_no_longer_after_placing():
    """A worker that is given a partition takes other trials than those that read what it read before."""
    desk = Desk((0,), (1,), partitions=3, trials=2, valid=0)
    desk.train("w2", "t2", 1)
    desk.schedule.saved(VersionRef("t2", 1, 0), durable=False)
    desk.train("w1", "t1", 0)
    desk.schedule.place("w1", 2)
    desk.schedule.join("w4", (0,))
    validate(desk.schedule)
    slots = desk.schedule.slots
    assert [names(desk.schedule.able(slots[worker])) for worker in ("w1", "w2", "w4")] == [["t1", "t2"], [], ["t2"]]
    desk.schedule.leave("w4")
    desk.schedule.leave("w1")
    validate(desk.schedule)


def test_the_newest_saves_of_a_worker():
    desk = Desk(None, None, trials=3)
    for name in ("t1", "t2", "t3"):
        desk.train("w1", name, 0)
    save = desk.schedule.save
    save("t1", 1, Save(1, False, "w1"))
    save("t1", 2, Save(1, True, "w1"))
    save("t1", 3, Save(1, True, "w2"))
    save("t2", 4, Save(1, True, "w1"))
    save("t3", 5, Save(1, True, "w2"))
    saved_by = desk.schedule.saved_by
    assert [(progress.trial.id, found) for progress, found in saved_by("w1")] == [
        ("t1", Save(1, True, "w1")), ("t2", Save(1, True, "w1"))
    ]  # fmt: skip
    desk.schedule.delay(VersionRef("t1", 1, 1), on_node=False)
    assert names(progress for progress, _ in saved_by("w1")) == ["t2"]
    assert names(progress for progress, _ in saved_by("w2")) == ["t1", "t3"]


def test_a_retired_worker_finishes_and_is_not_idle_again():
    desk = Desk(None, None)
    desk.start("w1", "t1", 0)
    desk.schedule.retire("w1")
    desk.schedule.finish("w1", Unit("t1", 1, 0), 1.0, {})
    assert list(desk.schedule.idle) == ["w2"]
    assert longest_remaining(desk.schedule, None) is None  # only w1 has the model


def test_a_worker_is_kept_while_a_trial_may_go_on_there():
    desk = Desk((0, 1), (2,), partitions=3, trials=2)
    schedule, slots = desk.schedule, desk.schedule.slots
    assert schedule.keeps(slots["w1"]) is False
    desk.start("w1", "t1", 0)
    assert schedule.keeps(slots["w1"]) is True  # 1 comes next
    schedule.finish("w1", Unit("t1", 1, 0), 1.0, {})
    desk.start("w1", "t1", 1)
    assert schedule.keeps(slots["w1"]) is False  # 2 is elsewhere


def test_a_flotilla_is_kept_if_any_of_it_may_go_on():
    desk = Desk((0, 1), (2,), partitions=3, trials=2)
    desk.train("w1", "t1", 1)
    for number, name in enumerate(("t1", "t2"), 1):
        desk.schedule.start("w1", Unit(name, 1, 0), number, 1)
    assert desk.schedule.keeps(desk.schedule.slots["w1"])
    desk.schedule.abandon("w1", "t2")
    assert not desk.schedule.keeps(desk.schedule.slots["w1"])


def test_a_team_that_joins_is_no_longer_forming():
    schedule = Schedule(2, 1)
    schedule.forming = 3
    counted = []
    for number in range(4):
        schedule.join(f"w{number}", None)
        counted.append(schedule.forming)
    assert counted == [2, 1, 0, 0]


def test_a_worker_that_retires_reads_for_no_other_trial_and_is_counted_once():
    schedule = Desk((0, 1), (0,)).schedule
    assert [schedule.replicas(partition) for partition in (0, 1)] == [2, 1]
    schedule.retire("w2")
    assert [schedule.replicas(partition) for partition in (0, 1)] == [1, 1]
    schedule.leave("w2")
    assert [schedule.replicas(partition) for partition in (0, 1)] == [1, 1]
    schedule.leave("w1")
    assert [schedule.replicas(partition) for partition in (0, 1)] == [0, 0]


def test_devices_of_a_worker_that_is_lost_before_it_is_told_to_go_make_no_team():
    schedule = Desk(None, None, None).schedule
    for worker in ("w1", "w2"):
        schedule.retire(worker, for_teams=True)
        assert schedule.slots[worker].for_teams
    schedule.retire("w3")
    assert not schedule.slots["w3"].for_teams and schedule.regrouping == 2
    schedule.leave("w1")
    assert schedule.regrouping == 1
    schedule.leave("w3")
    assert schedule.regrouping == 1


def test_the_reason_why_a_unit_is_given_up_is_kept_until_it_ends():
    desk = Desk(None)
    desk.start("w1", "t1", 0)
    desk.schedule.mark_overdue("w1", "too slow")
    assert desk.schedule.slots["w1"].overdue == "too slow"
    desk.schedule.abandon("w1", "t1")
    assert desk.schedule.slots["w1"].overdue == ""


def test_a_partition_is_placed_once_on_a_worker_that_does_not_read_all():
    schedule = Schedule(2, 3)
    schedule.join("some", (0,), valid=(0,))
    schedule.join("all", None)
    for worker in ("some", "all"):
        with pytest.raises(AssertionError):
            schedule.place(worker, 0)
        with pytest.raises(AssertionError):
            schedule.place_valid(worker, 0)


def test_times_of_teams_are_expected_by_their_speed():
    """A trial is compared with others by its time on one device, whichever worker joined first."""
    schedule = Schedule(1, 0, Estimates([1], lambda number, worker, partition: 8.0))
    schedule.speed = lambda devices: devices / 2
    schedule.join("team", None, 8)
    progress = schedule.add(trial(1))
    assert schedule.expected(progress, "team", 0) == 2.0
    assert progress.expected == 2.0 * 4


def test_chained_trials_are_those_that_others_follow():
    schedule = Schedule(2, 1)
    assert schedule.add(trial(1)).onward == 0 and not schedule.chained
    assert schedule.add(trial(2), onward=1).onward == 1 and schedule.chained
    schedule.resume("t2", 3)
    assert schedule.trials["t2"].onward == 0
