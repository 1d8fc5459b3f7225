"""Parallel coordinates: one line per trial through the values of its hyper-parameters, to the metric at the right.

Lines are darker the better the metric; the best few are thick and have the same colours as in all charts. If a trial
lacks a parameter, its line passes through a mark below that axis.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hopfleet.errors import UsageError
from hopfleet.monitor.charts.canvas import paper, save, spread
from hopfleet.monitor.charts.colors import INK, MUTED, highlighted, shade, trial_colors
from hopfleet.monitor.charts.parameters import Parameter, Scale, fences, metric_values, parameters, scale_of
from hopfleet.monitor.history import History
from hopfleet.monitor.wording import number, plural, short, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.75, 1.5, 1.35, 0.55  #: inches around the axes
_HEIGHT = 5.6
_UNSET = -0.1  #: height on an axis at which the line of a trial without the parameter passes
_WIDEST, _NARROW = 0.12, 0.02  #: how far lines through one category, or one number, spread to either side
_SCALES = {"log": "log", "linear": "", "category": ""}
_LABEL_HEIGHT = 0.055  #: fraction of the axes' height


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis of one hyper-parameter or of the metric, from the bottom (0) to the top (1)."""

    name: str
    scale: str  #: "linear", "log" or "category"
    ticks: list[tuple[float, str]]  #: places and labels


@dataclass(frozen=True, slots=True)
class Line:
    """One trial's values and places on all axes. The last axis is the metric's.

    A place is None if the parameter is missing, or if its value is no number on an axis of numbers.
    """

    trial: str
    values: list[Any]
    places: list[float | None]


@dataclass(frozen=True, slots=True)
class Parallel:
    """The data of the chart. The metric's axis comes last, the best trial first."""

    metric: str
    mode: str
    axes: list[Axis]
    lines: list[Line]
    without: int  #: trials without a finite value of the metric
    outside: int  #: values of the metric beyond the ends of its axis


def parallel_data(history: History) -> Parallel:
    """Return the coordinates of all trials that have a value. Raise UsageError if all configurations are equal."""
    differing = parameters(history.trials.values())
    if history.trials and not differing:
        raise UsageError(
            "kind='parallel': needs at least two trials with different configurations; "
            "search over at least one hyper-parameter"
        )
    values = metric_values(history)
    ranked = [trial.id for trial in history.leaderboard() if trial.id in values]
    scale = _metric_scale(list(values.values()))
    axes = [*(_axis(parameter) for parameter in differing), Axis(history.metric, scale.kind, scale.ticks())]
    lines = [
        Line(
            trial,
            [*(parameter.values.get(trial) for parameter in differing), values[trial]],
            [*(parameter.place(trial) for parameter in differing), scale.place(values[trial])],
        )
        for trial in ranked
    ]
    outside = sum(not scale.low <= value <= scale.high for value in values.values())
    return Parallel(history.metric, history.mode, axes, lines, len(history.trials) - len(ranked), outside)


def _axis(parameter: Parameter) -> Axis:
    return Axis(parameter.name, parameter.scale.kind, parameter.scale.ticks())


def _metric_scale(values: Sequence[float]) -> Scale:
    if not values:
        return Scale("linear")
    low, high = fences(values)
    scale = scale_of([value for value in values if low <= value <= high])
    return replace(scale, points=()) if len(scale.points) > 2 else scale


# ------------------------------------------------------------------------------------------------------- drawing


def draw_parallel(history: History, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw parallel coordinates of all trials. ``path`` ends in .png, .svg or .pdf."""
    data = parallel_data(history)
    leaders = {trial.id: trial_colors(history)[trial.id] for trial in highlighted(history)}
    width = max(8.0, min(22.0, _LEFT + _RIGHT + 1.55 * (len(data.axes) - 1)))
    figure = paper(width, _HEIGHT, history.name, _facts(data), left=0.35)
    place = (_LEFT / width, _BOTTOM / _HEIGHT, 1 - (_LEFT + _RIGHT) / width, 1 - (_TOP + _BOTTOM) / _HEIGHT)
    axes = figure.add_axes(place)
    unset = any(spot is None for line in data.lines for spot in line.places)
    axes.set_xlim(0, max(1, len(data.axes) - 1))
    axes.set_ylim(_UNSET - 0.05 if unset else -0.04, 1.04)
    axes.axis("off")
    if not data.lines:
        axes.text(0.5, 0.5, "no epoch has ended yet", transform=axes.transAxes, ha="center", color=MUTED)
        save(figure, path)
        return figure
    _draw_lines(axes, data, leaders)
    for index, axis in enumerate(data.axes):
        _draw_axis(axes, index, axis, [line.values[index] for line in data.lines if line.places[index] is None])
    _label(axes, data, leaders)
    save(figure, path)
    return figure


def _facts(data: Parallel) -> list[str]:
    better = "higher" if data.mode == "max" else "lower"
    facts = [f"configurations and their {data.metric}, {better} is better", plural(len(data.lines), "trial")]
    if data.without:
        facts.append(f"{data.without} without a value")
    if data.outside:
        facts.append(f"{data.outside} beyond the axis of {data.metric}")
    return facts


def _draw_lines(axes: Axes, data: Parallel, leaders: dict[str, str]) -> None:
    heights = _heights(data)
    alpha = min(0.9, max(0.35, 60 / len(data.lines)))
    for rank in range(len(data.lines) - 1, -1, -1):
        line = data.lines[rank]
        merit = line.places[-1] or 0.0
        if line.trial in leaders:
            look: dict[str, Any] = {
                "color": leaders[line.trial],
                "linewidth": 3.0 if rank == 0 else 2.0,
                "zorder": 30 - rank,
            }
        else:
            tint = shade(merit if data.mode == "max" else 1 - merit)
            look = {"color": tint, "linewidth": 0.9, "alpha": alpha, "zorder": 2}
        axes.plot(*_smooth(heights[rank]), solid_capstyle="round", gid=line.trial, clip_on=False, **look)


def _heights(data: Parallel) -> list[list[float]]:
    """Return the heights of all lines on all axes. Lines that share a place are spread, the worst lowest."""
    heights = [[_UNSET if spot is None else spot for spot in line.places] for line in data.lines]
    for index, axis in enumerate(data.axes):
        groups: dict[float, list[int]] = {}
        for rank, line in enumerate(heights):
            groups.setdefault(line[index], []).append(rank)
        distance = min((above - below for below, above in pairwise(sorted(groups))), default=1.0)
        most = _WIDEST if axis.scale == "category" else _NARROW
        for spot, ranks in groups.items():
            reach = min(_NARROW if spot == _UNSET else most, 0.3 * distance)
            for order, rank in enumerate(ranks):
                heights[rank][index] += reach * (1 - 2 * (order + 0.5) / len(ranks))
    return heights


def _smooth(heights: Sequence[float], steps: int = 18) -> tuple[list[float], list[float]]:
    """Return points along a smooth S from axis to axis, so that the eye can follow a line through a crossing."""
    xs, ys = [0.0], [heights[0]]
    for index in range(len(heights) - 1):
        for step in range(1, steps + 1):
            part = step / steps
            eased = part * part * (3 - 2 * part)
            xs.append(index + part)
            ys.append(heights[index] + (heights[index + 1] - heights[index]) * eased)
    return xs, ys


def _draw_axis(axes: Axes, index: int, axis: Axis, apart: Sequence[Any]) -> None:
    """Draw one axis. Values ``apart`` have no place on it; their lines pass through a mark below."""
    axes.plot([index, index], [0, 1], color=INK, linewidth=1.0, zorder=40, clip_on=False)
    for text, height, size, color in ((shorten(axis.name, 18), 24, 9.5, INK), (_SCALES[axis.scale], 12, 8, MUTED)):
        axes.annotate(
            text, (index, 1.0), (0, height), textcoords="offset points", ha="center", va="baseline", fontsize=size,
            color=color, parse_math=False, annotation_clip=False,
        )  # fmt: skip
    halo = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    for place, label in [*axis.ticks, *([(_UNSET, _apart(apart))] if apart else [])]:
        axes.plot([index], [place], marker="_", markersize=6, color=INK, zorder=41, clip_on=False)
        axes.annotate(
            shorten(label, 14), (index, place), (-6, 0), textcoords="offset points", ha="right", va="center",
            fontsize=8, color=INK if place >= 0 else MUTED, zorder=42, bbox=halo, parse_math=False,
            annotation_clip=False,
        )  # fmt: skip


def _apart(values: Sequence[Any]) -> str:
    names = {"not set" if value is None else short(value, 14) for value in values}
    return names.pop() if len(names) == 1 else "others"


def _label(axes: Axes, data: Parallel, leaders: dict[str, str]) -> None:
    shown = [line for line in data.lines if line.trial in leaders]
    low, high = axes.get_ylim()
    wanted = [((line.places[-1] or 0.0) - low) / (high - low) for line in shown]
    for line, height in zip(shown, spread(wanted, _LABEL_HEIGHT), strict=True):
        color = leaders[line.trial]
        axes.annotate(
            f"{line.trial}   {number(line.values[-1])}", (len(data.axes) - 1, line.places[-1]), (1.0, height),
            xycoords="data", textcoords=_beside(axes), va="center", fontsize=8.5, color=color, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.7, "alpha": 0.6, "relpos": (0, 0.5)},
        )  # fmt: skip


def _beside(axes: Axes) -> Any:
    """Return axes coordinates, shifted a little to the right."""
    from matplotlib.transforms import ScaledTranslation

    assert axes.figure is not None
    return axes.transAxes + ScaledTranslation(0.28, 0, axes.figure.dpi_scale_trans)
