"""The state machine of units: what it allows, what it counts, and what it refuses."""

from __future__ import annotations

import pytest

from hopfleet.domain.rowsum import RowSum, add
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import InvariantBroken
from hopfleet.scheduler.invariants import validate
from hopfleet.scheduler.progress import Outcome, Save, Saved, Setback
from tests.helpers.schedule_desk import Desk


def test_a_trial_goes_through_its_epochs():
    desk = Desk(None)
    progress = desk["t1"]
    assert (progress.state, progress.epoch, progress.version, progress.units_left) == (TrialState.PENDING, 1, 0, 4)
    desk.train("w1", "t1", 1)
    assert (progress.state, progress.todo, progress.holder) == (TrialState.RUNNING, {0}, "w1")
    desk.train("w1", "t1", 0)
    assert (progress.epoch, progress.todo, progress.awaits_evaluation) == (2, {0, 1}, True)
    assert list(desk.schedule.awaiting) == ["t1"]
    assert not desk.schedule.ready
    desk.start("w1", "t1", 0, evaluate=True)
    assert not desk.schedule.awaiting
    desk.schedule.finish("w1", desk.schedule.slots["w1"].unit, 0.5, {})
    desk.schedule.end_epoch("t1")
    assert list(desk.schedule.ready) == ["t1"]
    assert (progress.evaluated, progress.trained) == ({}, {})


def test_exclusive_access():
    desk = Desk(None, trials=2)
    desk.start("w1", "t1", 0)
    with pytest.raises(InvariantBroken, match="exclusive access: w1 already runs: t1 trains on partition 0 in epoch 1"):
        desk.start("w1", "t2", 0)


def test_isolation():
    desk = Desk(None, None)
    desk.start("w1", "t1", 0)
    with pytest.raises(InvariantBroken, match="isolation: t1 trains on partition 1 in epoch 1, but it runs already"):
        desk.start("w2", "t1", 1)


def test_isolation_from_evaluations():
    desk = Desk(None, None)
    desk.train("w1", "t1", 0, 1)
    desk.start("w1", "t1", 0, evaluate=True)
    with pytest.raises(InvariantBroken, match="isolation"):
        desk.start("w2", "t1", 0)


def test_completeness():
    desk = Desk(None)
    desk.train("w1", "t1", 0)
    with pytest.raises(InvariantBroken, match="completeness: t1 trains on partition 0 in epoch 1 is not owed on w1"):
        desk.start("w1", "t1", 0)
    with pytest.raises(InvariantBroken, match="completeness: t1 trains on partition 1 in epoch 2 is not owed"):
        desk.start("w1", "t1", 1, epoch=2)


def test_evaluations_once():
    desk = Desk(None, None, valid=2)
    desk.train("w1", "t1", 0, 1)
    desk.start("w1", "t1", 1, evaluate=True)
    assert list(desk.schedule.unevaluated(desk["t1"])) == [0]
    desk.schedule.finish("w1", desk.schedule.slots["w1"].unit, 0.5, {})
    with pytest.raises(InvariantBroken, match="completeness: t1 is evaluated on partition 1 in epoch 1 twice"):
        desk.start("w1", "t1", 1, evaluate=True)


def test_an_evaluation_of_the_whole_set_ends_all_others():
    desk = Desk(None, None, None, None, valid=3, trials=2)
    desk.train("w1", "t1", 0, 1)
    desk.train("w2", "t2", 0, 1)
    desk.start("w1", "t1", 0, evaluate=True)
    desk.start("w2", "t1", 1, evaluate=True)
    desk.start("w3", "t2", 2, evaluate=True)
    whole, part = {"auc": RowSum.of(0.5, 9)}, {"auc": RowSum.of(0.1, 3)}

    def finish(worker, sums, **options):
        desk.schedule.finish(worker, desk.schedule.slots[worker].unit, 0.5, sums, **options)
        validate(desk.schedule)

    assert list(desk.schedule.awaiting) == ["t1", "t2"]
    finish("w1", whole, whole=True)
    assert add(desk["t1"].evaluated.values()) == whole and len(desk["t1"].evaluated) == 3
    assert not desk.schedule.awaiting  # a report about t2 is under way, and may be about the whole set
    finish("w2", part)  # came too late
    assert add(desk["t1"].evaluated.values()) == whole
    finish("w3", part)  # a configuration without such a metric
    assert list(desk.schedule.unevaluated(desk["t2"])) == [0, 1]
    desk.start("w1", "t2", 0, evaluate=True)
    desk.start("w2", "t2", 1, evaluate=True)
    finish("w1", whole, whole=True)
    finish("w2", whole, whole=True)
    assert add(desk["t2"].evaluated.values()) == whole


def test_non_preemption():
    desk = Desk(None)
    desk.start("w1", "t1", 0)
    with pytest.raises(InvariantBroken, match="non-preemption: t1 cannot end while it runs"):
        desk.schedule.park("t1", TrialState.FAILED)


def test_states_follow_the_table():
    desk = Desk(None)
    with pytest.raises(InvariantBroken, match="t1 cannot go from pending to completed: partitions=2, state="):
        desk.schedule.park("t1", TrialState.COMPLETED)


def test_workers_join_once():
    with pytest.raises(InvariantBroken, match="worker w1 joined twice"):
        Desk(None).schedule.join("w1", None)


def test_replicas_are_respected():
    desk = Desk((0,), (1,), None, partitions=2)
    slots = desk.schedule.slots
    options = [set(desk.schedule.options(desk["t1"], slots[name])) for name in ("w1", "w2", "w3")]
    assert options == [{0}, {1}, {0, 1}]
    assert [desk.schedule.replicas(partition) for partition in (0, 1)] == [2, 2]
    with pytest.raises(InvariantBroken, match="is not owed on w2"):
        desk.start("w2", "t1", 0)


def test_a_model_is_only_where_it_is():
    desk = Desk(None, None)
    desk.train("w1", "t1", 0)
    progress, slots = desk["t1"], desk.schedule.slots
    assert list(desk.schedule.options(progress, slots["w2"])) == []
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    assert list(desk.schedule.options(progress, slots["w2"])) == [1]


def test_saved_versions_stay_durable():
    desk = Desk(None)
    desk.train("w1", "t1", 0)
    desk.schedule.saved(VersionRef("t1", 1, 7), durable=True, digest="abc")
    desk.schedule.saved(VersionRef("t1", 1, 8), durable=False)
    assert desk["t1"].saved == {1: Saved(7, True, "abc")}
    assert desk["t1"].stale == [(1, 8)]


def test_a_file_is_known_until_it_is_dropped():
    desk = Desk(None)
    desk.train("w1", "t1", 0)
    desk.schedule.saved(VersionRef("t1", 1, 7), durable=False)
    desk.schedule.saved(VersionRef("t1", 1, 8), durable=True)
    assert desk["t1"].saved == {1: Saved(8, True)}
    assert [desk.schedule.refers(VersionRef("t1", 1, number)) for number in (6, 7, 8)] == [False, True, True]
    assert not desk.schedule.refers(VersionRef("t9", 1, 8))
    assert not desk.schedule.refers(VersionRef("t1", 2, 8))
    assert list(desk.schedule.files()) == [("t1", 1, 8)]
    desk.schedule.dropped(VersionRef("t1", 1, 7))
    desk.schedule.dropped(VersionRef("t1", 1, 7))
    assert (desk["t1"].saved, desk["t1"].stale) == ({1: Saved(8, True)}, [])
    desk.schedule.dropped(VersionRef("t1", 1, 8))
    assert not desk["t1"].saved


def test_loads_share_out_replicas():
    desk = Desk((0,), (0, 1), partitions=2, trials=2, epochs=3)
    slots = desk.schedule.slots
    assert desk.schedule.owed == [6, 6]
    assert [desk.schedule.load(slots[name]) for name in ("w1", "w2")] == [3.0, 9.0]
    desk.schedule.join("w3", None)
    assert desk.schedule.load(slots["w3"]) == 6 / 3 + 6 / 2
    desk.train("w1", "t1", 0)
    assert desk.schedule.owed == [5, 6]
    desk.schedule.park("t1", TrialState.FAILED)
    assert desk.schedule.owed == [3, 3]


def test_estimates_are_the_trial_s_own_then_everybody_s():
    desk = Desk(None, trials=2)
    assert desk.schedule.unit_seconds(desk["t1"]) == 1.0
    desk.train("w1", "t1", 0, seconds=3.0)
    assert desk.schedule.unit_seconds(desk["t2"]) == 3.0
    desk.train("w1", "t2", 0, seconds=5.0)
    assert desk.schedule.unit_seconds(desk["t1"]) == 3.0
    assert desk.schedule.remaining(desk["t2"]) == 15.0


def test_reports_must_be_of_the_running_attempt():
    desk = Desk(None)
    desk.start("w1", "t1", 0)
    accepts = desk.schedule.accepts
    assert accepts("w1", Unit("t1", 1, 0), 1)
    assert not accepts("w1", Unit("t1", 1, 0), 2)
    assert not accepts("w1", Unit("t1", 1, 0, Work.EVALUATE), 1)
    assert not accepts("w9", Unit("t1", 1, 0), 1)


def test_a_lost_worker_takes_its_unit_and_its_models():
    desk = Desk(None, None, trials=2)
    desk.train("w1", "t1", 0)
    desk.schedule.save("t1", 5, Save(1, False, "w1"))
    desk.schedule.save("t1", 6, Save(1, True, "w2"))
    desk.schedule.delayed[5] = "w1"
    desk.start("w1", "t2", 1)
    assert desk.schedule.leave("w1") == {Unit("t2", 1, 1): 1}
    assert desk["t1"].holder is None
    assert (list(desk["t1"].saves), desk.schedule.delayed) == ([6], {})
    assert list(desk.schedule.idle) == ["w2"]
    assert list(desk.schedule.ready) == ["t1", "t2"]
    assert desk.schedule.leave("w2") == {}


def test_an_abandoned_unit_did_not_happen():
    desk = Desk(None)
    desk.start("w1", "t1", 0)
    desk.schedule.abandon("w1", "t1")
    validate(desk.schedule)
    assert desk["t1"].todo == {0, 1}
    assert list(desk.schedule.idle) == ["w1"]


def test_rolled_back_units_are_forced_in_their_order():
    desk = Desk((0, 2), (1,), None, partitions=3, valid=0)
    for partition, worker in ((2, "w1"), (1, "w2"), (0, "w1")):
        desk.train(worker, "t1", partition)
        desk.schedule.saved(VersionRef("t1", desk["t1"].version, 0), durable=False)
    desk.schedule.save("t1", 8, Save(1, True, "w1"))
    desk.schedule.save("t1", 9, Save(3, True, "w1"))
    desk.schedule.roll_back("t1", 1)
    validate(desk.schedule)
    progress, slots = desk["t1"], desk.schedule.slots
    assert (progress.visits, list(progress.forced), progress.todo) == ([2], [1, 0], {0, 1})
    assert (list(progress.saved), list(progress.trained), list(progress.saves)) == ([1], [1], [8])
    assert [list(desk.schedule.options(progress, slot)) for slot in slots.values()] == [[], [1], [1]]
    desk.schedule.roll_back("t1", 0)
    assert list(progress.forced) == [2, 1, 0]
    desk.train("w3", "t1", 2, 1, 0)
    assert not progress.forced


def test_sums_of_an_ended_epoch_do_not_count_again():
    desk = Desk(None, valid=0)
    desk.train("w1", "t1", 0, 1)
    desk.schedule.end_epoch("t1")
    desk.train("w1", "t1", 1)
    desk.schedule.roll_back("t1", 0)
    desk.train("w1", "t1", 0, 1, 1)
    assert list(desk["t1"].trained) == [3]


def test_settled_trials_train_what_was_lost_and_no_more():
    desk = Desk(None, valid=0)
    desk.train("w1", "t1", 0, 1)
    desk.schedule.end_epoch("t1")
    desk.schedule.settle("t1", Outcome(TrialState.STOPPED))
    assert not desk.schedule.ready
    desk.schedule.roll_back("t1", 1)
    assert list(desk.schedule.ready) == ["t1"]
    desk.schedule.settle("t1", Outcome(TrialState.FAILED))
    assert not desk.schedule.ready


def test_lost_versions():
    desk = Desk(None, None)
    desk.train("w1", "t1", 0)
    progress = desk["t1"]
    desk.schedule.saved(VersionRef("t1", 1, 5), durable=False)
    desk.schedule.save("t1", 6, Save(1, True, "w1"))
    desk.schedule.lost(VersionRef("t1", 1, 4), "w2", 7)
    assert (list(progress.saved), progress.holder, list(progress.saves)) == ([1], "w1", [6])
    desk.schedule.lost(VersionRef("t1", 1, 5), "w2", 6)
    assert (progress.saved, progress.holder, progress.saves) == ({}, "w1", {})
    desk.schedule.lost(VersionRef("t1", 0, 0), "w1")
    assert progress.holder == "w1"
    desk.schedule.lost(VersionRef("t1", 1, None), "w1", 8)
    assert progress.holder is None


def test_a_worker_that_gets_a_partition_can_take_those_that_owe_it():
    desk = Desk((0,), (1,), trials=2)
    desk.train("w1", "t1", 0)
    assert [p.trial.id for p in desk.schedule.able(desk.schedule.slots["w1"])] == ["t2"]
    desk.schedule.place("w1", 1)
    validate(desk.schedule)
    assert sorted(p.trial.id for p in desk.schedule.able(desk.schedule.slots["w1"])) == ["t1", "t2"]
    assert desk.schedule.replicas(1) == 2


def test_units_that_end_in_whatever_way_are_counted():
    desk = Desk(None, None, trials=2)
    desk.train("w1", "t1", 0)
    desk.start("w1", "t1", 1)
    desk.schedule.abandon("w1", "t1")
    desk.start("w2", "t2", 1)
    desk.schedule.leave("w2")
    assert desk.schedule.ends == 3


def test_the_longest_evaluation_is_known():
    desk = Desk(None, trials=1, partitions=1, valid=2)
    desk.train("w1", "t1", 0)
    for partition, seconds in enumerate((3.0, 2.0)):
        desk.start("w1", "t1", partition, evaluate=True)
        desk.schedule.finish("w1", desk.schedule.slots["w1"].unit, seconds, {})
    assert desk.schedule.evaluation_seconds == 3.0


def test_a_trial_that_trains_again_is_no_suspect():
    desk = Desk(None)
    desk.schedule.blame("t1", Setback.UNIT, "killed")
    assert desk["t1"].losses == ["killed"]
    desk.train("w1", "t1", 0)
    assert desk["t1"].losses == []
