"""Learning curves: one line per trial over its epochs, readable with hundreds of trials.

The best trials are coloured and labelled where their lines end; all other lines are thin and grey in the background.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopfleet.domain.trial import TrialState
from hopfleet.monitor.charts.canvas import dress, paper, save, spread
from hopfleet.monitor.charts.colors import FAILURE, MUTED, OTHERS, highlighted, trial_colors
from hopfleet.monitor.charts.parameters import drawable
from hopfleet.monitor.history import History, TrialHistory
from hopfleet.monitor.wording import describe, number, plural, varying_keys

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 10.0, 5.6  #: inches
_LABEL_HEIGHT = 0.105  #: fraction of the axes' height for the two lines of a label
_OUTLIERS = 3.0  #: axis length relative to that of the inner 90% of values; beyond this, outer values are cut off


@dataclass(frozen=True, slots=True)
class _Curve:
    """The finite values of one trial."""

    trial: TrialHistory
    epochs: list[int]
    values: list[float]

    @property
    def lost(self) -> bool:
        """Whether the trial failed before its first value."""
        return self.trial.state is TrialState.FAILED and not self.epochs

    @property
    def best(self) -> tuple[int, float]:
        """The point at the trial's best epoch, or the last point if that epoch has no finite value."""
        epoch = self.trial.best.epoch if self.trial.best else 0
        index = self.epochs.index(epoch) if epoch in self.epochs else -1
        return self.epochs[index], self.values[index]


@dataclass(frozen=True, slots=True)
class Curves:
    """The data of the chart: one metric of all trials after each epoch, the best trial first."""

    metric: str
    mode: str  #: the mode of the experiment's own metric
    curves: list[dict[str, Any]]


def curves_data(history: History, metric: str | None = None) -> Curves:
    """Return the finite values of a metric, by default the experiment's. Raise UsageError if no trial reports it."""
    metric = history.reported(metric)
    curves = [_curve(history, trial, metric) for trial in history.leaderboard()]
    return Curves(
        metric,
        history.mode,
        [
            {"trial": each.trial.id, "state": each.trial.state.value, "epochs": each.epochs, "values": each.values}
            for each in curves
        ],
    )


def draw_curves(history: History, path: str | os.PathLike[str] | None = None, metric: str | None = None) -> Figure:
    """Draw learning curves of a metric, by default the experiment's. ``path`` ends in .png, .svg or .pdf.

    Raise UsageError for a metric that no trial reports.
    """
    metric = history.reported(metric)
    curves = {trial.id: _curve(history, trial, metric) for trial in history.trials.values()}
    leaders = [curves[trial.id] for trial in highlighted(history) if curves[trial.id].epochs]
    others = [curve for curve in curves.values() if curve.epochs and curve not in leaders]

    figure = paper(_WIDTH, _HEIGHT, history.name, _facts(history, metric), left=0.75)
    axes = figure.add_axes((0.075, 0.11, 0.655 if leaders else 0.89, 0.73))
    _dress(axes, metric)
    for curve in others:
        _draw_other(axes, curve, alpha=min(0.8, max(0.3, 40 / len(others))))
    _limit(axes, others, leaders)
    colors = trial_colors(history)
    for place, curve in enumerate(leaders):
        _draw_leader(axes, curve, colors[curve.trial.id], place)
    _label(axes, leaders, colors, varying_keys(history.trials.values()))
    _mark_lost(axes, [curve.trial for curve in curves.values() if curve.lost])
    if not leaders and not others:
        axes.text(0.5, 0.5, "no epoch has ended yet", transform=axes.transAxes, ha="center", color=MUTED)
    save(figure, path)
    return figure


def _curve(history: History, trial: TrialHistory, metric: str) -> _Curve:
    """Return a trial's curve. The curve of a warm clone starts at its parent's epoch."""
    parent = history.trials.get(trial.parent)
    before = [row for row in parent.epochs_done if row.epoch == trial.begins] if parent and trial.epochs_done else []
    rows = [row for row in (*before, *trial.epochs_done) if drawable(row.metrics.get(metric))]
    return _Curve(trial, [row.epoch for row in rows], [row.metrics[metric] for row in rows])


def _facts(history: History, metric: str) -> list[str]:
    direction = {"max": ", higher is better", "min": ", lower is better"}[history.mode]
    counts = history.counts()
    marked = ((TrialState.PAUSED, "paused (|)"), (TrialState.STOPPED, "stopped (|)"), (TrialState.FAILED, "failed (×)"))
    ends = [f", {counts[state]} {mark}" for state, mark in marked if counts[state]]
    trials = plural(len(history.trials), "trial") + "".join(ends)
    return [f"{metric} by epoch{direction if metric == history.metric else ''}", trials]


def _dress(axes: Axes, metric: str) -> None:
    from matplotlib.ticker import MaxNLocator

    dress(axes, grid="y")
    axes.set_xlabel("epoch")
    axes.set_ylabel(metric, parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def _draw_other(axes: Axes, curve: _Curve, alpha: float) -> None:
    marker = "o" if len(curve.epochs) == 1 else ""
    axes.plot(curve.epochs, curve.values, color=OTHERS, linewidth=0.8, alpha=alpha, marker=marker, markersize=2.5)
    _mark_end(axes, curve, size=20)


def _draw_leader(axes: Axes, curve: _Curve, color: str, place: int) -> None:
    width = 2.4 if place == 0 else 1.6
    axes.plot(curve.epochs, curve.values, color=color, linewidth=width, solid_capstyle="round", zorder=20 - place)
    marker, size = ("*", 170) if place == 0 else ("o", 30)
    epoch, value = curve.best
    axes.scatter([epoch], [value], marker=marker, s=size, color=color, edgecolors="white", linewidths=0.9, zorder=30)
    _mark_end(axes, curve, size=45)


def _mark_end(axes: Axes, curve: _Curve, size: float) -> None:
    """Mark the end of a trial that failed, was stopped or is paused."""
    end = (curve.epochs[-1:], curve.values[-1:])
    if curve.trial.state is TrialState.FAILED:
        axes.scatter(*end, marker="x", s=size, color=FAILURE, linewidths=1.4, zorder=31, gid="failed")
    elif curve.trial.state in (TrialState.PAUSED, TrialState.STOPPED):
        axes.scatter(*end, marker="|", s=size, color=MUTED, linewidths=1.2, zorder=19, gid="stopped")


def _mark_lost(axes: Axes, trials: Sequence[TrialHistory]) -> None:
    """Draw a cross at the bottom for each trial that failed before its first value, in the epoch of its failure."""
    beside = axes.get_xaxis_transform()
    low, high = axes.get_xlim()
    for place, trial in enumerate(trials):
        epoch = min(max(trial.epochs_trained + 1, low), high)
        axes.scatter(
            [epoch], [0.025 + 0.03 * (place % 8)], marker="x", s=20, color=FAILURE, linewidths=1.4, zorder=31,
            transform=beside, gid="failed", clip_on=False,
        )  # fmt: skip


def _limit(axes: Axes, others: Sequence[_Curve], leaders: Sequence[_Curve]) -> None:
    """Limit the axis so that outliers do not flatten the other curves, and write the number of values outside."""
    values = sorted(value for curve in (*others, *leaders) for value in curve.values)
    if not values:
        return
    edge = len(values) // 20
    kept = [*values[edge : len(values) - edge], *(value for curve in leaders for value in curve.values)]
    low, high = min(kept), max(kept)
    if values[-1] - values[0] <= _OUTLIERS * (high - low):
        low, high = values[0], values[-1]
    margin = 0.06 * (high - low) or 0.06 * abs(high) or 0.06
    axes.set_ylim(low - margin, high + margin)
    outside = sum(not low - margin <= value <= high + margin for value in values)
    if outside:
        note = f"{plural(outside, 'value')} outside the axis"
        axes.text(0.995, 0.015, note, transform=axes.transAxes, ha="right", fontsize=8, color=MUTED)


def _label(axes: Axes, leaders: Sequence[_Curve], colors: dict[str, str], keys: Sequence[str]) -> None:
    """Label each leader at the right, with a connecting line if the curve reaches the last epoch."""
    low, high = axes.get_ylim()
    heights = spread([(curve.values[-1] - low) / (high - low) for curve in leaders], _LABEL_HEIGHT)
    last = max((curve.epochs[-1] for curve in leaders), default=0)
    for curve, height in zip(leaders, heights, strict=True):
        trial, (epoch, value), color = curve.trial, curve.best, colors[curve.trial.id]
        thread = {"arrowstyle": "-", "color": color, "linewidth": 0.7, "alpha": 0.6, "shrinkB": 4, "relpos": (0, 0.5)}
        axes.annotate(
            f"{trial.id}   {number(value)} at epoch {epoch}\n{describe(trial.displayed, keys, 32)}".rstrip(),
            xy=(curve.epochs[-1], curve.values[-1]),
            xytext=(1.035, height),
            textcoords="axes fraction",
            annotation_clip=False,
            parse_math=False,
            va="center",
            fontsize=8.5,
            linespacing=1.3,
            color=color,
            arrowprops=thread if curve.epochs[-1] == last else None,
        )
