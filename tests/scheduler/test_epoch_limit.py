"""A limit on the epochs that all trials together may begin."""

from __future__ import annotations

from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.scheduler.invariants import validate
from hopfleet.scheduler.progress import Outcome
from tests.helpers.schedule_desk import Desk


def limited(limit, **options):
    desk = Desk(None, None, valid=0, trials=3, **options)
    desk.schedule.epoch_limit = limit
    return desk


def test_epochs_are_counted_when_their_first_unit_starts():
    desk = limited(3)
    left = [desk.schedule.epochs_left]
    for worker, name, partition in (("w1", "t1", 0), ("w1", "t1", 1), ("w1", "t2", 0)):
        desk.train(worker, name, partition)
        left.append(desk.schedule.epochs_left)
        if name == "t1" and partition:
            desk.schedule.end_epoch("t1")
    assert left == [3, 2, 2, 1]
    assert (desk.schedule.epochs_begun, desk.schedule.overspent) == (2, "")


def test_nobody_begins_an_epoch_when_the_limit_is_reached():
    desk = limited(2)
    desk.train("w1", "t1", 0)
    assert sorted(desk.schedule.ready) == ["t1", "t2", "t3"]
    desk.start("w2", "t2", 0)
    assert list(desk.schedule.ready) == ["t1"]
    assert desk.schedule.overspent == "the budget of 2 epochs is spent"
    desk.train("w1", "t1", 1)
    desk.schedule.end_epoch("t1")
    validate(desk.schedule)
    assert not desk.schedule.ready
    assert not desk.schedule.may_train(desk["t1"])


def test_more_may_have_begun_than_a_lower_limit_allows():
    desk = limited(None)
    for name in ("t1", "t2"):
        desk.train("w1", name, 0)
    desk.schedule.epoch_limit = 1
    assert (desk.schedule.epochs_left, desk.schedule.overspent) == (0, "the budget of 1 epochs is spent")
    assert [desk.schedule.may_train(desk[name]) for name in ("t1", "t2", "t3")] == [True, True, False]


def test_one_epoch_is_left_for_one_trial():
    desk = limited(1)
    assert sorted(desk.schedule.ready) == ["t1", "t2", "t3"]
    assert all(desk.schedule.may_train(desk[name]) for name in ("t1", "t2", "t3"))
    units = [Unit("t1", 1, 0), Unit("t2", 1, 0), Unit("t3", 1, 0, Work.EVALUATE)]
    assert desk.schedule.affordable(units) == [units[0], units[2]]


def test_evaluations_begin_no_epoch():
    desk = limited(1)
    units = [Unit("t2", 1, 0, Work.EVALUATE), Unit("t1", 1, 0)]
    assert desk.schedule.affordable(units) == units


def test_units_of_epochs_that_have_begun_cost_nothing():
    desk = limited(2)
    desk.train("w1", "t1", 0)
    units = [Unit("t1", 1, 1), Unit("t2", 1, 1), Unit("t3", 1, 1)]
    assert desk.schedule.affordable(units) == units[:2]


def test_an_epoch_that_runs_again_is_not_begun_again():
    desk = limited(2)
    desk.train("w1", "t1", 0, 1)
    desk.schedule.end_epoch("t1")
    desk.train("w1", "t1", 0)
    assert desk.schedule.epochs_begun == 2
    desk.schedule.roll_back("t1", 0)
    assert not desk["t1"].begins_epoch
    assert list(desk.schedule.ready) == ["t1"]
    desk.train("w1", "t1", 0, 1, 0, 1)
    assert desk.schedule.epochs_begun == 2


def test_a_trial_begins_an_epoch_after_the_evaluation_of_the_last():
    desk = Desk(None)
    progress = desk["t1"]
    found = [progress.begins_epoch]
    desk.start("w1", "t1", 0)
    found.append(progress.begins_epoch)
    desk.schedule.finish("w1", Unit("t1", 1, 0), 1.0, {})
    found.append(progress.begins_epoch)
    desk.train("w1", "t1", 1)
    found.append(progress.begins_epoch)  # its evaluation comes first
    desk.schedule.end_epoch("t1")
    found.append(progress.begins_epoch)
    assert found == [True, False, False, False, True]


def test_a_stopped_trial_trains_again_what_was_lost_although_nothing_is_left():
    desk = limited(1)
    desk.train("w1", "t1", 0, 1)
    desk.schedule.end_epoch("t1")
    desk.schedule.settle("t1", Outcome(TrialState.STOPPED))
    desk.schedule.roll_back("t1", 1)
    assert list(desk.schedule.ready) == ["t1"]
