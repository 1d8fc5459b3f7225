"""The controller, one event at a time. Whole experiments are in tests/scheduler."""

from __future__ import annotations

import math

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.controller.decisions.versions import AT_RISK
from hopfleet.domain import messages as m
from hopfleet.domain.objectives import Limit
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import Random
from hopfleet.search.base import Goal, Stop
from tests.helpers.controller_desk import Desk, of


@pytest.fixture(autouse=True)
def few_saves(monkeypatch):
    """Units take a second here. What is saved within an epoch has tests of its own."""
    monkeypatch.setattr("hopfleet.controller.decisions.versions.AT_RISK", 1.5)


def test_trials_are_added_at_once_and_named_in_order():
    desk = Desk(trials=3, seed=5)
    added = of(desk.started, m.TrialAdded)
    assert [(x.trial, x.number, x.epochs) for x in added] == [("t0001", 0, 2), ("t0002", 1, 2), ("t0003", 2, 2)]
    assert [x.seed for x in added] == [derive(5, "trial", number) for number in range(3)]
    assert [x.config for x in added] == [desk.search.suggest(number).config for number in range(3)]


def test_no_more_than_max_live_trials_at_once():
    desk = Desk("w1", trials=3, max_live=2)
    assert len(of(desk.started, m.TrialAdded)) == 2
    follow = desk.failed()
    assert [type(message) for message in follow] == [m.TrialEnded, m.TrialAdded, m.RunUnit]
    assert follow[1].trial == "t0003"


def test_a_worker_gets_a_unit_as_it_joins():
    assert Desk("w1").joined == [m.RunUnit("w1", Unit("t0001", 1, 0), 1, VersionRef("t0001", 0, None))]


def test_the_last_unit_of_an_epoch_says_so_and_attempts_count_up():
    desk = Desk("w1")
    (command,) = desk.finished()
    assert (command.last, command.model.version, command.attempt) == (True, 1, 2)


def test_a_model_that_stays_is_saved_at_the_end_of_an_epoch_only():
    desk = Desk("w1")
    assert not of(desk.finished(), m.SaveVersion)
    follow = desk.finished()
    assert follow == [
        m.SaveVersion("w1", VersionRef("t0001", 2, 4), True, waits=True),
        m.RunUnit("w1", Unit("t0001", 1, 0, Work.EVALUATE), 3, VersionRef("t0001", 2, None)),
    ]


def test_where_epochs_are_short_newer_versions_replace_those_that_wait():
    """The best version so far stays, and the last one of the trial does not wait."""
    desk = Desk("w1", epochs=5, partitions=1)
    for loss in (5.0, 3.0, 4.0, 2.0, 1.0):
        desk.finished()
        desk.evaluated(loss=loss)
    saves = of(desk.messages, m.SaveVersion)
    numbers = {save.ref.attempt: save.ref.version for save in saves}
    assert [(save.ref.version, save.waits) for save in saves] == [
        (1, True),
        (2, True),
        (3, True),
        (4, True),
        (5, False),
    ]
    assert [[numbers[number] for number in save.replaces] for save in saves] == [[], [], [1], [3], [2]]
    assert {save.version for save in desk["t0001"].saves.values()} == {4, 5}


def test_a_version_that_waits_is_saved_at_once_when_the_run_is_drained():
    desk = Desk("w1", "w2", partitions=1)
    (waiting,) = of(desk.finished(), m.SaveVersion)
    assert waiting.waits
    (save,) = of(desk.tell(m.RequestMade("drain")), m.SaveVersion)
    assert (save.ref.version, save.waits, save.replaces) == (1, False, (waiting.ref.attempt,))
    desk.evaluated(loss=1.0)
    assert of(desk.saved(1), m.Finish)


def test_a_best_version_that_waits_is_saved_with_the_next_one_when_the_run_is_drained():
    """Its worker trains on, so the copy that waits is all there is of the version."""
    desk = Desk("w1", partitions=2, valid=0, epochs=3)
    desk.finished(loss=1.0)
    (waiting,) = of(desk.finished(loss=1.0), m.SaveVersion)
    assert waiting.waits and desk["t0001"].trains_on == "w1"
    assert not of(desk.tell(m.RequestMade("drain")), m.SaveVersion)
    (save,) = of(desk.finished(loss=1.0), m.SaveVersion)
    assert (save.ref.version, save.durable, save.waits, save.replaces) == (3, True, False, ())
    assert not of(desk.saved(3), m.Finish)
    assert of(desk.saved(2), m.Finish)


def test_a_version_that_other_workers_evaluate_does_not_wait():
    desk = Desk("w1", "w2", partitions=1, valid=3)
    (save,) = of(desk.finished(), m.SaveVersion)
    assert not save.waits
    assert [unit.worker for unit in of(desk.saved(1), m.RunUnit)] == ["w2"]


@pytest.mark.parametrize(("seconds", "units"), [(0.5, 1), (0.49, 2), (0.2, 3)])
def test_no_more_than_half_a_second_of_training_is_at_risk(monkeypatch, seconds, units):
    monkeypatch.undo()
    assert AT_RISK == 0.5
    desk = Desk("w1", partitions=5, valid=0)
    for unit in range(1, units + 1):
        follow = desk.finished(took=seconds)
        saves = [m.SaveVersion("w1", VersionRef("t0001", unit, unit + 2), False)] if unit == units else []
        assert of(follow, m.SaveVersion) == saves
    assert of(follow, m.RunUnit)[0].model.version == units


def test_a_trial_waits_for_its_best_model_whatever_order_reports_come_in():
    desk = Desk("w1")
    desk.epoch(loss=1.0)
    desk.epoch(loss=2.0)
    assert not of(desk.saved(4), m.TrialEnded)
    assert [x.trial for x in of(desk.saved(2), m.TrialEnded)] == ["t0001"]


def test_a_model_that_leaves_is_saved_for_others():
    desk = Desk("w1", trials=2)
    assert of(desk.finished(), m.SaveVersion) == [m.SaveVersion("w1", VersionRef("t0001", 1, 3), False)]
    desk.saved(1, durable=False)
    follow = desk.tell(m.WorkerJoined("w2"))
    assert follow == [m.RunUnit("w2", Unit("t0001", 1, 1), 4, VersionRef("t0001", 1, 3), last=True)]


def test_metrics_of_training_and_validation():
    desk = Desk("w1", valid=2)
    desk.finished(train_loss=1.0)
    desk.finished(train_loss=2.0)
    desk.evaluated(loss=5.0)
    ended = of(desk.evaluated(loss=6.0), m.EpochEnded)
    assert ended == [m.EpochEnded("t0001", 1, 2, {"train_loss": 1.5, "loss": 5.5}, True)]


@pytest.mark.parametrize(("losses", "best"), [([2.0, 1.0], [True, True]), ([1.0, 2.0], [True, False])])
def test_best_epochs(losses, best):
    desk = Desk("w1", epochs=3)
    found = [of(desk.epoch(loss=loss), m.EpochEnded)[0].best for loss in losses]
    assert found == best


def test_nan_is_best_only_while_there_is_nothing_else():
    desk = Desk("w1", epochs=4)
    found = [of(desk.epoch(loss=loss), m.EpochEnded)[0].best for loss in (math.nan, 3.0, math.nan)]
    assert found == [True, True, False]


def test_without_validation_an_epoch_ends_with_its_last_unit():
    desk = Desk("w1", valid=0)
    desk.finished(loss=1.0)
    follow = desk.finished(loss=3.0)
    kinds = [type(message) for message in follow]
    assert kinds == [m.EpochEnded, m.SaveVersion, m.RunUnit]
    assert follow[0].metrics == {"loss": 2.0}


def test_a_metric_that_does_not_come_fails_the_trial():
    end = of(Desk("w1").epoch(accuracy=1.0, f1=0.5), m.TrialEnded)[0]
    assert end.state is TrialState.FAILED
    assert end.reason == "metric='loss': is not among those that the task returned (accuracy, f1)"
    assert "(none)" in of(Desk("w1").epoch(), m.TrialEnded)[0].reason


def test_all_metrics_of_the_goal_must_come():
    desk = Desk("w1")
    desk.controller.search.goal = Goal("loss", "min", (("params", "min"),))
    end = of(desk.epoch(loss=1.0), m.TrialEnded)[0]
    assert end.reason == "metric='params': is not among those that the task returned (loss)"


def test_the_last_epoch_is_best_by_its_number():
    desk = Desk("w1", epochs=2)
    desk.controller.search.goal = Goal("epoch", "max")
    ends = [of(desk.epoch(loss=loss), m.EpochEnded)[0] for loss in (1.0, 2.0)]
    assert [(end.metrics, end.best) for end in ends] == [
        ({"loss": 1.0, "epoch": 1.0}, True), ({"loss": 2.0, "epoch": 2.0}, True)
    ]  # fmt: skip


def test_an_epoch_within_limits_is_better_than_any_beyond():
    desk = Desk("w1", epochs=4)
    desk.controller.search.goal = Goal("loss", "min", limits=(Limit.parse("size <= 5"),))
    ends = [of(desk.epoch(loss=loss, size=size), m.EpochEnded)[0] for loss, size in ((3, 6), (9, 5), (1, 7), (8, 4))]
    assert [end.best for end in ends] == [True, True, False, True]


def test_a_trial_ends_when_its_last_version_is_durable():
    desk = Desk("w1", epochs=1)
    follow = desk.epoch(loss=1.0)
    assert not of(follow, m.TrialEnded)
    assert desk.saved(2) == [m.TrialEnded("t0001", TrialState.COMPLETED), m.Finish(complete=True)]
    assert desk.controller.finished


def test_a_trial_that_was_saved_before_its_evaluation_ends_with_it():
    desk = Desk("w1", epochs=1)
    desk.finished()
    desk.finished()
    desk.saved(2)
    kinds = [type(message) for message in desk.evaluated(loss=1.0)]
    assert kinds == [m.EpochEnded, m.TrialEnded, m.Finish]


def test_the_last_and_the_best_version_stay():
    desk = Desk("w1", epochs=3)
    drops = []
    for epoch, loss in enumerate([1.0, 3.0, 2.0], 1):
        drops.append(of(desk.epoch(loss=loss), m.DropVersion))
        drops.append(of(desk.saved(2 * epoch), m.DropVersion))
    assert [[drop.ref.version for drop in some] for some in drops] == [[], [], [], [], [], [4]]


def test_a_failed_trial_leaves_nothing_that_is_not_durable():
    desk = Desk("w1", "w2")
    desk.epoch(loss=1.0)
    desk.saved(2)
    desk.finished()
    desk.saved_unasked(3)
    follow = desk.failed()
    assert follow[0] == m.DropVersion(VersionRef("t0001", 3, 93))
    assert follow[1] == m.TrialEnded("t0001", TrialState.FAILED, "ValueError: no", "trace")


class StopFirst(Random):
    def observe(self, trial, epoch, metrics):
        return [Stop(trial.id, "enough")]


def test_the_search_stops_a_trial():
    desk = Desk("w1", search=StopFirst(1, 3))
    desk.epoch(loss=1.0)
    end = of(desk.saved(2), m.TrialEnded)[0]
    assert (end.state, end.reason) == (TrialState.STOPPED, "enough")


def test_a_failing_evaluation_waits_for_the_others():
    desk = Desk("w1", "w2", valid=2)
    desk.finished()
    desk.finished()
    desk.saved(2)
    assert {slot.unit.work for slot in desk.controller.schedule.slots.values()} == {Work.EVALUATE}
    assert not of(desk.failed("w1"), m.TrialEnded)
    assert of(desk.evaluated("w2", loss=1.0), m.TrialEnded)[0].state is TrialState.FAILED


def test_a_state_that_cannot_be_saved_fails_the_trial():
    desk = Desk("w1")
    desk.finished()
    desk.finished()
    failed = m.SaveFailed(VersionRef("t0001", 2, desk.saving(2)), "TypeError: no", "trace")
    assert not of(desk.tell(failed), m.TrialEnded)
    end = of(desk.evaluated(loss=1.0), m.TrialEnded)
    assert end == [m.TrialEnded("t0001", TrialState.FAILED, "TypeError: no", "trace")]


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
    # Somebody else has deleted it, and the worker was slower than the save.
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


# ------------------------------------------------------------------------------------------------ what hangs


def test_what_takes_far_too_long_is_given_up():
    desk = Desk("w1", unit_timeout=10.0)
    assert desk.controller.overdue({}) == desk.controller.overdue({"w1": 10.0}) == []
    (event,) = desk.controller.overdue({"w1": 10.5})
    assert event == m.UnitOverdue("w1", 1, 10.5, 0.0, 10.0)
    assert desk.tell(event) == [m.StopUnit("w1", "t0001", 1, overdue=True)]
    assert desk.controller.overdue({"w1": 11.0}) == []  # it is on its way
    assert desk.tell(m.RequestMade("drain")) == []  # nobody is told twice


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
    """The unit ended just before its worker was killed; the next one is lost, and nobody counts it."""
    desk = Desk("w1", unit_timeout=1.0)
    desk.tell(m.UnitOverdue("w1", 1, 5.0, 0.0))
    (start,) = of(desk.finished(), m.RunUnit)
    assert start.attempt == 2
    desk.tell(m.WorkerLost("w1", "killed"))
    assert desk["t0001"].losses == []


# ------------------------------------------------------------------------------------------ a broken machine


def lose(desk, count):
    """So many workers are lost, one after another; returns what followed from the last loss."""
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
    assert not of(desk.messages, m.TrialEnded)  # nobody is to blame
    # Whoever mended it goes on.
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


# ---------------------------------------------------------------------------------------------- partitions


def pinned(*workers, about_to_join=0, **options):
    """Workers that can read some partitions only; w1 is the first."""
    desk = Desk(**options)
    desk.tell(m.RunStarted("test", workers=len(workers) + about_to_join))
    for number, partitions in enumerate(workers, 1):
        desk.joined = desk.tell(m.WorkerJoined(f"w{number}", partitions=partitions))
    return desk


def test_nothing_is_placed_while_workers_are_about_to_join():
    desk = pinned((0,), (1,))
    assert not of(desk.messages, m.PlacePartition, m.PartitionsMissing)
    follow = desk.tell(m.WorkerLost("w2", "killed", replaced=True))
    assert not of(follow, m.PlacePartition, m.PartitionsMissing)
    assert not of(desk.tell(m.WorkerJoined("w3", partitions=(1,))), m.PlacePartition)


def test_a_worker_that_will_not_join_is_not_waited_for():
    desk = pinned((0,), about_to_join=1)
    assert not of(desk.messages, m.PlacePartition, m.PartitionsMissing)
    follow = desk.tell(m.WorkerUnavailable("its node was lost"))
    assert of(follow, m.PlacePartition) == [m.PlacePartition("w1", 1)]
    # Whoever joins in its place is welcome.
    desk.tell(m.WorkerJoined("w2", partitions=(1,)))
    assert desk.controller.schedule.starting == 0


def test_partitions_of_a_worker_that_is_gone_are_placed_elsewhere():
    desk = pinned((0,), (1,))
    follow = desk.tell(m.WorkerLost("w2", "killed"))
    assert of(follow, m.PlacePartition) == [m.PlacePartition("w1", 1)]
    assert not of(follow, m.PartitionsMissing)
    assert desk.controller.refuses(m.PartitionPlaced("w1", 0))
    desk.tell(m.PartitionPlaced("w1", 1))
    assert desk.controller.refuses(m.PartitionPlaced("w1", 1))  # once is enough
    assert desk.controller.schedule.slots["w1"].partitions == {0, 1}


def test_a_partition_that_nobody_can_get_is_named_and_awaited():
    desk = pinned((0,), (1,))
    desk.tell(m.WorkerLost("w2", "killed"))
    follow = desk.tell(m.PartitionUnavailable("w1", 1, "no room"))
    assert follow == [m.PartitionsMissing((1,))]
    assert desk.controller.missing == (1,)
    desk.finished()
    assert not of(desk.messages[-3:], m.Finish)  # it waits
    follow = desk.tell(m.WorkerJoined("w3", partitions=(1,)))
    assert of(follow, m.PartitionsMissing) == [m.PartitionsMissing(())]


def test_who_was_to_get_a_partition_and_is_lost_is_not_waited_for():
    desk = pinned((0,), (1,), (0,))
    desk.tell(m.WorkerLost("w2", "killed"))
    told = of(desk.messages, m.PlacePartition)[-1].worker
    follow = desk.tell(m.WorkerLost(told, "killed"))
    (again,) = of(follow, m.PlacePartition)
    assert again.partition == 1 and again.worker != told


def test_a_worker_without_partitions_gets_copies():
    desk = pinned((0,), (1, 2), partitions=3)
    follow = desk.tell(m.WorkerJoined("w3", partitions=()))
    assert of(follow, m.PlacePartition) == [m.PlacePartition("w3", 1), m.PlacePartition("w3", 2)]


def test_a_partition_may_come_to_a_worker_that_is_about_to_go():
    desk = pinned((0,), (1,), (0, 1))
    desk.tell(m.WorkerJoined("w4", partitions=()))
    desk.tell(m.RequestMade("workers", {"count": 3}, "ada", 1))
    gone = of(desk.messages, m.WorkerRetired)[-1].worker
    assert gone == "w4"
    (placed, *_) = [x for x in of(desk.messages, m.PlacePartition) if x.worker == gone]
    before = desk.controller.schedule.replicas(placed.partition)
    desk.tell(m.PartitionPlaced(gone, placed.partition))
    assert desk.controller.schedule.replicas(placed.partition) == before


def test_a_trial_that_stayed_is_ready_for_what_its_worker_got():
    """The model is on w1 alone, which has nothing for it until a partition is placed there."""
    desk = pinned((0,), (1,))
    desk.finished()
    desk.tell(m.WorkerLost("w2", "killed"))
    follow = desk.tell(m.PartitionPlaced("w1", 1))
    assert [(x.worker, x.unit.partition) for x in of(follow, m.RunUnit)] == [("w1", 1)]


def test_it_stands_while_a_person_or_a_disk_wants_it_to():
    desk = Desk("w1")
    assert not desk.controller.stands
    desk.tell(m.RequestMade("pause"))
    assert desk.controller.stands
    desk.tell(m.RequestMade("proceed"))
    assert not desk.controller.stands
    desk.finished()
    desk.finished()
    desk.tell(m.SaveDelayed("w1", VersionRef("t0001", 2, desk.saving(2)), "the disk is full"))
    assert desk.controller.stands
    desk.saved(2)
    assert not desk.controller.stands
