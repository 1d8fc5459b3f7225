"""Which worker gets which partition."""

from __future__ import annotations

from hopfleet.domain.trial import Trial
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.placement import lost, placements
from hopfleet.scheduler.schedule import Schedule


def schedule_of(*workers, rows=(1, 1, 1, 1), trials=1):
    schedule = Schedule(len(rows), 0, Estimates(rows))
    for number, readable in enumerate(workers, 1):
        schedule.join(f"w{number}", readable)
    for number in range(trials):
        schedule.add(Trial(f"t{number}", number, {}, 0, 1))
    return schedule


def test_all_is_well():
    schedule = schedule_of((0, 1), (2, 3))
    assert lost(schedule, ()) == []
    assert list(placements(schedule, (), ())) == []


def test_lost_partitions_are_shared_out():
    schedule = schedule_of((0,), (1,))
    assert lost(schedule, ()) == [2, 3]
    assert list(placements(schedule, (), ())) == [("w1", 2), ("w2", 3)]


def test_the_largest_goes_first_and_to_whoever_has_the_least():
    schedule = schedule_of((0,), (1,), rows=(4, 1, 2, 4))
    assert list(placements(schedule, (), ())) == [("w2", 3), ("w1", 2)]


def test_what_is_shared_weighs_less():
    schedule = schedule_of((0, 1), (0, 1), (2,))
    assert list(placements(schedule, (), ())) == [("w1", 3)]
    schedule = schedule_of((0, 1), (0, 1), (2,), rows=(1, 1, 0.5, 1))
    assert list(placements(schedule, (), ())) == [("w3", 3)]


def test_a_slow_worker_gets_less():
    schedule = schedule_of((0,), (1,), trials=2)
    for trial in ("t0", "t1"):
        for _ in range(20):
            schedule.estimates.measured(trial, 0, "w1", 0, 8.0)
            schedule.estimates.measured(trial, 0, "w2", 1, 1.0)
    assert schedule.estimates.slowness("w1") > 2 * schedule.estimates.slowness("w2")
    assert list(placements(schedule, (), ())) == [("w2", 2), ("w2", 3)]


def test_nobody_is_asked_twice_for_what_he_refused():
    schedule = schedule_of((0,), (1,))
    assert list(placements(schedule, (), {("w1", 2), ("w2", 3)})) == [("w2", 2), ("w1", 3)]
    assert list(placements(schedule, (), {("w1", 2), ("w2", 2)})) == [("w1", 3)]


def test_what_is_coming_is_not_asked_for_again():
    schedule = schedule_of((0,), (1,))
    assert lost(schedule, [("w1", 2)]) == [3]
    assert list(placements(schedule, [("w1", 2)], ())) == [("w2", 3)]


def test_what_no_trial_needs_is_not_missed():
    assert lost(schedule_of((0,), trials=0), ()) == []


def test_newcomers_help_those_who_have_the_most_to_do():
    schedule = schedule_of((0,), (1, 2), (3,), ())
    assert list(placements(schedule, (), ())) == [("w4", 1), ("w4", 2)]
    assert list(placements(schedule, (), {("w4", 1)})) == [("w4", 2)]
    schedule = schedule_of((0, 1), (2, 3), (), ())
    assert list(placements(schedule, (), ())) == [("w3", 0), ("w3", 1), ("w4", 2), ("w4", 3)]
    assert list(placements(schedule, [("w3", 0)], ())) == [("w4", 2), ("w4", 3)]


def test_who_can_read_everything_or_is_about_to_go_is_left_alone():
    schedule = schedule_of(None, (0,))
    assert list(placements(schedule, (), ())) == []
    schedule.retire("w1")
    assert list(placements(schedule, [("w1", 1)], ())) == [("w2", 2), ("w2", 3)]
