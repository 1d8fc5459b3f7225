"""Requests and their effects in the views: clones, pauses, deleted trials, a run that is held."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from hopfleet.domain.messages import (
    RELEASED,
    EpochEnded,
    Message,
    PartitionsMissing,
    RequestAnswered,
    RequestMade,
    RunHeld,
    RunStalled,
    RunStarted,
    RunUnit,
    TrialAdded,
    TrialDeleted,
    TrialEnded,
    TrialPaused,
    TrialResumed,
    TrialRolledBack,
    UnitFinished,
    UnitOverdue,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.monitor.charts.curves import draw_curves
from hopfleet.monitor.charts.gantt import draw_gantt
from hopfleet.monitor.history import History
from hopfleet.monitor.terminal.live import PlainView, TerminalView
from hopfleet.monitor.terminal.tables import header, leaderboard_table, trials_table
from hopfleet.monitor.terminal.watcher import watchers
from hopfleet.monitor.wording import one_line


def unit(trial: str, version: int, partition: int) -> list[Message]:
    epoch, started = (version + 1) // 2, 100.0 + version
    return [
        RunUnit("w1", Unit(trial, epoch, partition), 1, VersionRef(trial, version - 1, None), last=version % 2 == 0),
        UnitFinished("w1", Unit(trial, epoch, partition), 1, version, started, started + 1.0),
    ]


def ended(trial: str, epoch: int, accuracy: float) -> EpochEnded:
    return EpochEnded(trial, epoch, 2 * epoch, {"accuracy": accuracy}, best=True)


#: t0001 trains for two epochs; t0002 goes on from its first; t0003 starts afresh with what it had.
STORY: list[Message] = [
    RunStarted("1"),
    WorkerJoined("w1"),
    TrialAdded("t0001", 0, {"lr": 0.1}, 0, 2),
    *unit("t0001", 1, 0),
    *unit("t0001", 2, 1),
    ended("t0001", 1, 0.5),
    *unit("t0001", 3, 0),
    *unit("t0001", 4, 1),
    ended("t0001", 2, 0.6),
    TrialEnded("t0001", TrialState.COMPLETED),
    TrialAdded("t0002", 1, {"lr": 0.2}, 1, 3, "clone", "t0001", (0, 1)),
    TrialAdded("t0003", 2, {"lr": 0.3}, 2, 2, "clone", "t0001"),
    *unit("t0002", 3, 1),
    *unit("t0002", 4, 0),
    ended("t0002", 2, 0.7),
]


def history(*more: Message) -> History:
    records = [(100.0 + number, message) for number, message in enumerate([*STORY, *more])]
    return History.of(records, metric="accuracy", mode="max", partitions=2, name="steered")


def printed(renderable: Any) -> str:
    stream = io.StringIO()
    Console(file=stream, width=120).print(renderable)
    return stream.getvalue()


def test_a_clone_goes_on_from_its_parents_epoch() -> None:
    folded = history()
    clone = folded.trials["t0002"]
    assert (clone.begins, clone.epochs_trained, clone.source) == (1, 2, "t0001 at 1")
    assert (folded.trials["t0003"].begins, folded.trials["t0003"].source) == (0, "t0001")
    assert clone.visits == [[1, 0]]
    assert folded.progress().planned == 4 + 4 + 4
    assert folded.progress().done == 4 + 2


def test_a_clone_that_is_rolled_back_keeps_what_it_inherited() -> None:
    clone = history(TrialRolledBack("t0002", 3)).trials["t0002"]
    assert clone.visits == [[1]]
    assert history(TrialRolledBack("t0002", 2)).trials["t0002"].visits == []


@pytest.mark.parametrize("table", [leaderboard_table, trials_table])
def test_tables_say_where_a_clone_came_from(table: Any) -> None:
    text = printed(table(history(TrialPaused("t0002"))))
    (row,) = [line for line in text.splitlines() if "t0001 at 1" in line]
    assert "t0002" in row and "paused" in row and "2/3" in row
    assert "from" not in printed(table(History(metric="a", mode="max", partitions=1, name="x")))


def test_the_curve_of_a_clone_begins_where_its_parent_stood() -> None:
    figure = draw_curves(history())
    lines = {tuple(map(tuple, line.get_xydata())) for line in figure.axes[0].lines}  # type: ignore[arg-type]
    assert ((1.0, 0.5), (2.0, 0.7)) in lines


def test_deleted_trials_vanish() -> None:
    folded = history(TrialEnded("t0001", TrialState.STOPPED, "deleted by a person"), TrialDeleted("t0001"))
    assert list(folded.trials) == ["t0002", "t0003"]
    assert folded.counts()[TrialState.COMPLETED] == 0
    assert len(leaderboard_table(folded).columns[0].cells) == 2
    draw_gantt(folded)  # its units are still what the worker was busy with
    (line,) = [line for line in draw_curves(folded).axes[0].lines if len(line.get_xdata())]  # type: ignore[arg-type]
    assert list(line.get_xdata()) == [2]  # type: ignore[call-overload]


def test_a_resumed_trial_runs_again() -> None:
    trial = history(TrialResumed("t0001", 5)).trials["t0001"]
    assert (trial.state, trial.epochs, trial.reason) == (TrialState.RUNNING, 5, "")


def test_partitions_that_are_nowhere_are_named() -> None:
    waits = "partitions 1, 3 are on no worker"
    assert waits in printed(header(history(PartitionsMissing((1, 3)))))
    for after in (PartitionsMissing(()), RunStarted("test")):
        assert "on no worker" not in printed(header(history(PartitionsMissing((1, 3)), after)))
    waits = (
        "partition 1 and validation partitions 0, 2 are on no worker and cannot be fetched; waiting for a worker that"
    )
    assert waits in " ".join(printed(header(history(PartitionsMissing((1,), (0, 2))))).split())
    stream = io.StringIO()
    view = PlainView(history(), stream)
    for message in (PartitionsMissing((2,)), PartitionsMissing((), (3,)), PartitionsMissing(())):
        view.history.apply(1.0, message)
        view.update(1.0, message)
    assert "partition 2 is on no worker and cannot be fetched; waiting for a worker that has it" in stream.getvalue()
    assert "validation partition 3 is on no worker and cannot be fetched; waiting" in stream.getvalue()
    assert "all partitions are available again" in stream.getvalue()


def test_what_hangs_is_told_everywhere() -> None:
    for make in (PlainView, TerminalView):
        stream = io.StringIO()
        make(history(), stream).update(1.0, UnitOverdue("w1", 7, 75.0, 2.0, 60.0, True))  # type: ignore[operator]
        assert "worker w1 hangs: running for 1m 15s, limit 1m 00s, estimated 2s; replacing it" in one_line(
            stream.getvalue()
        )


def test_a_held_run_says_so_until_it_proceeds_or_another_begins() -> None:
    assert "paused on request" in printed(header(history(RunHeld(True))))
    for after in (RunHeld(False), RunStarted("1")):
        assert "paused on request" not in printed(header(history(RunHeld(True), after)))


def test_requests_are_notes_in_the_live_view() -> None:
    stream = io.StringIO()
    shown = History(metric="a", mode="max", partitions=2, name="x")
    view = PlainView(shown, stream)
    observers = [shown, view, *watchers(view)]
    told: list[Message] = [
        RequestMade("stop", {"trial": "t0003"}, "ada@box", 1),
        RequestAnswered(1, granted=True, text="t0003 stops after what it is doing"),
        RequestMade("pause", {}, "bob@box", 2),
        RequestAnswered(2, granted=False, text="the experiment is paused already"),
        RequestAnswered(0, granted=True, text="from 2 to 1 workers"),
        WorkerJoined("w2"),
        WorkerLost("w2", RELEASED),
        RunStalled("liveness: 1 trial", overruled=True),
        RunStalled("liveness: 2 trials", overruled=False),
    ]
    for message in told:
        for observer in observers:
            observer.update(100.0, message)
    bug = "warning: this is a bug of Hopfleet or of the policy, please report it: liveness: "
    assert stream.getvalue().splitlines() == [
        "ada@box: t0003 stops after what it is doing",
        "bob@box: pause refused: the experiment is paused already",
        "an earlier request: from 2 to 1 workers",
        "[     0s] worker w2 released",
        f"{bug}1 trial; units start without the policy",
        f"{bug}2 trials; nothing can start; interrupt and resume the run",
    ]
