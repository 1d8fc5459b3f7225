"""The checkers catch what they are there to catch."""

from __future__ import annotations

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import InvariantBroken
from hopfleet.scheduler.invariants import stall, validate, validate_history
from hopfleet.scheduler.progress import Outcome, Saved
from tests.helpers.schedule_desk import Desk, trial


def visit_twice(desk):
    desk["t1"].visits.append(0)


def run_unclaimed(desk):
    desk.schedule.slots["w2"].units = {Unit("t1", 1, 1): 9}


def train_and_evaluate(desk):
    desk["t1"].trains_on = "w1"
    desk["t1"].evaluates_on = {0: "w2"}
    for worker in ("w1", "w2"):
        desk.schedule.slots[worker].units = {Unit("t1", 1, 1): 9}


def forget_ready(desk):
    desk.schedule.ready.clear()


def save_the_future(desk):
    desk["t1"].saved.update({1: Saved(2, True), 7: Saved(1, True)})


def forget_an_evaluation(desk):
    desk.train("w1", "t1", 1)
    validate(desk.schedule)
    desk.schedule.awaiting.clear()


def evaluate_too_early(desk):
    desk.schedule.awaiting["t1"] = desk["t1"]


def forget_todo(desk):
    desk["t1"].todo.clear()


def forget_idle(desk):
    del desk.schedule.idle["w1"]


def keep_lost_idle(desk):
    desk.schedule.idle["w9"] = desk.schedule.slots["w1"]


def forget_a_place(desk):
    desk.schedule._ready.remove("t1")


def speed_up_unnoticed(desk):
    desk.schedule.add(trial(2, epochs=1))
    desk["t1"].seconds = 0.1


def miscount(desk):
    desk.schedule.owed[0] += 1


def lose_rows(desk):
    desk.start("w1", "t1", 1)
    desk.schedule.slots["w1"].partitions = frozenset()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (visit_twice, "completeness: a partition twice in one epoch"),
        (run_unclaimed, "isolation: workers and trial disagree on what runs"),
        (train_and_evaluate, "isolation: trained while evaluated"),
        (forget_ready, "ready is out of date"),
        (save_the_future, "a version from the future"),
        (forget_an_evaluation, "awaiting is out of date"),
        (evaluate_too_early, "awaiting is out of date"),
        (forget_todo, "todo is out of date"),
        (forget_idle, "exclusive access: idle is out of date"),
        (keep_lost_idle, "a lost worker is idle"),
        (forget_a_place, "able is out of date"),
        (speed_up_unnoticed, "longest is out of date"),
        (miscount, "owed is out of date"),
        (lose_rows, "completeness: a worker cannot read its partition"),
    ],
)
def test_spoilt_schedules(spoil, message):
    desk = Desk(None, None)
    desk.train("w1", "t1", 0)
    validate(desk.schedule)
    spoil(desk)
    with pytest.raises(InvariantBroken, match=message):
        validate(desk.schedule)


ADDED = [m.TrialAdded("t1", 0, {}, 0, 2), m.TrialAdded("t2", 1, {}, 0, 2)]


def unit(trial, epoch, partition, version, started, *, worker="w1", seconds=1.0):
    return m.UnitFinished(worker, Unit(trial, epoch, partition), 0, version, started, started + seconds)


def evaluated(worker, started):
    return m.UnitFinished(worker, Unit("t1", 1, 0, Work.EVALUATE), 0, 0, started, started + 1)


def joined(partitions, valid):
    return m.WorkerJoined("w1", partitions=partitions, valid=valid)


def started(partition, work=Work.TRAIN):
    return m.RunUnit("w1", Unit("t1", 1, partition, work), 0, VersionRef("t1", 0, None))


def failed(worker, started, work=Work.TRAIN):
    return m.UnitFailed(worker, Unit("t1", 1, 0, work), 0, started, started + 1, "error")


def sailed(first, second):
    """A flotilla of two trials on w1, each from one second to another."""
    messages = []
    for number, (begins, ends) in enumerate((first, second), 1):
        model, done = VersionRef(f"t{number}", 0, None), Unit(f"t{number}", 1, 0)
        messages.append(m.RunUnit("w1", done, number, model, flotilla=1))
        messages.append(m.UnitFinished("w1", done, number, 1, begins, ends))
    return messages


@pytest.mark.parametrize(
    "history",
    [
        [],
        [unit("t1", 1, 0, 1, 0), unit("t1", 1, 1, 2, 1), unit("t1", 2, 1, 3, 2, worker="w2")],
        [unit("t1", 1, 0, 1, 0), m.TrialRolledBack("t1", 0), unit("t1", 1, 0, 1, 1)],
        [unit("t1", 1, 0, 1, 0), failed("w2", 0, Work.EVALUATE), evaluated("w3", 0)],
        [unit("t1", 1, 0, 1, 0), unit("t2", 1, 0, 1, 0, worker="w2")],
        [unit("t1", 1, 0, 1, 0), m.RunStarted("x"), unit("t1", 1, 1, 2, 0.5)],
        [joined((0,), None), started(0), started(1, Work.EVALUATE)],
        [joined(None, (0,)), started(1), m.PartitionPlaced("w1", 1, valid=True), started(1, Work.EVALUATE)],
        [joined((0,), (0,)), joined(None, None), started(1), started(1, Work.EVALUATE)],
        [joined((0,), (0,)), m.RunStarted("x"), started(1)],
        [*sailed((1, 3), (2, 4)), evaluated("w1", 0), evaluated("w1", 4)],
        [*sailed((1, 3), (1, 3)), m.RunStarted("x"), evaluated("w1", 2)],
    ],
)
def test_good_histories(history):
    validate_history([m.RunStarted("x"), *ADDED, *history], 2)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([unit("t1", 1, 0, 2, 0)], "completeness: a version is missing or double: t1 version 2"),
        ([unit("t1", 2, 0, 1, 0)], "completeness: wrong epoch"),
        ([unit("t1", 1, 0, 1, 0), unit("t1", 1, 1, 2, 1), unit("t1", 1, 0, 3, 2)], "completeness: wrong epoch"),
        ([unit("t1", 1, 0, 1, 0), unit("t1", 1, 0, 2, 1)], "completeness: a partition twice in one epoch"),
        ([unit("t1", 1, 0, 1, 0), unit("t1", 1, 1, 2, 0.5, worker="w2")], "isolation: two units at once on t1"),
        ([unit("t1", 1, 0, 1, 0), failed("w2", 0.5)], "isolation: two units at once on t1"),
        ([unit("t1", 1, 0, 1, 0), unit("t2", 1, 0, 1, 0.5)], "exclusive access: two units at once on w1"),
        ([unit("t1", 1, 0, 1, 0), evaluated("w1", 0.5)], "exclusive access: two units at once on w1"),
        ([unit("t1", 1, 0, 1, 0), failed("w2", 0.5), m.RunStarted("x")], "isolation: two units at once on t1"),
        ([*sailed((2, 3), (1, 3)), evaluated("w1", 0.5)], "exclusive access: two units at once on w1"),
        ([*sailed((1, 2), (2, 3)), evaluated("w1", 0.5)], "exclusive access: two units at once on w1"),
        ([*sailed((1, 3), (1, 2)), evaluated("w1", 2.5)], "exclusive access: two units at once on w1"),
        ([joined((0,), None), started(1)], "completeness: w1 cannot read: t1 trains on partition 1"),
        (
            [joined(None, (0,)), started(1, Work.EVALUATE)],
            "completeness: w1 cannot read: t1 is evaluated on partition 1",
        ),
    ],
)
def test_bad_histories(history, message):
    with pytest.raises(InvariantBroken, match=message):
        validate_history([*ADDED, *history], 2)


def test_a_trial_that_goes_on_where_it_is_was_told_two_units():
    desk = Desk(None, None, valid=0)
    desk.start("w1", "t1", 0)
    desk.schedule.start("w1", Unit("t1", 1, 1), 2, lookahead=True)
    validate(desk.schedule)


def test_workers_are_compared_with_the_trials_that_have_their_devices():
    desk = Desk(None, trials=2)
    desk.schedule.join("pair", None, 2)
    desk.schedule.allocated = True
    for name, devices in (("t1", 1), ("t2", 2)):
        desk.schedule.allocations.grant(desk[name], devices, 2)
    validate(desk.schedule)


def test_a_stall_is_described_by_what_workers_read_and_trials_owe():
    desk = Desk((1, 0), None, trials=3, epochs=2, valid=2)
    desk.schedule.slots["w1"].valid = frozenset({1})
    desk.train("w2", "t1", 1)
    desk.train("w2", "t2", 0, 1)
    desk.start("w2", "t3", 0)
    desk.schedule.settle("t3", Outcome(TrialState.STOPPED, "slow"))
    told = stall(desk.schedule)
    assert "2 workers (w1 reads [0, 1], validation [1]; w2 reads all, validation all), 3 trials (" in told
    assert "t1 owes [0] of epoch 1/2, version 1 held by w2, saved [], ready, to evaluate on []" in told
    assert "t2 owes [0, 1] of epoch 2/2, version 2 held by w2, saved [], not ready, to evaluate on [0, 1]" in told
    assert "reason='slow'" in told
