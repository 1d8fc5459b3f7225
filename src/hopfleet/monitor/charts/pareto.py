"""The Pareto front: trials that no other trial beats in every objective at once.

The objectives are options of the chart, because the journal holds all reported metrics, not only those of the search.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal

from hopfleet.errors import UsageError
from hopfleet.monitor.charts.canvas import dress, paper, save
from hopfleet.monitor.charts.colors import HIGHLIGHTS, INK, MUTED, OTHERS
from hopfleet.monitor.charts.parameters import drawable, fences
from hopfleet.monitor.history import History
from hopfleet.monitor.wording import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL_WIDTH, _PANEL_HEIGHT = 5.6, 4.2  #: inches
_LEFT, _GAP, _TOP, _BOTTOM, _RIGHT = 0.95, 0.85, 1.1, 0.65, 0.5
_MOST_LABELS = 12  #: labels on the front of one panel


@dataclass(frozen=True, slots=True)
class Point:
    """One trial: its objectives at its best epoch, and whether the trial is on the front."""

    trial: str
    values: list[float]
    on_front: bool


@dataclass(frozen=True, slots=True)
class Pareto:
    """The data of the chart."""

    metrics: list[str]
    modes: list[str]
    points: list[Point]
    without: int  #: trials that lack a finite value of some objective


def front(points: Sequence[Sequence[float]], modes: Sequence[str]) -> list[bool]:
    """Return for each point whether it is on the front: no other point is at least as good in all and better in one.

    ``modes`` holds "min" or "max" for each objective.
    """
    signs = [-1.0 if mode == "max" else 1.0 for mode in modes]
    costs = [tuple(sign * value for sign, value in zip(signs, point, strict=True)) for point in points]
    # Points come after all points that beat them. As beating is transitive, comparing with the front is enough.
    kept: list[tuple[float, ...]] = []
    for cost in sorted(set(costs)):
        if not any(all(a <= b for a, b in zip(better, cost, strict=True)) for better in kept):
            kept.append(cost)
    best = set(kept)
    return [cost in best for cost in costs]


def pareto_data(history: History, metrics: Sequence[str] | None = None, modes: Sequence[str] | None = None) -> Pareto:
    """Return two or three objectives of all trials, at each trial's best epoch.

    ``modes`` holds "min" or "max" for each objective; by default, losses are minimised and the experiment's own metric
    has its own mode. Raise UsageError for other numbers of objectives and for metrics that no trial reports.
    """
    names = _objectives(history, metrics)
    wanted = _modes(history, names, modes)
    ranked = history.leaderboard()
    rows = [
        (trial.id, [trial.best.metrics.get(name, math.nan) for name in names])
        for trial in ranked
        if trial.best is not None
    ]
    rows = [(trial, values) for trial, values in rows if all(map(drawable, values))]
    best = front([values for _, values in rows], wanted)
    points = [Point(trial, values, on) for (trial, values), on in zip(rows, best, strict=True)]
    return Pareto(names, wanted, points, len(history.trials) - len(points))


def _objectives(history: History, metrics: Sequence[str] | None) -> list[str]:
    if isinstance(metrics, str) or not isinstance(metrics, Sequence | None):
        raise UsageError(f"metrics={metrics!r}: must be a list of two or three names")
    names = list(dict.fromkeys(metrics or [history.metric]))
    if len(names) not in (2, 3):
        others = [name for name in history.metric_names() if name not in names]
        known = f"the trials report {', '.join(history.metric_names())}"
        remedy = f"give metrics={[*names, *others][:2]}" if others else "report another one in the task's metrics()"
        raise UsageError(f"kind='pareto': needs two or three metrics, not {', '.join(names)}; {known}; {remedy}")
    return [history.reported(name) for name in names]


def _modes(history: History, names: Sequence[str], modes: Sequence[str] | None) -> list[str]:
    if modes is None:
        known = {name: "min" for name in names if "loss" in name} | {history.metric: history.mode}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UsageError(
                f"kind='pareto': unknown mode of {', '.join(unknown)}; give modes, 'min' or 'max' for each metric"
            )
        return [known[name] for name in names]
    if len(modes) != len(names) or not set(modes) <= {"min", "max"}:
        raise UsageError(f"modes={list(modes)}: must be 'min' or 'max' for each of {', '.join(names)}")
    return list(modes)


# ------------------------------------------------------------------------------------------------------- drawing


def draw_pareto(
    history: History,
    path: str | os.PathLike[str] | None = None,
    metrics: Sequence[str] | None = None,
    modes: Sequence[str] | None = None,
) -> Figure:
    """Draw a panel for each pair of objectives. ``path`` ends in .png, .svg or .pdf."""
    data = pareto_data(history, metrics, modes)
    pairs = list(combinations(range(len(data.metrics)), 2))
    wide = 7.0 if len(pairs) == 1 else _PANEL_WIDTH - 1.2
    width = _LEFT + len(pairs) * (wide + _GAP) - _GAP + _RIGHT
    height = _TOP + _PANEL_HEIGHT + _BOTTOM
    figure = paper(width, height, history.name, _facts(data), left=0.35)
    for index, pair in enumerate(pairs):
        left = _LEFT + index * (wide + _GAP)
        axes = figure.add_axes((left / width, _BOTTOM / height, wide / width, _PANEL_HEIGHT / height))
        _draw_pair(axes, data, *pair)
    save(figure, path)
    return figure


def _facts(data: Pareto) -> list[str]:
    objectives = ", ".join(
        f"{name} ({'higher' if mode == 'max' else 'lower'} is better)"
        for name, mode in zip(data.metrics, data.modes, strict=True)
    )
    best = sum(point.on_front for point in data.points)
    facts = [f"trade-off of {objectives}", f"{best} of {plural(len(data.points), 'trial')} on the front"]
    return [*facts, *([f"{data.without} without a value"] if data.without else [])]


def _draw_pair(axes: Axes, data: Pareto, x: int, y: int) -> None:
    dress(axes, grid="y")
    axes.set_xlabel(_axis_name(data, x), parse_math=False)
    axes.set_ylabel(_axis_name(data, y), parse_math=False)
    if not data.points:
        axes.text(0.5, 0.5, "no trial has all values yet", transform=axes.transAxes, ha="center", color=MUTED)
        return
    _limit(axes, data, x, y)
    for chosen, color, size, alpha, order in ((False, OTHERS, 22, 0.55, 2), (True, HIGHLIGHTS[0], 44, 1.0, 5)):
        points = [point.values for point in data.points if point.on_front is chosen]
        axes.scatter(
            [values[x] for values in points], [values[y] for values in points], s=size, color=color, alpha=alpha,
            edgecolors="white", linewidths=0.7, zorder=order, gid="front" if chosen else "dominated",
        )  # fmt: skip
    _draw_steps(axes, data, x, y)
    _label(axes, [point for point in data.points if point.on_front], data, x, y)


def _axis_name(data: Pareto, index: int) -> str:
    return f"{data.metrics[index]}  ({'→' if data.modes[index] == 'max' else '←'} better)"


def _limit(axes: Axes, data: Pareto, x: int, y: int) -> None:
    for index, limit in ((x, axes.set_xlim), (y, axes.set_ylim)):
        low, high = fences([point.values[index] for point in data.points])
        best = [point.values[index] for point in data.points if point.on_front]
        low, high = min(low, *best), max(high, *best)
        margin = 0.13 * (high - low) or 0.13 * abs(high) or 0.13
        limit(low - margin, high + margin)


def _draw_steps(axes: Axes, data: Pareto, x: int, y: int) -> None:
    """Draw the front of this pair of objectives: points behind the line are beaten by a trial on the line."""
    pairs = [(point.values[x], point.values[y]) for point in data.points]
    modes = [data.modes[x], data.modes[y]]
    line = sorted({pair for pair, best in zip(pairs, front(pairs, modes), strict=True) if best})
    # The corner between two neighbours is the best point that both of them beat.
    where: Literal["post", "pre"] = "post" if modes[0] == "min" else "pre"
    xs, ys = [a for a, _ in line], [b for _, b in line]
    ends_x, ends_y = axes.get_xlim(), axes.get_ylim()
    worst_x, worst_y = ends_x[1] if modes[0] == "min" else ends_x[0], ends_y[1] if modes[1] == "min" else ends_y[0]
    if modes[0] == "min":
        xs, ys = [xs[0], *xs, worst_x], [worst_y, *ys, ys[-1]]
    else:
        xs, ys = [worst_x, *xs, xs[-1]], [ys[0], *ys, worst_y]
    axes.step(xs, ys, where=where, color=HIGHLIGHTS[0], linewidth=1.4, alpha=0.75, zorder=4, gid="steps")


def _label(axes: Axes, points: Sequence[Point], data: Pareto, x: int, y: int) -> None:
    """Label the points of the front where there is room."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    side, above = (1 if data.modes[index] == "max" else -1 for index in (x, y))
    places = [((p.values[x] - left) / (right - left), (p.values[y] - low) / (high - low)) for p in points]
    taken: list[tuple[float, float]] = []
    for point, (across, up) in zip(points, places, strict=True):
        middle = (across + 0.055 * side, up + 0.035 * above)
        if len(taken) < _MOST_LABELS and not _crowded(middle, taken, 0.1, 0.05) | _crowded(middle, places, 0.05, 0.025):
            taken.append(middle)
            axes.annotate(
                point.trial, (point.values[x], point.values[y]), (5 * side, 5 * above), textcoords="offset points",
                ha="left" if side > 0 else "right", va="bottom" if above > 0 else "top", fontsize=8, color=INK,
                zorder=6,
            )  # fmt: skip


def _crowded(place: tuple[float, float], others: Sequence[tuple[float, float]], width: float, height: float) -> bool:
    return any(abs(place[0] - other[0]) < width and abs(place[1] - other[1]) < height for other in others)
