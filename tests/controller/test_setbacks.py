"""A trial that cannot be saved or loaded fails after a few attempts, and no other trial with it."""

from __future__ import annotations

import pytest

from hopfleet.controller.losses import MAX_LOADS, MAX_LOSSES
from hopfleet.domain import messages as m
from hopfleet.domain.trial import TrialState
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.progress import Outcome, Save, Setback
from tests.helpers.controller_desk import Desk, of


def running(desk, worker="w1"):
    return desk.controller.schedule.slots[worker]


def lose(desk, number, **given):
    """Lose the worker that runs the only trial, and let another one take its place."""
    follow = desk.tell(m.WorkerLost(f"w{number}", "exit code 159", **given))
    if "t0001" in desk.controller.schedule.trials:
        follow += desk.tell(m.WorkerJoined(f"w{number + 1}"))
    return follow


def unloadable(desk, version=2):
    """The version that w1 is about to load is intact, and still no model can be made from it."""
    saved = desk["t0001"].saved[version]
    ref = VersionRef("t0001", version, saved.attempt)
    return ref, desk.tell(m.VersionLost(ref, "cannot be loaded", "w1", running(desk).attempt, intact=True))


def hopping():
    """A trial whose version 2 another worker has saved, and which w1 is about to load."""
    desk = Desk("w0", partitions=4, valid=0)
    desk.finished("w0")
    desk.finished("w0")
    desk.saved_from("w0", 2)
    desk.tell(m.WorkerLost("w0", "killed"))
    desk.tell(m.WorkerJoined("w1"))
    assert running(desk).unit.trial == "t0001" and desk["t0001"].version == 2
    return desk


def again(desk):
    """Train and save version 2 once more, and have it loaded by a new w1."""
    desk.finished()
    desk.finished()
    desk.saved_from("w1", 2)
    desk.tell(m.WorkerLost("w1", "killed"))
    desk.tell(m.WorkerJoined("w1"))


def test_an_intact_version_that_cannot_be_loaded_is_dropped_and_made_again():
    desk = hopping()
    ref, follow = unloadable(desk)
    assert m.TrialRolledBack("t0001", 0) in follow and of(follow, m.RunUnit)[0].model.version == 0
    assert desk.controller.schedule.refers(ref), "it is still to be dropped"


def test_a_model_that_can_never_be_loaded_fails_its_trial():
    desk = hopping()
    for attempt in range(MAX_LOADS):
        _, follow = unloadable(desk)
        if attempt < MAX_LOADS - 1:
            assert not of(follow, m.TrialEnded)
            again(desk)
    (end,) = of(follow, m.TrialEnded)
    assert end.state is TrialState.FAILED
    assert end.reason == "its saved model could not be loaded 3 times in a row: each time cannot be loaded"


def test_a_model_that_was_loaded_forgives_earlier_failures():
    desk = hopping()
    for _ in range(MAX_LOADS):
        unloadable(desk)
        again(desk)
        slot = running(desk)
        desk.tell(m.UnitFinished("w1", slot.unit, slot.attempt, 3, 0.0, 1.0, hopped=True))
        desk.tell(m.WorkerLost("w1", "killed"))
        desk.tell(m.WorkerJoined("w1"))
    assert Setback.LOAD not in desk["t0001"].setbacks and desk["t0001"].outcome is None


def test_a_file_that_is_gone_is_no_fault_of_the_model():
    desk = hopping()
    for _ in range(MAX_LOADS + 1):
        saved = desk["t0001"].saved[2]
        desk.tell(m.VersionLost(VersionRef("t0001", 2, saved.attempt), "gone", "w1", running(desk).attempt))
        again(desk)
    assert desk["t0001"].outcome is None


@pytest.mark.parametrize("valid", [0, 1])
def test_a_trial_whose_saves_lose_their_worker_fails(valid):
    """It finishes units all the time, which forgives what is held against units."""
    desk = Desk("w1", valid=valid)
    for number in range(1, MAX_LOSSES + 1):
        desk.finished(f"w{number}", loss=1.0)
        desk.finished(f"w{number}", loss=1.0)
        assert desk.saving(2)
        follow = lose(desk, number)
    (end,) = of(follow, m.TrialEnded)
    assert end.state is TrialState.FAILED
    assert end.reason == "3 workers in a row were lost before version 2 was saved: each time exit code 159"


def test_a_saved_version_forgives_the_losses():
    desk = Desk("w1", valid=0, epochs=9)
    for number in range(1, MAX_LOSSES + 2):
        desk.finished(f"w{number}", loss=1.0)
        desk.finished(f"w{number}", loss=1.0)
        desk.saved(desk["t0001"].version)
        lose(desk, number)
    assert not of(desk.messages, m.TrialEnded)


def test_a_worker_that_was_told_to_go_or_waits_for_its_disk_is_held_against_no_save():
    desk = Desk("w1", valid=0)
    for number in range(1, 2 * MAX_LOSSES):
        desk.finished(f"w{number}", loss=1.0)
        desk.finished(f"w{number}", loss=1.0)
        ref = VersionRef("t0001", 2, desk.saving(2))
        if number % 2:
            desk.tell(m.SaveDelayed(f"w{number}", ref, "full"))
        else:
            desk.tell(m.UnitOverdue(f"w{number}", running(desk, f"w{number}").attempt, 99.0, 1.0))
        lose(desk, number)
    assert not of(desk.messages, m.TrialEnded)


def test_a_worker_that_gave_up_a_unit_is_held_against_no_save():
    desk = Desk("w1", trials=2, partitions=4, valid=0)
    desk.finished()
    assert running(desk).unit.trial == "t0002" and desk.saving(1)
    desk.tell(m.RequestMade("stop", {"trial": "t0002", "now": True}, "ada", 1))
    desk.tell(m.WorkerLost("w1", "killed"))
    assert Setback.SAVE not in desk["t0001"].setbacks


def test_while_another_trial_runs_its_unit_is_blamed_first():
    desk = Desk("w1", trials=2, partitions=4, valid=0)
    for number in range(1, MAX_LOSSES + 1):
        desk.finished(f"w{number}")
        assert running(desk, f"w{number}").unit.trial == "t0002" and desk.saving(1)
        follow = lose(desk, number)
    (end,) = of(follow, m.TrialEnded)
    assert "3 workers in a row were lost while" in end.reason and end.trial == "t0002"
    assert desk["t0001"].outcome is None
    desk.finished(f"w{MAX_LOSSES + 1}")
    (end,) = of(desk.tell(m.WorkerLost(f"w{MAX_LOSSES + 1}", "killed")), m.TrialEnded)
    assert (end.trial, end.state) == ("t0001", TrialState.FAILED)


def test_while_other_trials_run_it_takes_twice_as_many_losses():
    """Whatever runs beside its saves ends well elsewhere."""
    desk = Desk("w1", trials=2, partitions=4, valid=0)
    for number in range(1, 2 * MAX_LOSSES + 1):
        assert "t0001" in desk.controller.schedule.trials
        desk.finished(f"w{number}")
        desk.controller.schedule.forgive("t0002", Setback.UNIT)
        follow = lose(desk, number)
    (end,) = of(follow, m.TrialEnded)
    assert end.trial == "t0001" and "6 workers in a row were lost before version 1 was saved" in end.reason


@pytest.mark.parametrize("beside", ["t0001", "t0003"])
def test_a_save_that_waits_in_memory_counts_only_if_nothing_else_may_be_the_cause(beside):
    desk = Desk("w1", trials=3)
    waits, writes = (Save(1, durable=True, worker="w1", waits=waits) for waits in (True, False))
    desk.controller.state.losses.blame_saves([(desk["t0001"], waits), (desk["t0002"], writes)], [beside], "killed")
    assert (Setback.SAVE in desk["t0001"].setbacks) is (beside == "t0001")
    assert desk["t0002"].setbacks == {Setback.SAVE: ["killed"]}


def test_a_trial_that_fails_anyway_is_not_blamed_for_its_saves():
    desk = Desk("w1", trials=2)
    desk.controller.schedule.settle("t0001", Outcome(TrialState.FAILED, "ValueError: no"))
    save = Save(1, durable=True, worker="w1")
    for _ in range(MAX_LOSSES):
        desk.controller.state.losses.blame_saves([(desk[trial], save) for trial in ("t0001", "t0002")], [], "killed")
    assert [desk[trial].outcome.reason[:14] for trial in ("t0001", "t0002")] == ["ValueError: no", "3 workers in a"]
