"""The controller, one event at a time. Whole experiments are in tests/scheduler."""

from __future__ import annotations

import math

import pytest

from hopfleet.controller.decisions.versions import AT_RISK
from hopfleet.domain import messages as m
from hopfleet.domain.objectives import Limit
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.search import Random
from hopfleet.search.base import Goal, Stop
from tests.helpers.controller_desk import Desk, of

pytestmark = pytest.mark.usefixtures("few_saves")


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
