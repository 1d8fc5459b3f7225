"""Full disks, late reports, drained and resumed runs, one event at a time."""

from __future__ import annotations

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.policies import POLICIES
from tests.helpers.controller_desk import Desk, of

pytestmark = pytest.mark.usefixtures("few_saves")


# ------------------------------------------------------------------------------------------------- full disks


def delay(desk, version=2, worker="w1"):
    number = desk.saving(version)
    return m.SaveDelayed(
        worker, VersionRef("t0001", version, number), "v.safetensors: cannot be written (full); make room"
    )


def test_while_a_disk_is_full_nothing_starts():
    desk = Desk("w1", "w2", trials=2)
    desk.finished("w1")
    desk.finished("w1")
    message = delay(desk, desk["t0001"].version)
    assert desk.tell(message) == []
    assert not of(desk.finished("w2"), m.RunUnit)
    follow = desk.tell(m.WorkerJoined("w3"))
    assert follow == []
    assert of(desk.saved(message.ref.version), m.RunUnit)


def test_a_lost_worker_waits_for_no_disk():
    desk = Desk("w1", "w2")
    desk.finished()
    desk.finished()
    desk.tell(delay(desk))
    follow = desk.tell(m.WorkerLost("w1", "killed"))
    assert not desk.controller.schedule.delayed
    assert [type(message) for message in follow] == [m.TrialRolledBack, m.RunUnit]


def test_a_run_that_starts_again_waits_for_no_disk():
    desk = Desk("w1")
    desk.finished()
    desk.finished()
    late = delay(desk)
    desk.tell(late)
    desk.tell(m.RunStarted("again"))
    assert not desk.controller.schedule.delayed
    assert desk.controller.refuses(late)


def test_a_drain_does_not_wait_for_a_full_disk():
    desk = Desk("w1", "w2", trials=2)
    desk.finished("w1")
    desk.finished("w1")
    desk.tell(delay(desk, desk["t0001"].version))
    desk.tell(m.RequestMade("drain"))
    other = desk.controller.schedule.slots["w2"].unit.trial
    desk.finished("w2")
    assert desk.saved(1, other)[-1:] == [m.Finish(complete=False)]


def test_a_retired_worker_is_kept_while_its_disk_is_full():
    desk = Desk("w1", "w2")
    desk.finished()
    desk.finished()
    desk.evaluated(loss=1.0)
    desk.tell(delay(desk))
    desk.finished("w1" if desk.controller.schedule.slots["w1"].unit else "w2")
    desk.controller.restore([m.WorkerRetired("w1")])
    follow = desk.tell(m.WorkerJoined("w3"))
    assert not of(follow, m.ReleaseWorker)
    assert m.ReleaseWorker("w1") in desk.saved(2)


# ---------------------------------------------------------------------------------------------- late reports


LATE = [
    m.UnitFinished("w1", Unit("t0001", 1, 0), 99, 1, 0.0, 1.0),
    m.UnitFinished("w1", Unit("t0001", 1, 0, Work.EVALUATE), 99, 0, 0.0, 1.0),
    m.UnitFailed("w1", Unit("t0001", 1, 0), 99, 0.0, 1.0, "error"),
    m.UnitFinished("w1", Unit("t0001", 1, 1), 1, 1, 0.0, 1.0),
    m.VersionSaved(VersionRef("t0001", 1, 99), True, "", 0),
    m.VersionSaved(VersionRef("t9999", 1, 0), True, "", 0),
    m.VersionLost(VersionRef("t9999", 1, 0), "gone"),
    m.VersionLost(VersionRef("t0001", 0, None), "gone", "w1", 99),
    m.VersionLost(VersionRef("t0001", 0, None), "gone", "w9", 1),
    m.VersionLost(VersionRef("t0001", 0, 0), "gone"),
    m.SaveFailed(VersionRef("t0001", 1, 99), "error"),
    m.SaveFailed(VersionRef("t9999", 1, 0), "error"),
    m.SaveDelayed("w1", VersionRef("t0001", 1, 99), "full"),
    m.WorkerLost("w9", "killed"),
]


@pytest.mark.parametrize("event", LATE, ids=lambda event: type(event).__name__)
def test_late_reports_change_nothing(event):
    desk = Desk("w1")
    before = desk["t0001"].story()
    assert desk.controller.refuses(event)
    assert desk.controller.handle(event) == []
    assert desk["t0001"].story() == before


def test_other_events_are_never_late():
    controller = Desk("w1").controller
    assert not any(map(controller.refuses, [m.WorkerJoined("w2"), m.RequestMade("drain"), m.RunStarted("x")]))


# ----------------------------------------------------------------------------------------- draining, resuming


def test_draining_starts_nothing_and_saves_everything():
    desk = Desk("w1", "w2", trials=3)
    desk.finished("w1")
    assert desk.tell(m.RequestMade("drain")) == [m.SaveVersion("w1", VersionRef("t0001", 1, 5), True)]
    running = [slot.unit.trial for slot in desk.controller.schedule.slots.values()]
    follow = [*desk.finished("w1"), *desk.finished("w2")]
    pairs = zip(("w1", "w2"), running, strict=True)
    assert follow == [
        m.SaveVersion(worker, VersionRef(trial, 1, number), True) for number, (worker, trial) in enumerate(pairs, 6)
    ]
    assert desk.saved(1, running[0]) == desk.saved(1, running[1]) == []
    assert desk.saved(1) == [m.Finish(complete=False)]
    assert desk.tell(m.WorkerJoined("w3")) == []


def test_a_drain_leaves_in_shared_memory_what_nobody_holds():
    desk = Desk("w1", trials=2)
    desk.finished()
    desk.saved(1, durable=False)
    desk.tell(m.WorkerLost("w1", "killed"))
    assert desk.tell(m.RequestMade("drain")) == [m.Finish(complete=False)]
    assert list(desk["t0001"].saved) == [1]


def test_draining_before_any_work_finishes_at_once():
    assert Desk().tell(m.RequestMade("drain")) == [m.Finish(complete=False)]


def test_a_drain_that_comes_as_all_is_done_is_complete():
    desk = Desk("w1", epochs=1)
    desk.epoch(loss=1.0)
    assert desk.tell(m.RequestMade("drain")) == []
    assert desk.saved(2)[-1] == m.Finish(complete=True)


def test_a_resumed_run_goes_on_where_it_stopped():
    desk = Desk("w1", trials=2)
    desk.finished()
    desk.saved(1, durable=False)
    again = Controller(desk.search, desk.controller.dispatcher.policy, partitions=2, valid_partitions=1)
    again.restore(desk.messages)
    assert again.handle(m.RunStarted("test")) == []
    assert not again.schedule.slots
    assert again.handle(m.WorkerJoined("w1")) == [m.RunUnit("w1", Unit("t0002", 1, 1), 4, VersionRef("t0002", 0, None))]


def test_a_finished_run_that_is_resumed_is_finished():
    desk = Desk("w1", epochs=1)
    desk.epoch(loss=1.0)
    desk.saved(2)
    again = Controller(desk.search, POLICIES["random"](), partitions=2, valid_partitions=1)
    again.restore(desk.messages)
    assert again.finished
    assert again.handle(m.RunStarted("test")) == [m.Finish(complete=True)]
