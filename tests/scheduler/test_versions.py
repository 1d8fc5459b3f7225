"""Saves, loans, losses and the ends of trials: what the schedule knows of versions and files."""

from __future__ import annotations

import pytest

from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Parent, Trial, TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.dispatch import next_assignment
from hopfleet.scheduler.invariants import validate
from hopfleet.scheduler.progress import Outcome, Save, Saved, Setback
from tests.helpers.schedule_desk import Desk

SUMS = {"train_loss": RowSum.of(1.0, 1)}


# ------------------------------------------------------------------------------------------------- saves


def test_a_save_may_replace_others():
    desk = Desk(None)
    desk.train("w1", "t1", 0)
    desk.schedule.save("t1", 1, Save(1, False, "w1", waits=True))
    desk.schedule.save("t1", 2, Save(1, False, "w1"))
    desk.schedule.save("t1", 3, Save(1, True, "w1"), replaces=[1])
    assert list(desk["t1"].saves) == [2, 3]


def test_who_asks_for_a_save_is_told_only_of_those_that_will_do():
    desk = Desk(None)
    desk.train("w1", "t1", 0)
    told = desk["t1"].told
    desk.schedule.save("t1", 1, Save(1, True, "w1", waits=True))
    assert [told(1, durable=True), told(1, durable=True, waits=True), told(0, durable=True, waits=True)] == [
        False, True, False
    ]  # fmt: skip
    desk.schedule.save("t1", 2, Save(1, False, "w1"))
    assert [told(1, durable=False), told(1, durable=True)] == [True, False]


def test_a_delayed_save_has_begun_and_waits_for_the_disk():
    desk = Desk(None)
    desk.train("w1", "t1", 0)
    desk.schedule.save("t1", 4, Save(1, True, "w1", waits=True))
    desk.schedule.delay(VersionRef("t1", 1, 4), on_node=False)
    assert desk["t1"].saves == {4: Save(1, True, "w1", waits=False)}
    assert desk.schedule.delayed == {4: "w1"}
    desk.schedule.saved(VersionRef("t1", 1, 4), durable=True)
    assert (desk["t1"].saves, desk.schedule.delayed) == ({}, {})


def test_a_save_whose_file_is_on_its_node_goes_on_until_the_file_is_in_the_storage():
    desk = Desk(None)
    desk.train("w1", "t1", 0)
    desk.schedule.save("t1", 4, Save(1, True, "w1", waits=True))
    desk.schedule.saved(VersionRef("t1", 1, 4), durable=False)
    assert (desk["t1"].saves, desk["t1"].saved) == ({4: Save(1, True, "w1")}, {1: Saved(4, False)})
    desk.schedule.saved(VersionRef("t1", 1, 4), durable=True)
    assert (desk["t1"].saves, desk["t1"].saved) == ({}, {1: Saved(4, True)})


@pytest.mark.parametrize(
    ("first", "second", "kept", "stale"),
    [
        (Saved(1, False), Saved(2, False), 2, 1),
        (Saved(1, False), Saved(2, True), 2, 1),
        (Saved(1, True), Saved(2, True), 2, 1),
        (Saved(1, True), Saved(2, False), 1, 2),
    ],
)
def test_the_more_durable_file_then_the_newer_one_is_the_version(first, second, kept, stale):
    desk = Desk(None)
    desk.train("w1", "t1", 0)
    for saved in (first, second):
        desk.schedule.saved(VersionRef("t1", 1, saved.attempt), saved.durable)
    assert desk["t1"].saved[1].attempt == kept
    assert desk["t1"].stale == [(1, stale)]


def test_a_save_forgives_earlier_ones():
    desk = Desk(None)
    desk.train("w1", "t1", 0)
    assert desk.schedule.blame("t1", Setback.SAVE, "gone") == ["gone"]
    assert desk.schedule.blame("t1", Setback.SAVE, "again") == ["gone", "again"]
    desk.schedule.blame("t1", Setback.LOAD, "bad")
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    assert desk["t1"].setbacks == {Setback.LOAD: ["bad"]}


def test_a_new_run_has_no_saves_and_holds_no_earlier_trouble_against_them():
    desk = Desk(None, trials=2)
    for number, name in enumerate(("t1", "t2")):
        desk.train("w1", name, 0)
        desk.schedule.save(name, number, Save(1, True, "w1"))
        for setback in Setback:
            desk.schedule.blame(name, setback, "why")
    desk.schedule.delay(VersionRef("t2", 1, 1), on_node=False)
    desk.schedule.forget_saves()
    assert [desk[name].saves for name in ("t1", "t2")] == [{}, {}]
    assert not desk.schedule.delayed
    assert [desk[name].setbacks for name in ("t1", "t2")] == [{Setback.UNIT: ["why"]}] * 2


def test_the_best_version_is_being_saved():
    desk = Desk(None, valid=0)
    assert desk["t1"].saves_best is False
    desk.train("w1", "t1", 0, 1)
    desk.schedule.save("t1", 1, Save(2, True, "w1"))
    assert desk["t1"].saves_best is False
    desk.schedule.end_epoch("t1", best=(2, (True, 0.5)))
    assert desk["t1"].saves_best is True
    desk.train("w1", "t1", 0)
    desk.schedule.save("t1", 2, Save(3, True, "w1"), replaces=[1])
    assert desk["t1"].saves_best is False


# ------------------------------------------------------------------------------------------------ losses


def test_an_intact_file_that_cannot_be_loaded_is_dropped_once():
    desk = Desk(None, None)
    desk.train("w1", "t1", 0)
    ref = VersionRef("t1", 1, 5)
    desk.schedule.saved(ref, durable=False)
    desk.schedule.lost(ref, "w2", intact=True)
    assert (desk["t1"].saved, desk["t1"].stale) == ({}, [(1, 5)])
    desk.schedule.lost(ref, "w2", intact=True)
    desk.schedule.lost(VersionRef("t1", 1, 6), "w2", intact=True)  # which no file belongs to
    desk.schedule.lost(VersionRef("t1", 1, None), "w2", intact=True)
    assert desk["t1"].stale == [(1, 5)]


def test_a_damaged_file_is_not_dropped_again():
    desk = Desk(None, None)
    desk.train("w1", "t1", 0)
    desk.schedule.saved(VersionRef("t1", 1, 5), durable=False)
    desk.schedule.save("t1", 1, Save(1, True, "w1"))
    desk.schedule.lost(VersionRef("t1", 1, 5), "w2")
    assert (desk["t1"].saved, desk["t1"].stale, list(desk["t1"].saves)) == ({}, [], [1])


def test_a_worker_that_gives_up_has_dropped_the_model():
    desk = Desk(None, None)
    desk.train("w1", "t1", 0)
    desk.start("w1", "t1", 1)
    desk.schedule.mark_overdue("w1", "too slow")
    desk.schedule.give_up("w1", "t1")
    validate(desk.schedule)
    assert (desk["t1"].holder, desk["t1"].trains_on, desk["t1"].todo) == (None, None, {1})
    assert desk.schedule.slots["w1"].overdue == ""


def test_a_worker_that_gives_up_leaves_the_model_of_another():
    desk = Desk(None, None)
    desk.train("w1", "t1", 0)
    desk.schedule.saved(VersionRef("t1", 1, 5), durable=False)
    desk.start("w2", "t1", 1)
    desk.schedule.give_up("w2", "t1")
    assert desk["t1"].holder == "w1"


def test_a_dropped_file_of_a_parked_trial_brings_nothing_back():
    desk = Desk(None, valid=0)
    desk.train("w1", "t1", 0, 1)
    desk.schedule.saved(VersionRef("t1", 2, 5), durable=True)
    desk.schedule.end_epoch("t1")
    desk.schedule.park("t1", TrialState.STOPPED)
    desk.schedule.dropped(VersionRef("t1", 2, 5))
    assert not desk.schedule.ready
    assert not list(desk.schedule.files())


# ----------------------------------------------------------------------------------------- ends of trials


def test_a_parked_trial_leaves_nothing_under_way():
    desk = Desk(None, trials=2)
    desk.train("w1", "t1", 0, 1)
    desk.schedule.save("t1", 3, Save(2, True, "w1"))
    desk.schedule.delay(VersionRef("t1", 2, 3), on_node=False)
    assert list(desk.schedule.awaiting) == ["t1"]
    desk.schedule.park("t1", TrialState.FAILED)
    validate(desk.schedule)
    parked = desk.schedule.parked["t1"]
    assert (parked.saves, parked.holder, desk.schedule.delayed, desk.schedule.awaiting) == ({}, None, {}, {})
    assert desk.schedule.find("t1") is parked
    desk.schedule.delete("t1")
    assert desk.schedule.find("t1") is None


def test_a_paused_trial_may_be_stopped_where_it_is():
    desk = Desk(None, valid=0)
    desk.train("w1", "t1", 0, 1)
    desk.schedule.end_epoch("t1")
    desk.schedule.park("t1", TrialState.PAUSED)
    desk.schedule.park("t1", TrialState.STOPPED)
    assert desk.schedule.parked["t1"].state is TrialState.STOPPED


def test_times_are_kept_for_a_trial_that_may_come_back():
    desk = Desk(None, valid=0, trials=3)
    for name, seconds in (("t1", 1.0), ("t2", 4.0), ("t3", 4.0)):
        desk.train("w1", name, 0, 1, seconds=seconds)
        desk.schedule.end_epoch(name)
    progress = desk["t1"]
    before = desk.schedule.expected(progress, "w1", 0)
    desk.schedule.park("t1", TrialState.PAUSED)
    assert desk.schedule.expected(progress, "w1", 0) == before == pytest.approx(1.0)
    desk.schedule.resume("t1", 2)
    desk.schedule.park("t1", TrialState.STOPPED)
    assert desk.schedule.expected(progress, "w1", 0) == pytest.approx(4.0)


def test_a_trial_that_goes_on_longer_owes_the_difference():
    desk = Desk(None, valid=0)
    assert desk.schedule.owed == [2, 2]
    desk.schedule.resume("t1", 5)
    assert (desk.schedule.owed, desk["t1"].units_left) == ([5, 5], 10)
    desk.train("w1", "t1", 0)
    desk.schedule.resume("t1", 3)
    assert desk.schedule.owed == [2, 3]
    validate(desk.schedule)


def test_a_resumed_trial_follows_its_order_and_has_no_outcome():
    desk = Desk(None, valid=0, epochs=1)
    desk.train("w1", "t1", 0, 1)
    desk.schedule.end_epoch("t1")
    desk.schedule.settle("t1", Outcome(TrialState.COMPLETED))
    desk.schedule.park("t1", TrialState.COMPLETED)
    desk.schedule.resume("t1", 2, order=(1, 0))
    validate(desk.schedule)
    assert desk["t1"].outcome is None
    assert list(desk.schedule.options(desk["t1"], desk.schedule.slots["w1"])) == []  # its model is nowhere
    desk.schedule.saved(VersionRef("t1", 2, 0), durable=True)
    assert list(desk.schedule.options(desk["t1"], desk.schedule.slots["w1"])) == [1]
    assert list(desk.schedule.ready) == ["t1"]


def test_only_levels_above_0_are_urgent():
    desk = Desk(None, trials=3)
    for name, level in (("t2", 2), ("t3", 1)):
        desk.schedule.prioritise(name, level)
    assert next_assignment(desk.schedule, lambda *_: None, None).unit.trial == "t2"
    desk.schedule.prioritise("t3", 3)
    assert (desk["t3"].level, next_assignment(desk.schedule, lambda *_: None, None).unit.trial) == (3, "t3")
    for name in ("t2", "t3"):
        desk.schedule.prioritise(name, 0)
    desk.schedule.prioritise("t1", -1)
    assert (desk.schedule.urgent, desk["t1"].level, desk["t3"].level) == (set(), -1, 0)


# ------------------------------------------------------------------------------------------------- clones


def test_the_newest_durable_version_that_has_all_its_sums_is_cloned():
    desk = Desk(None, partitions=3, valid=0, epochs=4)
    progress, found = desk["t1"], []
    saved = desk.schedule.saved

    def visit(*partitions, durable=False):
        for partition in partitions:
            desk.train("w1", "t1", partition)
        saved(VersionRef("t1", progress.version, progress.version), durable)
        found.append(progress.clonable)

    visit(0)
    assert found == [0]  # not durable
    visit(1, durable=True)
    visit(2)
    assert found[1:] == [2, 0]  # version 2 lacks its sums since version 3 was made
    saved(VersionRef("t1", 3, 13), durable=True)
    found.append(progress.clonable)
    desk.schedule.end_epoch("t1")
    found.append(progress.clonable)
    assert found[3:] == [3, 3]
    visit(0, durable=True)
    visit(1)
    assert found[5:] == [4, 3]
    visit(2, durable=True)
    desk.schedule.end_epoch("t1")
    visit(0)
    assert found[7:] == [6, 6]


def test_a_durable_version_of_an_ended_epoch_is_cloned_only_at_the_end_of_one():
    """After a roll back into an epoch that has ended, whose sums are gone."""
    desk = Desk(None, partitions=2, valid=0, epochs=3)
    for version, partition in ((1, 0), (2, 1)):
        desk.train("w1", "t1", partition)
        desk.schedule.saved(VersionRef("t1", version, version), durable=True)
    desk.schedule.end_epoch("t1")
    desk.schedule.roll_back("t1", 1)
    assert desk["t1"].clonable == 0
    desk.train("w1", "t1", 1)
    desk.schedule.saved(VersionRef("t1", 2, 3), durable=True)
    assert desk["t1"].clonable == 2


def test_a_lender_keeps_what_a_clone_needs():
    desk = Desk(None, partitions=3, valid=0, epochs=3)
    desk.train("w1", "t1", 0, 1, 2)
    desk.schedule.end_epoch("t1", metric=0.25)
    desk.train("w1", "t1", 2, 1)
    lender = desk["t1"]
    assert sorted(desk.schedule.lend(lender, "t2", 5)) == [4, 5]
    assert sorted(desk.schedule.lend(lender, "t3", 4)) == [4]
    assert desk.schedule.lend(lender, "t4", 3) == {}
    assert lender.lends == {"t2": 5, "t3": 4, "t4": 3}
    assert [desk.schedule.return_loan(lender, "t3") for _ in range(2)] == [True, False]
    assert lender.lends == {"t2": 5, "t4": 3}


def test_a_clone_of_the_end_of_an_epoch_begins_the_next_one():
    """No sums are lent, although those of the epoch are there until its evaluation ends."""
    desk = Desk(None, partitions=2, valid=1, epochs=3)
    desk.train("w1", "t1", 0, 1)
    assert sorted(desk["t1"].trained) == [1, 2]
    assert desk.schedule.lend(desk["t1"], "t2", 2) == {}


def test_a_clone_starts_with_its_parent_s_visits_sums_and_metrics():
    desk = Desk(None, partitions=2, valid=0, epochs=3)
    desk.train("w1", "t1", 0, 1)
    desk.schedule.end_epoch("t1", metric=0.25)
    desk.train("w1", "t1", 1)
    sums = desk.schedule.lend(desk["t1"], "t2", 3)
    clone = desk.schedule.add(Trial("t2", 2, {}, 0, 3, Parent("t1", 3, {})), visits=[0, 1, 1], trained=sums)
    validate(desk.schedule)
    assert (clone.version, clone.base, clone.epochs_ended, clone.begun, clone.todo) == (3, 3, 1, 1, {0})
    assert (clone.metrics, clone.trained) == ({1: 0.25}, {3: SUMS})
    desk["t1"].metrics[2] = 0.5
    assert clone.metrics == {1: 0.25}
    orphan = desk.schedule.add(Trial("t3", 3, {}, 0, 3, Parent("gone", 2, {})), visits=[0, 1])
    assert (orphan.metrics, orphan.last_metric) == ({}, None)


# ------------------------------------------------------------------------------------------------- times


def test_times_count_as_on_one_device_but_the_longest_unit_as_it_was():
    desk = Desk(None, trials=2)
    schedule = desk.schedule
    schedule.join("team", None, 4)
    schedule.speed = lambda devices: devices / 2
    desk.train("team", "t1", 0, seconds=3.0)
    assert (desk["t1"].unit_seconds, schedule.longest_seconds) == (6.0, 3.0)
    schedule.speed = lambda devices: 1.0
    desk.train("w1", "t2", 0, seconds=2.0)
    assert (schedule.seconds, schedule.measured, schedule.longest_seconds) == (8.0, 2, 3.0)
    desk.train("w1", "t2", 1, seconds=5.0)
    assert schedule.longest_seconds == 5.0


def test_an_evaluation_of_two_partitions_covers_both():
    desk = Desk(None, valid=2)
    desk.train("w1", "t1", 0, 1)
    desk.start("w1", "t1", 0, evaluate=True)
    desk.schedule.finish("w1", desk.schedule.slots["w1"].unit, 0.5, {}, whole=True)
    assert sorted(desk["t1"].evaluated) == [0, 1]


def test_the_unit_after_the_next_follows_a_fixed_order():
    desk = Desk(None, partitions=4, trials=0)
    progress = desk.schedule.add(Trial("t1", 1, {}, 0, 1), order=(2, 0))
    assert progress.owed_after(2, None) == {0}
    desk.schedule.start("w1", Unit("t1", 1, 2), 1)
    desk.schedule.finish("w1", Unit("t1", 1, 2), 1.0, {})
    assert progress.owed_after(0, None) == {1, 3}


# ------------------------------------------------------------------------------------------------- who may go on


def able(desk, worker):
    return [progress.trial.id for progress in desk.schedule.able(desk.schedule.slots[worker])]


def test_other_workers_can_take_a_trial_while_its_newest_version_is_a_file():
    desk = Desk(None, None)
    desk.train("w1", "t1", 0)
    assert (able(desk, "w1"), able(desk, "w2")) == (["t1"], [])
    desk.schedule.saved(VersionRef("t1", 1, 1), durable=False)
    assert (able(desk, "w1"), able(desk, "w2")) == (["t1"], ["t1"])
    desk.schedule.dropped(VersionRef("t1", 1, 1))
    assert (able(desk, "w1"), able(desk, "w2")) == (["t1"], [])
    desk.schedule.saved(VersionRef("t1", 1, 2), durable=False)
    desk.schedule.lost(VersionRef("t1", 1, 2), "w1")
    assert (able(desk, "w1"), able(desk, "w2")) == ([], [])


def test_a_save_that_ends_is_waited_for_no_longer_whatever_its_end():
    desk = Desk(None)
    desk.train("w1", "t1", 0)
    ends = (
        lambda ref: desk.schedule.saved(ref, durable=True),
        desk.schedule.premature,
        desk.schedule.dropped,
        lambda ref: desk.schedule.lost(ref, None, ref.attempt),
    )
    for attempt, end in enumerate(ends, 1):
        for on_node in (False, True):
            ref = VersionRef("t1", 1, attempt)
            desk.schedule.save("t1", attempt, Save(1, True, "w1"))
            desk.schedule.delay(ref, on_node=on_node)
            assert desk.schedule.stuck == {"w1"}
            end(ref)
            assert (desk["t1"].saves, desk.schedule.delayed, desk.schedule.unsent) == ({}, {}, {})


def test_the_file_of_a_unit_that_is_not_known_to_have_finished_is_dropped():
    desk = Desk(None)
    desk.schedule.save("t1", 3, Save(1, True, "w1"))
    desk.schedule.premature(VersionRef("t1", 1, 3))
    assert (desk["t1"].saves, desk["t1"].saved, desk["t1"].stale) == ({}, {}, [(1, 3)])
