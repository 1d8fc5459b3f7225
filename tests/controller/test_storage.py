"""Versions that are on the disks of their nodes before a storage has them."""

from __future__ import annotations

from hopfleet.domain import messages as m
from hopfleet.domain.version_ref import VersionRef
from hopfleet.runtime.effects import VersionEffects
from tests.helpers.controller_desk import Desk, of

GONE = "s3://bucket/run: cannot be sent"


def unsent(desk, version):
    """A durable version of t0001 is on the node of w1, and the storage does not take it."""
    desk.saved(version, durable=False)
    return desk.tell(m.SaveDelayed("w1", VersionRef("t0001", version, desk.saving(version)), GONE, on_node=True))


def test_a_version_hops_before_it_is_in_the_storage():
    desk = Desk("w1", "w2", partitions=1, valid=1)
    (save,) = of(desk.finished(), m.SaveVersion)
    desk.evaluated(loss=1.0)
    desk.tell(m.WorkerRetired("w1"))
    assert save.durable and not desk["t0001"].loadable
    desk.saved(1, durable=False)
    progress = desk["t0001"]
    assert progress.loadable and not progress.durable(1) and desk.saving(1) == save.ref.attempt
    assert not progress.saves[save.ref.attempt].waits, "a newer version does not replace what is being sent"
    desk.saved(1)
    assert progress.durable(1) and not progress.saves


def test_while_the_storage_is_gone_training_goes_on():
    desk = Desk("w1", "w2", trials=2, partitions=1, valid=0, epochs=4)
    desk.finished("w1", loss=1.0)
    assert unsent(desk, 1) == []
    assert desk.controller.stands, "no unit is overdue because of a storage"
    assert of(desk.finished("w2", loss=1.0), m.RunUnit)
    for version in (2, 3):
        (unit,) = of(desk.finished("w1", loss=1.0), m.RunUnit)
        assert unit.model.version == version
    assert not desk.controller.schedule.delayed and desk.controller.schedule.stuck == {"w1"}
    desk.saved(1)
    assert not desk.controller.schedule.stuck and not desk.controller.stands


def test_of_versions_that_wait_for_the_storage_the_first_and_the_last_stay():
    desk = Desk("w1", partitions=1, valid=0, epochs=9)
    for version in (1, 2, 3, 4):
        desk.finished(loss=float(version))
        unsent(desk, version)
    progress = desk["t0001"]
    assert sorted(progress.saved) == [1, 4], "the best is the first"
    assert [save.version for save in progress.saves.values()] == [1, 4]
    dropped = [drop.ref.version for drop in of(desk.messages, m.DropVersion)]
    assert dropped == [2, 3]


def test_a_version_that_was_dropped_is_not_saved_by_a_late_report():
    desk = Desk("w1", partitions=1, valid=0, epochs=9)
    late = []
    for version in (1, 2, 3):
        desk.finished(loss=float(version))
        late.append(m.VersionSaved(VersionRef("t0001", version, desk.saving(version)), True, "abc", 0))
        unsent(desk, version)
    assert desk.controller.refuses(late[1]) and not desk.controller.refuses(late[0])
    dropped: list[VersionRef] = []
    store = type("Store", (), {"drop": lambda self, ref: dropped.append(ref)})()
    effects = VersionEffects(desk.controller.schedule, store, chores=None, copies=None, report=None, retry=None)
    effects.refuse(late[1])
    assert dropped == [late[1].ref]


def test_a_trial_ends_when_its_last_version_is_in_the_storage():
    desk = Desk("w1", partitions=1, valid=0, epochs=1)
    desk.finished(loss=1.0)
    assert not of(unsent(desk, 1), m.TrialEnded)
    assert [end.trial for end in of(desk.saved(1), m.TrialEnded)] == ["t0001"]


def test_a_drain_does_not_wait_for_a_storage():
    desk = Desk("w1", partitions=1, valid=0, epochs=9)
    desk.finished(loss=1.0)
    unsent(desk, 1)
    desk.tell(m.RequestMade("drain"))
    assert of(desk.finished(loss=1.0), m.Finish)


def test_a_run_that_starts_again_waits_for_no_storage():
    desk = Desk("w1", partitions=1, valid=0, epochs=9)
    desk.finished(loss=1.0)
    unsent(desk, 1)
    desk.tell(m.RunStarted("again"))
    assert not desk.controller.schedule.stuck and not desk["t0001"].saves
