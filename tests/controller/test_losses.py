"""Workers, units, models and files that are lost, hang or fail, one event at a time."""

from __future__ import annotations

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from tests.helpers.controller_desk import Desk, of

pytestmark = pytest.mark.usefixtures("few_saves")


# ------------------------------------------------------------------------------------------------ lost things


def test_a_lost_worker_s_unit_runs_elsewhere():
    desk = Desk("w1", "w2")
    assert desk.tell(m.WorkerLost("w1", "killed")) == [
        m.RunUnit("w2", Unit("t0001", 1, 0), 2, VersionRef("t0001", 0, None))
    ]


def test_a_lost_model_is_rolled_back_to_what_is_saved():
    desk = Desk("w1", "w2", partitions=3)
    for _ in range(2):
        desk.finished()
    desk.saved_unasked(1)
    follow = desk.tell(m.WorkerLost("w1", "killed"))
    visited = [message.unit.partition for message in of(desk.messages, m.UnitFinished)]
    again = m.RunUnit("w2", Unit("t0001", 1, visited[1]), 92, VersionRef("t0001", 1, 91))
    assert follow == [m.TrialRolledBack("t0001", 1), again]


def test_an_ended_trial_whose_last_version_is_lost_trains_it_again():
    """It must not end with the durable version of an earlier epoch."""
    desk = Desk("w1", "w2")
    desk.epoch(loss=1.0)
    desk.saved(2)
    desk.epoch(loss=1.0)
    follow = desk.tell(m.WorkerLost("w1", "killed"))
    assert [type(message) for message in follow] == [m.TrialRolledBack, m.RunUnit]
    desk.finished("w2")
    (save,) = of(desk.finished("w2"), m.SaveVersion)
    assert (save.worker, save.ref.version, save.durable) == ("w2", 4, True)
    assert of(desk.saved(4), m.TrialEnded)[0].state is TrialState.COMPLETED
    assert len(of(desk.messages, m.EpochEnded)) == 2


def test_units_that_kill_workers_fail_their_trial():
    desk = Desk("w1", "w2", "w3", "w4", trials=1, epochs=1)
    desk.tell(m.WorkerLost("w1", "killed"))
    desk.tell(m.WorkerLost("w2", "killed"))
    end = of(desk.tell(m.WorkerLost("w3", "signal 9", "too large\nalas")), m.TrialEnded)[0]
    what = "3 workers in a row were lost while t0001 trains on partition 0 in epoch 1"
    assert end.reason == f"{what}: killed; then killed; then signal 9"
    assert end.traceback == "the last lines of its log:\ntoo large\nalas"


def test_losses_of_one_kind_are_told_once():
    desk = Desk("w1", "w2", "w3", "w4", trials=1, epochs=1)
    for worker in ("w1", "w2", "w3"):
        desk.tell(m.WorkerLost(worker, "killed"))
    (end,) = of(desk.messages, m.TrialEnded)
    assert end.reason.endswith(" in epoch 1: each time killed")
    assert end.traceback == ""


def test_a_finished_unit_forgives_the_losses():
    desk = Desk("w1", "w2", "w3", "w4")
    for worker in ("w1", "w2"):
        desk.tell(m.WorkerLost(worker, "killed"))
    desk.finished("w3")
    assert desk["t0001"].losses == []


def test_an_idle_worker_is_lost_without_harm():
    assert Desk("w1", "w2").tell(m.WorkerLost("w2", "killed")) == []


def test_a_version_that_a_worker_cannot_load_is_saved_again():
    desk = Desk("w1", trials=2)
    desk.finished()
    desk.saved(1, durable=False)
    desk.tell(m.WorkerJoined("w2"))
    assert desk.controller.schedule.slots["w2"].unit.trial == "t0001"
    follow = desk.tell(m.VersionLost(VersionRef("t0001", 1, 3), "gone", "w2", 4))
    assert follow == [m.SaveVersion("w1", VersionRef("t0001", 1, 5), False)]


def test_a_version_that_nobody_has_is_trained_again():
    desk = Desk("w1")
    desk.finished()
    lost = m.VersionLost(VersionRef("t0001", 1, None), "evicted", "w1", 2)
    follow = desk.tell(lost)
    assert [type(message) for message in follow] == [m.TrialRolledBack, m.RunUnit]
    # The worker finds the same loss a second time; what it does now is not affected.
    assert desk.controller.refuses(lost)
    assert desk.tell(lost) == []
    assert desk.controller.schedule.slots["w1"].unit is not None


def test_a_version_that_is_not_needed_is_lost_without_harm():
    desk = Desk("w1")
    desk.epoch(loss=1.0)
    desk.saved(2)
    desk.finished()
    assert desk.tell(m.VersionLost(VersionRef("t0001", 2, 4), "gone")) == []
    assert not desk["t0001"].saved


def test_a_file_that_was_replaced_is_dropped_and_a_unit_that_looked_for_it_begins_again():
    desk = Desk("w1", trials=2, partitions=3)
    desk.finished()
    desk.saved(1, durable=False)
    desk.tell(m.WorkerJoined("w2"))
    assert desk.controller.schedule.slots["w2"].attempt == 4
    assert desk.tell(m.RequestMade("drain")) == [m.SaveVersion("w1", VersionRef("t0001", 1, 5), True, 3)]
    assert desk.saved(1) == [], "the worker may just read it"
    # Another process has deleted it, and the worker was slower than the save.
    follow = desk.tell(m.VersionLost(VersionRef("t0001", 1, 3), "gone", "w2", 4))
    assert follow[0] == m.DropVersion(VersionRef("t0001", 1, 3))
    assert desk.controller.schedule.slots["w2"].unit is None
    assert desk["t0001"].durable(1) and not desk["t0001"].stale


def test_a_file_that_never_was_the_version_is_dropped_with_the_trial():
    desk = Desk("w1", "w2", trials=2)
    desk.controller.restore([m.SaveVersion("w2", VersionRef("t0001", 2, 80), True)])
    desk.finished()
    desk.finished()
    desk.saved(2)
    desk.controller.restore([m.VersionSaved(VersionRef("t0001", 2, 79), False, "", 0)])
    assert desk["t0001"].stale == [(2, 79)]
    assert m.DropVersion(VersionRef("t0001", 2, 79)) in desk.failed()


# ------------------------------------------------------------------------------------------------ what hangs


def test_what_takes_far_too_long_is_given_up():
    desk = Desk("w1", unit_timeout=10.0)
    assert desk.controller.overdue({}) == desk.controller.overdue({"w1": 10.0}) == []
    (event,) = desk.controller.overdue({"w1": 10.5})
    assert event == m.UnitOverdue("w1", 1, 10.5, 0.0, 10.0)
    assert desk.tell(event) == [m.StopUnit("w1", "t0001", 1, overdue=True)]
    assert desk.controller.overdue({"w1": 11.0}) == []  # it is on its way
    assert desk.tell(m.RequestMade("drain")) == []  # no worker is told twice


def test_three_hung_units_fail_the_trial_with_the_evidence():
    desk = Desk("w1")
    desk.finished()
    for number in range(1, 4):
        (slot,) = desk.controller.schedule.slots.values()
        seconds = 60.5 * 2 ** (number - 1)
        assert slot.unit.trial == "t0001"
        assert desk.controller.overdue({slot.worker: 60.0 * 2 ** (number - 1)}) == []
        (event,) = desk.controller.overdue({slot.worker: seconds})
        desk.tell(event)
        follow = desk.tell(m.WorkerLost(slot.worker, "killed", replaced=True))
        if number < 3:
            desk.tell(m.WorkerJoined(f"w{number + 1}"))
    (ended,) = of(follow, m.TrialEnded)
    assert ended.state is TrialState.FAILED
    limit = "above the limit of 60 s that unit_timeout='auto' derived"
    assert f"it ran for 60.5 s, {limit}; estimated 1 s; then it ran for 121 s" in ended.reason
    assert ended.reason.endswith("set hop.RunOptions(unit_timeout=SECONDS), or None for no limit")


def test_no_limit_means_none():
    desk = Desk("w1", unit_timeout=None)
    desk.finished()
    assert desk.controller.overdue({"w1": 1e9}) == []


def test_a_verdict_that_comes_too_late_counts_for_nothing():
    desk = Desk("w1", "w2", unit_timeout=1.0)
    assert desk.controller.refuses(m.UnitOverdue("w9", 1, 5.0, 0.0))
    assert desk.controller.refuses(m.UnitOverdue("w1", 7, 5.0, 0.0))
    assert desk.controller.refuses(m.UnitOverdue("w2", 0, 5.0, 0.0))  # it does nothing
    assert desk.controller.overdue({"w2": 5.0}) == []


def test_what_follows_on_a_worker_that_was_told_to_give_up_is_not_to_blame():
    """The unit ended just before its worker was killed; the next one is lost, and no trial is blamed for it."""
    desk = Desk("w1", unit_timeout=1.0)
    desk.tell(m.UnitOverdue("w1", 1, 5.0, 0.0))
    (start,) = of(desk.finished(), m.RunUnit)
    assert start.attempt == 2
    desk.tell(m.WorkerLost("w1", "killed"))
    assert desk["t0001"].losses == []


# ------------------------------------------------------------------------------------------ a broken machine


def lose(desk, count):
    """Lose ``count`` workers, one after another, and return what followed from the last loss."""
    for number in range(count):
        worker = f"x{number}"
        desk.tell(m.WorkerJoined(worker))
        follow = desk.tell(m.WorkerLost(worker, "its process was killed by SIGSEGV"))
    return follow


def test_where_whatever_runs_loses_its_worker_the_run_ends():
    desk = Desk(trials=20)
    assert not of(lose(desk, 23), m.Finish)
    (finish,) = of(lose(desk, 1), m.Finish)
    assert not finish.complete
    assert finish.reason.startswith("24 workers in a row were lost and nothing ended well between")
    assert "the last time its process was killed by SIGSEGV. It seems to be the machine" in finish.reason
    assert not of(desk.messages, m.TrialEnded)  # no trial is to blame
    # The user has mended the machine and resumes.
    desk.tell(m.RunStarted("test"))
    assert of(desk.tell(m.WorkerJoined("w1")), m.RunUnit)


def test_one_unit_that_ends_well_shows_that_the_machine_is_sound():
    desk = Desk(trials=20)
    lose(desk, 23)
    desk.tell(m.WorkerJoined("w1"))
    desk.finished()
    desk.tell(m.WorkerLost("w1", "killed"))
    assert not of(lose(desk, 22), m.Finish)


def test_what_runs_on_a_broken_machine_may_prove_it_sound():
    """Nothing starts any more; what runs is awaited, and if it ends well all goes on."""
    desk = Desk("w1", trials=20)
    lose(desk, 24)
    assert not desk.controller.finished
    assert not of(desk.tell(m.WorkerJoined("w2")), m.RunUnit)
    assert of(desk.finished(), m.RunUnit)


def test_all_of_many_workers_may_be_lost_at_once():
    desk = Desk(*(f"w{number}" for number in range(30)), trials=40)
    for number in range(30):
        desk.tell(m.WorkerLost(f"w{number}", "killed", replaced=True))
    assert not desk.controller.finished
