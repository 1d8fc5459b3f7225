"""Which worker gets which partition."""

from __future__ import annotations

from hopfleet.domain.trial import Trial, TrialState
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.placement import Place, lost, lost_valid, placements
from hopfleet.scheduler.progress import Outcome
from hopfleet.scheduler.schedule import Schedule


def schedule_of(*workers, rows=(1, 1, 1, 1), trials=1, valid=()):
    schedule = Schedule(len(rows), 3 if valid else 0, Estimates(rows))
    for number, readable in enumerate(workers or [None] * len(valid), 1):
        schedule.join(f"w{number}", readable, valid=valid[number - 1] if valid else None)
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
    assert list(placements(schedule, (), ())) == [Place("w1", 2), Place("w2", 3)]


def test_the_largest_goes_first_and_to_whoever_has_the_least():
    schedule = schedule_of((0,), (1,), rows=(4, 1, 2, 4))
    assert list(placements(schedule, (), ())) == [Place("w2", 3), Place("w1", 2)]


def test_what_is_shared_weighs_less():
    schedule = schedule_of((0, 1), (0, 1), (2,))
    assert list(placements(schedule, (), ())) == [Place("w1", 3)]
    schedule = schedule_of((0, 1), (0, 1), (2,), rows=(1, 1, 0.5, 1))
    assert list(placements(schedule, (), ())) == [Place("w3", 3)]


def test_a_slow_worker_gets_less():
    schedule = schedule_of((0,), (1,), trials=2)
    for trial in ("t0", "t1"):
        for _ in range(20):
            schedule.estimates.measured(trial, 0, "w1", 0, 8.0)
            schedule.estimates.measured(trial, 0, "w2", 1, 1.0)
    assert schedule.estimates.slowness("w1") > 2 * schedule.estimates.slowness("w2")
    assert list(placements(schedule, (), ())) == [Place("w2", 2), Place("w2", 3)]


def test_nobody_is_asked_twice_for_what_he_refused():
    schedule = schedule_of((0,), (1,))
    assert list(placements(schedule, (), {Place("w1", 2), Place("w2", 3)})) == [Place("w2", 2), Place("w1", 3)]
    assert list(placements(schedule, (), {Place("w1", 2), Place("w2", 2)})) == [Place("w1", 3)]


def test_what_is_coming_is_not_asked_for_again():
    schedule = schedule_of((0,), (1,))
    assert lost(schedule, [Place("w1", 2)]) == [3]
    assert list(placements(schedule, [Place("w1", 2)], ())) == [Place("w2", 3)]


def test_what_no_trial_needs_is_not_missed():
    assert lost(schedule_of((0,), trials=0), ()) == []


def test_newcomers_help_those_who_have_the_most_to_do():
    schedule = schedule_of((0,), (1, 2), (3,), ())
    assert list(placements(schedule, (), ())) == [Place("w4", 1), Place("w4", 2)]
    assert list(placements(schedule, (), {Place("w4", 1)})) == [Place("w4", 2)]
    schedule = schedule_of((0, 1), (2, 3), (), ())
    assert list(placements(schedule, (), ())) == [Place("w3", 0), Place("w3", 1), Place("w4", 2), Place("w4", 3)]
    assert list(placements(schedule, [Place("w3", 0)], ())) == [Place("w4", 2), Place("w4", 3)]


def test_who_can_read_everything_or_is_about_to_go_is_left_alone():
    schedule = schedule_of(None, (0,))
    assert list(placements(schedule, (), ())) == []
    schedule.retire("w1")
    assert list(placements(schedule, [Place("w1", 1)], ())) == [Place("w2", 2), Place("w2", 3)]


def test_validation_partitions_of_no_worker_go_to_those_with_the_fewest():
    assert list(placements(schedule_of(valid=[(0,), (1, 2)]), (), ())) == []
    schedule = schedule_of(valid=[(0,), ()])
    assert lost_valid(schedule, ()) == [1, 2]
    assert list(placements(schedule, (), ())) == [Place("w2", 1, True), Place("w1", 2, True)]
    assert list(placements(schedule, (), {Place("w2", 1, True)})) == [Place("w1", 1, True), Place("w2", 2, True)]
    assert list(placements(schedule, [Place("w1", 1, True)], ())) == [Place("w2", 2, True)]
    assert lost_valid(schedule, [Place("w1", 1), Place("w2", 2, True)]) == [1], "a training partition is another one"


def test_a_slow_worker_gets_fewer_validation_partitions():
    schedule = schedule_of((0, 1), (2, 3), trials=2, valid=[(), (0,)])
    for trial in ("t0", "t1"):
        for _ in range(20):
            schedule.estimates.measured(trial, 0, "w1", 0, 1.0)
            schedule.estimates.measured(trial, 0, "w2", 2, 8.0)
    assert list(placements(schedule, (), ())) == [Place("w1", 1, True), Place("w1", 2, True)]


def test_workers_that_can_read_all_validation_data_are_enough_unless_they_retire():
    schedule = schedule_of((0, 1, 2, 3), (), valid=[None, (0,)])
    schedule.retire("w1")
    schedule.join("w3", None, valid=range(3))
    assert lost_valid(schedule, ()) == []
    schedule.retire("w3")
    assert lost_valid(schedule, [Place("w3", 1, True)]) == [1, 2]


def test_nothing_is_evaluated_for_trials_that_end():
    schedule = schedule_of(valid=[(0,)])
    schedule.settle("t0", Outcome(TrialState.STOPPED))
    assert lost_valid(schedule, ()) == []


def test_metrics_over_the_whole_set_bring_all_validation_data_to_every_worker():
    schedule = schedule_of(valid=[(0, 1), (1,), (2,)])
    schedule.gathers = True
    assert lost_valid(schedule, ()) == [2], "one worker lacks one partition"
    everywhere = [Place(*each, True) for each in (("w2", 0), ("w3", 0), ("w3", 1), ("w1", 2), ("w2", 2))]
    assert sorted(placements(schedule, (), ())) == sorted(everywhere)
    assert list(placements(schedule, everywhere[:4], {everywhere[4]})) == []
    assert lost_valid(schedule, everywhere) == []
    schedule.leave("w1"), schedule.leave("w2"), schedule.leave("w3")
    assert lost_valid(schedule, ()) == [0, 1, 2]


def test_a_partition_that_comes_for_evaluations_is_not_there_for_training():
    schedule = schedule_of((0, 1), (3,), valid=((0,), (1, 2)))
    assert lost(schedule, [Place("w1", 2, valid=True)]) == [2]
    assert lost(schedule, [Place("w1", 2)]) == []


def test_one_trial_that_trains_on_is_enough_to_need_its_evaluations():
    schedule = schedule_of((0, 1, 2, 3), trials=2, valid=((0, 1),))
    schedule.settle("t0", Outcome(TrialState.STOPPED))
    assert lost_valid(schedule, ()) == [2]
    schedule.settle("t1", Outcome(TrialState.STOPPED))
    assert lost_valid(schedule, ()) == []
