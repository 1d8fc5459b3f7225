"""The fold: what a history says after which messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.expectation import Expectation
from hopfleet.domain.messages import (
    DropVersion,
    EpochEnded,
    Finish,
    Message,
    RequestMade,
    RunHeld,
    RunStarted,
    RunUnit,
    SaveVersion,
    TrialAdded,
    TrialEnded,
    TrialPaused,
    TrialRolledBack,
    UnitFailed,
    UnitFinished,
    VersionLost,
    VersionSaved,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.placement import Placement
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.monitor.history import _HANDLERS, History, Mode
from hopfleet.monitor.progress import UnitCounts


def fold(*messages: Message, mode: Mode = "max", partitions: int = 2) -> History:
    """One message a second from second 100 on, after a run with two workers has started."""
    beginning: list[Message] = [RunStarted("0.1.0"), WorkerJoined("w0"), WorkerJoined("w1", Placement.on("cuda:0"))]
    records = [(100.0, message) for message in beginning]
    records += [(100.0 + second, message) for second, message in enumerate(messages, start=1)]
    return History.of(records, metric="accuracy", mode=mode, partitions=partitions, name="test")


def added(number: int, epochs: int = 2) -> TrialAdded:
    return TrialAdded(f"t{number}", number, {"lr": 0.1 * number}, seed=number, epochs=epochs)


def finished(trial: int, version: int, partition: int, *, worker: str = "w0", hopped: bool = False) -> UnitFinished:
    """The unit that made ``version`` with two partitions: it took two seconds."""
    epoch, started = (version + 1) // 2, 100.0 + 2 * (version - 1)
    return UnitFinished(worker, Unit(f"t{trial}", epoch, partition), 1, version, started, started + 2.0, hopped=hopped)


def epoch_ended(trial: int, epoch: int, accuracy: float, *, best: bool = True) -> EpochEnded:
    return EpochEnded(f"t{trial}", epoch, 2 * epoch, {"accuracy": accuracy}, best)


def order(history: History) -> list[str]:
    return [trial.id for trial in history.leaderboard()]


def test_a_trial_starts_running_with_its_first_unit() -> None:
    assert fold(added(0)).trials["t0"].state is TrialState.PENDING
    assert fold(added(0), finished(0, 1, partition=1)).trials["t0"].state is TrialState.RUNNING


def test_visits_are_grouped_by_epoch_in_the_order_they_were_made() -> None:
    trial = fold(added(0), finished(0, 1, 1), finished(0, 2, 0), finished(0, 3, 0)).trials["t0"]
    assert trial.visits == [[1, 0], [0]]
    assert trial.units_done == 3


def test_a_rollback_undoes_the_units_after_its_version() -> None:
    history = fold(added(0), *(finished(0, v, v % 2) for v in (1, 2, 3)), TrialRolledBack("t0", 1), finished(0, 2, 0))
    assert history.trials["t0"].visits == [[1, 0]]
    assert [span.undone for span in history.spans] == [False, True, True, False]
    assert history.progress().done == 2


def test_a_rollback_to_the_beginning_leaves_no_unit() -> None:
    history = fold(added(0), finished(0, 1, 0), TrialRolledBack("t0", 0))
    assert history.trials["t0"].visits == []


def test_an_epoch_that_ends_again_after_a_rollback_has_one_row() -> None:
    trial = fold(added(0), epoch_ended(0, 1, 0.5), TrialRolledBack("t0", 0), epoch_ended(0, 1, 0.5)).trials["t0"]
    assert [row.epoch for row in trial.epochs_done] == [1]


def test_an_evaluation_that_is_repeated_counts_once() -> None:
    evaluated = UnitFinished("w0", Unit("t0", 1, 0, Work.EVALUATE), 1, 0, 100.0, 101.0)
    assert [span.undone for span in fold(added(0), evaluated, evaluated).spans] == [True, False]


def test_the_best_epoch_is_the_last_one_that_was_called_best() -> None:
    history = fold(added(0, 3), epoch_ended(0, 1, 0.5), epoch_ended(0, 2, 0.7), epoch_ended(0, 3, 0.6, best=False))
    best = history.trials["t0"].best
    assert best is not None and best.epoch == 2 and history.value(history.trials["t0"]) == 0.7


def test_a_failure_keeps_its_error_and_marks_its_span() -> None:
    failure = UnitFailed("w0", Unit("t0", 1, 0), 1, 100.0, 101.0, "ValueError: no", "Traceback")
    history = fold(added(0), failure, TrialEnded("t0", TrialState.FAILED, "ValueError: no", "Traceback"))
    assert history.trials["t0"].error == "ValueError: no"
    assert history.trials["t0"].traceback == "Traceback"
    assert history.spans[0].failed


def test_a_stopped_trial_has_a_reason_but_no_error() -> None:
    trial = fold(added(0), TrialEnded("t0", TrialState.STOPPED, "a rung too low")).trials["t0"]
    assert (trial.reason, trial.error) == ("a rung too low", None)


@pytest.mark.parametrize("mode, expected", [("max", ["t1", "t0", "t2"]), ("min", ["t0", "t2", "t1"])])
def test_leaderboard_is_best_first_and_ties_go_by_number(mode: Mode, expected: list[str]) -> None:
    values = {2: 0.5, 0: 0.5, 1: 0.9}
    messages = [added(number) for number in values] + [epoch_ended(number, 1, v) for number, v in values.items()]
    assert order(fold(*messages, mode=mode)) == expected


@pytest.mark.parametrize("mode", ["min", "max"])
def test_trials_without_a_number_come_last(mode: Mode) -> None:
    history = fold(*map(added, range(4)), epoch_ended(1, 1, math.nan), epoch_ended(3, 1, 0.1), mode=mode)
    assert order(history) == ["t3", "t0", "t1", "t2"]
    leader = history.best()
    assert leader is not None and leader.id == "t3"


def test_there_is_no_best_trial_before_the_first_value() -> None:
    assert fold(added(0)).best() is None
    assert fold(added(0), epoch_ended(0, 1, math.nan)).best() is None


def test_only_durable_versions_that_still_exist_are_saved() -> None:
    saved = [VersionSaved(VersionRef("t0", version, 0), version != 2, "d", 1) for version in (1, 2, 3, 4)]
    history = fold(
        added(0),
        SaveVersion("w0", VersionRef("t0", 1, 0), True),
        *saved,
        DropVersion(VersionRef("t0", 1, 0)),
        VersionLost(VersionRef("t0", 3, 0), "-"),
    )
    assert list(history.trials["t0"].saved) == [4]


def test_counts_name_every_state() -> None:
    history = fold(*map(added, range(3)), finished(0, 1, 0), TrialEnded("t1", TrialState.STOPPED))
    expected = {TrialState.PENDING: 1, TrialState.RUNNING: 1, TrialState.STOPPED: 1}
    assert history.counts() == {state: expected.get(state, 0) for state in TrialState}


def test_a_worker_does_what_it_was_told_until_it_is_done() -> None:
    running = fold(added(0), RunUnit("w0", Unit("t0", 1, 1), 1, VersionRef("t0", 0, None)))
    assert running.workers["w0"].doing == Unit("t0", 1, 1)
    running.apply(110.0, finished(0, 1, partition=1))
    assert running.workers["w0"].doing is None


def test_what_a_worker_was_told_ahead_it_does_when_it_is_done() -> None:
    told = [
        added(1),
        added(2),
        RunUnit("w0", Unit("t1", 1, 0), 1, VersionRef("t1", 0, None)),
        RunUnit("w0", Unit("t2", 1, 0), 2, VersionRef("t2", 0, None), lookahead=True),
    ]
    worker = fold(*told).workers["w0"]
    assert (worker.doing, worker.next) == (Unit("t1", 1, 0), Unit("t2", 1, 0))
    worker = fold(*told, finished(1, 1, 0)).workers["w0"]
    assert (worker.doing, worker.next, worker.since) == (Unit("t2", 1, 0), None, 102.0)
    worker = fold(*told, WorkerLost("w0", "killed")).workers["w0"]
    assert (worker.doing, worker.next) == (None, None)


def test_what_a_lost_worker_was_doing_did_not_happen() -> None:
    history = fold(added(0), RunUnit("w0", Unit("t0", 1, 1), 1, VersionRef("t0", 0, None)), WorkerLost("w0", "killed"))
    (span,) = history.spans
    assert (span.worker, span.started, span.ended, span.undone) == ("w0", 102.0, 103.0, True)
    assert [worker.name for worker in history.live_workers()] == ["w1"]
    assert history.workers["w0"].lost == 103.0


def test_a_new_run_starts_without_workers_and_leaves_a_gap() -> None:
    history = fold(added(0), RunUnit("w1", Unit("t0", 1, 0), 1, VersionRef("t0", 0, None)), Finish(complete=False))
    assert history.finished is False
    history.apply(500.0, RunStarted("0.1.0"))
    assert (history.runs, history.finished, history.live_workers()) == (2, None, [])
    assert history.gaps == [(103.0, 500.0)]
    assert [span.undone for span in history.spans] == [True]
    history.apply(501.0, WorkerJoined("w1"))
    history.apply(510.0, RequestMade("drain"))
    assert history.elapsed == 3.0 + 10.0
    assert history.busy_fraction() == {"w0": 0.0, "w1": 0.0}


def test_progress_leaves_out_what_ended_trials_left_out() -> None:
    history = fold(*map(added, range(3)), finished(0, 1, 0), TrialEnded("t1", TrialState.STOPPED))
    progress = history.progress()
    assert (progress.done, progress.planned) == (1, 8)
    assert progress.fraction == 1 / 8


def expecting(expected: Expectation, *messages: Message, limit: int | None = None) -> History:
    """A history over 2 partitions with two workers."""
    history = History(metric="accuracy", mode="max", partitions=2, name="test", expected=expected, limit=limit)
    for time, message in enumerate([RunStarted("0"), WorkerJoined("w0"), WorkerJoined("w1"), *messages]):
        history.apply(100.0 + time, message)
    return history


def test_the_total_is_known_from_the_start() -> None:
    assert expecting(Expectation(24)).progress().units() == "0/48 units"
    assert expecting(Expectation(24, "about"), added(0)).progress().units() == "0 of about 48 units"
    assert expecting(Expectation(24, "at most"), added(0)).progress().units() == "0 of at most 48 units"
    unlimited = expecting(Expectation(None, "about"), added(0), finished(0, 1, 0)).progress()
    assert (unlimited.units(), unlimited.fraction, unlimited.remaining()) == ("1 unit", 0.0, "")


def test_the_remaining_time_includes_trials_yet_to_come() -> None:
    assert expecting(Expectation(24), added(0), finished(0, 1, 0)).progress().eta == 2.0 * 47 / 2
    about = expecting(Expectation(24, "about"), added(0), finished(0, 1, 0)).progress()
    assert about.remaining() == "eta about 47s"


def test_clones_and_trials_of_users_come_on_top() -> None:
    mine = TrialAdded("t1", 1, {}, 0, 2, "person")
    assert expecting(Expectation(4), added(0), mine).progress().planned == 8 + 4
    assert expecting(Expectation(1), added(0), added(1)).progress().planned == 8, "more than expected"


def test_a_budget_of_epochs_caps_the_total() -> None:
    expected = Expectation(3, capped=True)
    progress = expecting(expected, added(0), added(1), finished(0, 1, 0)).progress()
    assert (progress.units(), progress.eta) == ("1/6 units", 2.0 * 4)


def test_a_budget_of_time_limits_the_remaining_time() -> None:
    expected = Expectation(None, "at most", seconds=10.0)
    progress = expecting(expected, added(0), finished(0, 1, 0)).progress()
    assert (progress.fraction, progress.remaining()) == (0.4, "eta at most 6s")
    late = expecting(Expectation(1000, seconds=5.0), added(0), finished(0, 1, 0)).progress()
    assert (late.fraction, late.eta) == (0.8, 1.0)


def test_there_is_no_remaining_time_while_paused_or_once_nothing_is_known_to_be_left() -> None:
    expected = Expectation(24)
    assert expecting(expected, added(0), finished(0, 1, 0), RunHeld(True)).progress().remaining() == ""
    paused = [added(0, epochs=1), finished(0, 1, 0), finished(0, 2, 1), TrialPaused("t0")]
    assert expecting(Expectation(1, "about"), *paused).progress().eta is None
    assert expecting(Expectation(24), *paused, Finish(True)).progress().units() == "2/2 units"


def test_a_short_remaining_time_is_never_none_at_all() -> None:
    assert UnitCounts(1, 2, "exactly", 0.5, 0.01).remaining() == "eta 1s"


def test_dropped_trials_still_count() -> None:
    done = [added(0, epochs=1), finished(0, 1, 0), finished(0, 2, 1), TrialEnded("t0", TrialState.COMPLETED)]
    history = expecting(Expectation(24), *done, limit=0)
    assert not history.trials
    assert history.progress().units() == "2/48 units"


def test_the_estimate_shares_the_units_among_the_live_workers() -> None:
    messages = [*map(added, range(4)), finished(0, 1, 0)]
    assert fold(*messages).progress().eta == 2.0 * 15 / 2
    assert fold(*messages, WorkerLost("w1", "killed")).progress().eta == 2.0 * 15


def test_the_estimate_knows_that_one_trial_runs_on_one_worker_at_a_time() -> None:
    assert fold(added(0, epochs=10), finished(0, 1, 0)).progress().eta == 2.0 * 19


def test_there_is_no_estimate_without_a_measurement_or_a_worker() -> None:
    assert fold().progress().eta is None
    assert fold(added(0)).progress().eta is None
    lost = [WorkerLost("w0", "-"), WorkerLost("w1", "-")]
    assert fold(added(0), finished(0, 1, 0), *lost).progress().eta is None


def test_nothing_is_ahead_when_all_trials_ended() -> None:
    progress = fold(added(0), TrialEnded("t0", TrialState.FAILED, "no")).progress()
    assert (progress.planned, progress.eta) == (0, None)


def test_busy_fraction_counts_overlapping_work_once() -> None:
    together = [finished(trial, 1, 0) for trial in (0, 1)]
    history = fold(added(0), added(1), *together)
    assert history.busy_fraction() == {"w0": 2.0 / 4.0, "w1": 0.0}


def test_hops_are_counted() -> None:
    assert fold(added(0), finished(0, 1, 0), finished(0, 2, 1, worker="w1", hopped=True)).hops == 1


def test_metric_names_start_with_the_experiments_own() -> None:
    assert fold(added(0), EpochEnded("t0", 1, 2, {"loss": 1.0, "accuracy": 0.5}, True)).metric_names() == [
        "accuracy",
        "loss",
    ]


def test_an_empty_history_has_nothing_to_say() -> None:
    history = History.of([], metric="accuracy", mode="max", partitions=4, name="empty")
    assert (history.leaderboard(), history.elapsed, history.progress().fraction) == ([], 0.0, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_every_trial_visits_every_partition_once_an_epoch_whatever_happened(
    simulate: Callable[..., list[tuple[float, Message]]], seed: int
) -> None:
    records = simulate(eventful=True, seed=seed, stop=0.1)
    history = History.of(records, metric="accuracy", mode="max", partitions=4, name="property")
    assert any(span.undone for span in history.spans) and history.runs == 2
    for trial in history.trials.values():
        complete = trial.visits[: len(trial.epochs_done)]
        assert all(sorted(visits) == [0, 1, 2, 3] for visits in complete)
        counting = [span for span in history.spans if span.trial == trial.id and span.work is Work.TRAIN]
        assert trial.units_done == sum(not span.undone and not span.failed for span in counting)
    assert history.progress().fraction == 1.0
    assert all(0.0 < fraction <= 1.0 for fraction in history.busy_fraction().values())


def test_every_message_is_applied_or_known_to_change_no_view() -> None:
    messages = {kind for union in (m.Event, m.Decision, m.Command) for kind in get_args(union)}
    ignored = {
        *(m.WorkerUnavailable, m.PartitionPlaced, m.PartitionUnavailable, m.SaveFailed),
        *(m.RequestMade, m.RequestAnswered),
        *(m.RecordLogged, m.TrialStopped, m.TrialPrioritised, m.SearchExtended, m.WorkerRetired),
        m.DevicesAllocated,
        *(m.SaveVersion, m.CopyVersion, m.StopUnit, m.PlacePartition, m.AddWorkers, m.FormTeams, m.ReleaseWorker),
    }
    assert _HANDLERS.keys() == messages - ignored
