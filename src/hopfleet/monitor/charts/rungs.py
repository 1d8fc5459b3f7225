"""Learning curves by rung: which trials were promoted after 1, 3, 9, ... epochs, and which were not.

For searches that start many trials and continue few. A rung is an epoch at which some trial was to end or to pause
before the search promoted it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopfleet.domain.trial import TrialState
from hopfleet.errors import UsageError
from hopfleet.monitor.charts.canvas import dress, paper, save, spread
from hopfleet.monitor.charts.colors import INK, MUTED, OTHERS, RULE, highlighted, trial_colors
from hopfleet.monitor.charts.parameters import drawable, fences, metric_values
from hopfleet.monitor.history import History, TrialHistory
from hopfleet.monitor.wording import number, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 11.5, 5.6  #: inches
_WENT_ON = "#7c8ba6"
_LABEL_HEIGHT = 0.055  #: fraction of the axes' height


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung, and the fate of the trials that reached it."""

    epoch: int
    reached: int
    went_on: int
    paused: int
    ended: int  #: completed, stopped or failed at this rung
    best: float | None  #: best value of the metric after this epoch


@dataclass(frozen=True, slots=True)
class RungCurve:
    """One trial: the metric after each epoch, and the rungs at which the trial was promoted."""

    trial: str
    state: str
    epochs: list[int]
    values: list[float]
    promotions: list[int]


@dataclass(frozen=True, slots=True)
class Rungs:
    """The data of the chart. The best trial's curve comes first."""

    metric: str
    mode: str
    rungs: list[Rung]
    curves: list[RungCurve]


def rungs_data(history: History) -> Rungs:
    """Return rungs and curves. Raise UsageError if no trial was ever promoted."""
    if not any(_epochs(trial) & {*trial.milestones} for trial in history.trials.values()):
        raise UsageError(
            "kind='rungs': no trial of this experiment was promoted from one rung to the next; "
            "kind='curves' shows its learning curves"
        )
    curves = [_curve(history, trial) for trial in history.leaderboard()]
    ends = {epoch for trial in history.trials.values() for epoch in (*trial.milestones, trial.epochs)}
    reached = [epoch for epoch in sorted(ends) if any(epoch in _epochs(trial) for trial in history.trials.values())]
    return Rungs(history.metric, history.mode, [_rung(history, epoch) for epoch in reached], curves)


def _epochs(trial: TrialHistory) -> set[int]:
    return {row.epoch for row in trial.epochs_done}


def _curve(history: History, trial: TrialHistory) -> RungCurve:
    rows = [row for row in trial.epochs_done if drawable(row.metrics.get(history.metric))]
    return RungCurve(
        *(trial.id, trial.state.value, [row.epoch for row in rows], [row.metrics[history.metric] for row in rows]),
        [epoch for epoch in trial.milestones if epoch in _epochs(trial)],
    )


def _rung(history: History, epoch: int) -> Rung:
    here = [trial for trial in history.trials.values() if epoch in _epochs(trial)]
    stayed = [trial for trial in here if epoch not in trial.milestones]
    values = list(metric_values(history, epoch=epoch).values())
    best = (max if history.mode == "max" else min)(values) if values else None
    paused = sum(trial.state is TrialState.PAUSED for trial in stayed)
    ended = sum(trial.state.ended for trial in stayed)
    return Rung(epoch, len(here), len(here) - len(stayed), paused, ended, best)


# ------------------------------------------------------------------------------------------------------- drawing


def draw_rungs(history: History, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw learning curves with a line for each rung, and a table of rungs. ``path`` ends in .png, .svg or .pdf."""
    data = rungs_data(history)
    figure = paper(_WIDTH, _HEIGHT, history.name, _facts(data), left=0.75)
    axes = figure.add_axes((0.07, 0.11, 0.51, 0.7))
    leaders = {trial.id: trial_colors(history)[trial.id] for trial in highlighted(history)}
    _dress(axes, data)
    drawn = [curve for curve in data.curves if curve.epochs]
    for rank in range(len(drawn) - 1, -1, -1):
        _draw_curve(axes, drawn[rank], leaders.get(drawn[rank].trial), rank)
    _label(axes, [curve for curve in drawn if curve.trial in leaders], leaders)
    _draw_table(figure, data.rungs)
    save(figure, path)
    return figure


def _facts(data: Rungs) -> list[str]:
    better = "higher" if data.mode == "max" else "lower"
    went_on = sum(bool(curve.promotions) for curve in data.curves)
    promoted = f"{went_on} of {plural(len(data.curves), 'trial')} promoted at least once (thick)"
    return [f"{data.metric} by epoch, {better} is better", promoted]


def _dress(axes: Axes, data: Rungs) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    dress(axes, grid="y")
    rungs = [rung.epoch for rung in data.rungs]
    if rungs[-1] >= 8 * rungs[0]:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(rungs))
    axes.set_xticks(rungs, [str(epoch) for epoch in rungs])
    for epoch in rungs:
        axes.axvline(epoch, color=RULE, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1, gid="rung")
    axes.set_xlabel("epoch (the rungs)")
    axes.set_ylabel(data.metric, parse_math=False)
    values = [value for curve in data.curves for value in curve.values]
    low, high = fences(values) if values else (0.0, 1.0)
    margin = 0.06 * (high - low) or 0.06 * abs(high) or 0.06
    axes.set_ylim(low - margin, high + margin)


def _draw_curve(axes: Axes, curve: RungCurve, color: str | None, rank: int) -> None:
    """Draw one curve: the more promotions, the thicker; thin and grey without any."""
    width = 1.0 + 0.55 * len(curve.promotions) if curve.promotions else 0.8
    shade = color or (_WENT_ON if curve.promotions else OTHERS)
    order = 30 - rank if color else 3 + len(curve.promotions)
    axes.plot(
        curve.epochs, curve.values, color=shade, linewidth=min(3.2, width), zorder=order, gid=curve.trial,
        solid_capstyle="round", alpha=1.0 if color else 0.8,
    )  # fmt: skip
    size = 20 if color else 11 if curve.promotions else 6
    axes.scatter(curve.epochs[-1:], curve.values[-1:], s=size, color=shade, zorder=order, linewidths=0)


def _label(axes: Axes, curves: Sequence[RungCurve], colors: dict[str, str]) -> None:
    low, high = axes.get_ylim()
    wanted = [(curve.values[-1] - low) / (high - low) for curve in curves]
    for curve, height in zip(curves, spread(wanted, _LABEL_HEIGHT), strict=True):
        color = colors[curve.trial]
        axes.annotate(
            f"{curve.trial}   {number(curve.values[-1])}", (curve.epochs[-1], curve.values[-1]), (1.035, height),
            textcoords="axes fraction", va="center", fontsize=8.5, color=color, annotation_clip=False, parse_math=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.7, "alpha": 0.6, "relpos": (0, 0.5)},
        )  # fmt: skip


def _draw_table(figure: Figure, rungs: Sequence[Rung]) -> None:
    """Write the table of rungs at the right."""
    heads = ("rung", "reached", "promoted", "paused", "ended", "best")
    rows = [
        (
            str(rung.epoch),
            *map(str, (rung.reached, rung.went_on, rung.paused, rung.ended)),
            "–" if rung.best is None else number(rung.best),
        )
        for rung in rungs
    ]
    step, top = 0.045, 0.79
    places = [0.722, 0.774, 0.838, 0.885, 0.928, 0.98]
    for place, head in zip(places, heads, strict=True):
        figure.text(place, top, head, ha="right", fontsize=8.5, color=MUTED)
    for line, row in enumerate(rows, 1):
        for place, cell in zip(places, row, strict=True):
            figure.text(place, top - step * line, cell, ha="right", fontsize=9, color=INK)
