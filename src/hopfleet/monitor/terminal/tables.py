"""Tables for the terminal, rendered with rich from a history.

A table fits the available width by leaving out, and naming, the least important columns instead of squeezing all of
them. The live view and the command line share these tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hopfleet.domain.trial import TrialState
from hopfleet.monitor.history import History, TrialHistory, WorkerView
from hopfleet.monitor.wording import (
    config_keys,
    describe,
    duration,
    flatten,
    natural_order,
    number,
    one_line,
    short,
    shorten,
    varying_keys,
    waiting_for,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

STATE_STYLES = {
    TrialState.PENDING: "dim",
    TrialState.RUNNING: "cyan",
    TrialState.PAUSED: "blue",
    TrialState.COMPLETED: "green",
    TrialState.STOPPED: "yellow",
    TrialState.FAILED: "red",
}

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Columns with the lowest ``priority`` are the last to be left out."""

    header: str
    cells: Sequence[str]
    priority: int
    justify: Literal["left", "right"] = "left"
    styles: Sequence[str] = ()  #: one style per cell, or none for the default

    @property
    def width(self) -> int:
        return max(len(text) for text in (self.header, *self.cells))


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A rich renderable that shows the columns that fit, the most important ones first."""

    columns: Sequence[Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        shown = self._that_fit(options.max_width)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
        for column in shown:
            table.add_column(Text(column.header), justify=column.justify, no_wrap=True, overflow="ellipsis")
        for row in range(len(self.columns[0].cells)):
            table.add_row(*(Text(c.cells[row], style=c.styles[row] if c.styles else "") for c in shown))
        yield table
        hidden = [column.header for column in self.columns if column not in shown]
        if hidden:
            yield Text(shorten(f"not shown: {', '.join(hidden)}", options.max_width), style="dim")

    def _that_fit(self, width: int) -> list[Column]:
        kept: list[Column] = []
        for column in sorted(self.columns, key=lambda column: column.priority):
            if not kept or sum(other.width + 2 for other in [*kept, column]) <= width:
                kept.append(column)
        return [column for column in self.columns if column in kept]


def leaderboard_table(history: History, limit: int = 15) -> FittedTable:
    """Return a table of the best trials, best first, with metrics at the best epoch and configurations."""
    trials = history.leaderboard()[:limit]
    rank = Column("#", [str(place) for place in range(1, len(trials) + 1)], 4, "right", ["dim"] * len(trials))
    return FittedTable([rank, *_trial_columns(history, trials), *_config_columns(history, trials)])


def trials_table(history: History) -> FittedTable:
    """Return a table of all trials in the order of their numbers, with the reasons why they ended."""
    trials = sorted(history.trials.values(), key=lambda trial: trial.number)
    why = Column("why it ended", [shorten(one_line(trial.reason), 40) for trial in trials], 5)
    units = Column("units", [str(trial.units_done) for trial in trials], 6, "right")
    reasons = [why] if any(why.cells) else []
    return FittedTable([*_trial_columns(history, trials), units, *reasons, *_config_columns(history, trials)])


def _trial_columns(history: History, trials: Sequence[TrialHistory]) -> list[Column]:
    styles = [STATE_STYLES[trial.state] for trial in trials]
    epochs = [f"{trial.epochs_trained}/{trial.epochs}" for trial in trials]
    objectives = [name for name, _ in history.objectives[1:]]
    others = [name for name in history.metric_names() if name != history.metric and name not in objectives]
    clones = [Column("from", [trial.source or NOTHING for trial in trials], 7)] if any(t.parent for t in trials) else []
    return [
        Column("trial", [trial.id for trial in trials], 0),
        Column("state", [trial.state.value for trial in trials], 3, "left", styles),
        Column("epochs", epochs, 2, "right"),
        *clones,
        Column(history.metric, _metric_cells(trials, history.metric), 1, "right", ["bold"] * len(trials)),
        *(Column(name, _metric_cells(trials, name), 1, "right") for name in objectives),
        *_marks(history, trials),
        *(Column(name, _metric_cells(trials, name), 30 + place, "right") for place, name in enumerate(others)),
    ]


def _marks(history: History, trials: Sequence[TrialHistory]) -> Iterator[Column]:
    """Yield a column for the Pareto front, if there are several objectives, and one for limits, if there are any."""
    if len(history.objectives) > 1:
        front = {trial.id for trial in history.pareto()}
        yield Column("pareto", ["*" if trial.id in front else "" for trial in trials], 2)
    if history.limits:
        cells = ["" if trial.best is None else "yes" if history.feasible(trial) else "no" for trial in trials]
        yield Column("feasible", cells, 2)


def _metric_cells(trials: Iterable[TrialHistory], name: str) -> list[str]:
    return [
        number(trial.best.metrics[name]) if trial.best and name in trial.best.metrics else NOTHING for trial in trials
    ]


def _config_columns(history: History, trials: Sequence[TrialHistory]) -> list[Column]:
    configs = [flatten(trial.displayed) for trial in trials]
    return [
        Column(key, [short(config[key]) if key in config else NOTHING for config in configs], 10 + place, "right")
        for place, key in enumerate(config_keys(history.trials.values()))
    ]


def workers_table(history: History) -> FittedTable:
    """Return a table of all workers: current unit, number of units, and the fraction of time spent on units."""
    workers = sorted(history.workers.values(), key=lambda worker: natural_order(worker.name))
    busy = history.busy_fraction()
    return FittedTable(
        [
            Column("worker", [worker.name for worker in workers], 0),
            Column("device", [worker.device for worker in workers], 3),
            Column("now", [_now(worker) for worker in workers], 1, "left", [_now_style(worker) for worker in workers]),
            Column("units", [str(worker.units) for worker in workers], 4, "right"),
            Column("busy", [f"{busy[worker.name]:.0%}" for worker in workers], 2, "right"),
        ]
    )


def _now(worker: WorkerView) -> str:
    if worker.lost is not None:
        return "gone"
    return str(worker.doing) if worker.doing else "idle"


def _now_style(worker: WorkerView) -> str:
    if worker.lost is not None:
        return "red"
    return "" if worker.doing else "dim"


def workers_line(history: History) -> Text:
    """Return the live workers in one line: ``w0:t0007/3`` trains trial t0007 on partition 3."""
    from rich.text import Text

    pieces: list[tuple[str, str]] = []
    for worker in sorted(history.live_workers(), key=lambda worker: natural_order(worker.name)):
        unit = worker.doing
        pieces.append((f"{worker.name}:", "bold"))
        pieces.append((f"{unit.trial}/{unit.partition}" if unit else "idle", _now_style(worker)))
        pieces.append(("   ", ""))
    return Text.assemble(*pieces[:-1]) if pieces else Text("no workers", style="dim")


def header(history: History, elapsed: float | None = None) -> RenderableType:
    """Return name, trials by state, progress, times and the best trial. ``elapsed`` defaults to the journal's time."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = Text.assemble((history.name, "bold"), "  ", *_states(history), no_wrap=True, overflow="ellipsis")
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(ratio=1)
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.expand = True
    line.add_row(_bar(history), Text(progress_text(history, history.elapsed if elapsed is None else elapsed)))
    waits = waiting_for(history.missing, history.missing_valid)
    warning = [Text(waits, style="bold yellow")] if waits else []
    return Group(title, *warning, line, Text(best_text(history), no_wrap=True, overflow="ellipsis"))


def _bar(history: History) -> RenderableType:
    from rich.progress_bar import ProgressBar

    return ProgressBar(1.0, history.progress().fraction, complete_style="cyan", finished_style="green")


def _states(history: History) -> Iterator[tuple[str, str]]:
    for state, count in history.counts().items():
        if count:
            yield (f"{count} {state.value}  ", STATE_STYLES[state])
    if history.runs > 1:
        yield (f"run {history.runs}  ", "dim")
    if history.held:
        yield ("paused on request  ", "bold yellow")
    if history.waits_for:
        yield (f"waiting: {history.waits_for}", "bold red")


def progress_text(history: History, elapsed: float) -> str:
    """Format the progress: ``34/96 units  35%  12s  eta 20s``, ``34 of about 96 units  35%  12s  eta about 20s``."""
    progress = history.progress()
    eta = progress.remaining() if history.finished is None else ""
    percent = f"{progress.fraction:.0%}" if progress.fraction or progress.bound != "at least" else ""
    return "  ".join(filter(None, [progress.units(), percent, duration(elapsed), eta]))


def _why_no_best(history: History) -> str:
    if history.failed:
        return f": {history.failed}"
    if any(trial.best for trial in history.trials.values()):
        limits = ", ".join(map(str, history.limits)) or f"a number as its {history.metric}"
        return f": no trial has {limits}"
    return " yet" if history.finished is None else f": no trial has a value of {history.metric}"


def best_text(history: History) -> str:
    """Format the best trial: ``best t0007  accuracy=0.9667 at epoch 3  lr=0.01 width=64``."""
    leader = history.best()
    if leader is None or leader.best is None:
        return f"best  none{_why_no_best(history)}"
    value = number(leader.best.metrics[history.metric])
    config = describe(leader.displayed, varying_keys(history.trials.values()), 60)
    return f"best {leader.id}  {history.metric}={value} at epoch {leader.best.epoch}  {config}"
