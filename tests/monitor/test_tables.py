"""The tables as text at several widths."""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import pytest
from rich.console import Console, RenderableType

from hopfleet.domain.messages import EpochEnded, Finish, Message, TrialAdded, TrialEnded
from hopfleet.domain.trial import TrialState
from hopfleet.monitor.history import History
from hopfleet.monitor.terminal.tables import header, leaderboard_table, trials_table, workers_line, workers_table


def text_of(renderable: RenderableType, width: int = 110) -> str:
    console = Console(file=io.StringIO(), record=True, width=width, color_system=None)
    console.print(renderable)
    return console.export_text()


def history_of(*messages: Message) -> History:
    records = [(1.0, message) for message in messages]
    return History.of(records, metric="accuracy", mode="max", partitions=2, name="[bold]name")


def test_the_leaderboard_ranks_trials_with_their_configurations(quiet_history: History) -> None:
    lines = text_of(leaderboard_table(quiet_history, limit=3)).splitlines()
    head = ["#", "trial", "state", "epochs", "accuracy", "loss", "lr", "width", "optimizer.name", "optimizer.momentum"]
    assert lines[0].split() == head
    assert [line.split()[:4] for line in lines[2:]] == [
        [str(rank), trial.id, "completed", "4/4"] for rank, trial in enumerate(quiet_history.leaderboard()[:3], start=1)
    ]


@pytest.mark.parametrize("width", [10, 38, 60, 80, 200])
def test_tables_keep_to_the_width_and_name_what_they_leave_out(eventful_history: History, width: int) -> None:
    for table in (leaderboard_table(eventful_history), trials_table(eventful_history), workers_table(eventful_history)):
        lines = text_of(table, width).splitlines()
        assert all(len(line) <= width for line in lines)
    assert all(len(line) <= width for line in text_of(header(eventful_history), width).splitlines())
    assert all(len(line) <= width for line in text_of(workers_line(eventful_history), width).splitlines())


def test_a_narrow_leaderboard_keeps_the_trial_and_the_metric(quiet_history: History) -> None:
    lines = text_of(leaderboard_table(quiet_history), 17).splitlines()
    assert lines[0].split() == ["trial", "accuracy"]
    assert lines[-1].startswith("not shown: #")


def test_values_that_are_missing_or_not_numbers_are_shown_as_such() -> None:
    trials = [TrialAdded(f"t{number}", number, {"layers": [64, "[red]"]}, 0, 3) for number in range(2)]
    table = leaderboard_table(history_of(*trials, EpochEnded("t1", 1, 2, {"accuracy": math.nan}, True)))
    rows = [line.split() for line in text_of(table).splitlines()[2:]]
    assert [row[:5] for row in rows] == [["1", "t0", "pending", "0/3", "–"], ["2", "t1", "pending", "1/3", "nan"]]
    assert all(row[5:] == ["[64,", "'[red]']"] for row in rows)


def test_the_trials_table_says_why_trials_ended() -> None:
    failed = TrialEnded("t0", TrialState.FAILED, "ValueError: bad\nshape")
    assert "ValueError: bad shape" in text_of(trials_table(history_of(TrialAdded("t0", 0, {}, 0, 3), failed)))


def test_the_workers_table_says_what_they_do(simulate: Callable[..., list[tuple[float, Message]]]) -> None:
    records = simulate(eventful=True)[:150]
    history = History.of(records, metric="accuracy", mode="max", partitions=4, name="digits")
    now = {worker.name: worker.doing for worker in history.live_workers()}
    text = text_of(workers_table(history))
    assert all(str(unit or "idle") in text for unit in now.values())
    line = text_of(workers_line(history))
    assert all(f"{name}:{unit.trial}/{unit.partition}" in line for name, unit in now.items() if unit)
    assert "w1" in text and "gone" in text and "w1" not in line


def test_the_header_sums_up(eventful_history: History) -> None:
    leader = eventful_history.best()
    assert leader is not None
    title, progress, best = text_of(header(eventful_history)).splitlines()
    assert title.split() == ["digits", "7", "completed", "1", "failed", "run", "2"]
    assert progress.endswith("120/120 units  100%  1m 22s")
    assert best.startswith(f"best {leader.id}  accuracy=") and "width=" in best and "momentum" not in best


def test_why_there_is_no_best_trial() -> None:
    added = [TrialAdded(f"t{number}", number, {}, 0, 3) for number in range(2)]
    failed = [TrialEnded(f"t{number}", TrialState.FAILED, "no") for number in range(2)]
    assert "best  none yet" in text_of(header(history_of(*added)))
    assert "best  none yet" in text_of(header(history_of(*added, failed[0])))
    assert "best  none: all 2 trials failed" in text_of(header(history_of(*added, *failed)))
    assert "best  none: the trial failed" in text_of(header(history_of(added[0], failed[0])))
    ended = [TrialEnded("t0", TrialState.STOPPED, "enough"), Finish(True)]
    assert "best  none: no trial has a value of accuracy" in text_of(header(history_of(added[0], *ended)))
    diverged = EpochEnded("t0", 1, 1, {"accuracy": float("nan")}, True)
    assert "no trial has a number as its accuracy" in text_of(header(history_of(added[0], diverged)))


def test_nothing_in_a_history_is_taken_for_markup() -> None:
    assert "[bold]name" in text_of(header(history_of()))


def test_an_empty_history_can_be_shown() -> None:
    history = history_of()
    assert "best  none yet" in text_of(header(history))
    assert "no workers" in text_of(workers_line(history))
    assert text_of(leaderboard_table(history)).split()[:2] == ["#", "trial"]
