"""Lineage: which trial continues from which model, over the epochs, and the hyper-parameters of the best model's past.

For searches that clone good trials and change their configurations, such as population-based training. A clone takes a
row that has become free, so that a population keeps its number of rows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopfleet.errors import UsageError
from hopfleet.monitor.charts.canvas import dress, paper, save
from hopfleet.monitor.charts.colors import HIGHLIGHTS, INK, MUTED, OTHERS, readable_on, shade
from hopfleet.monitor.charts.parameters import Parameter, Scale, drawable, fences, parameters
from hopfleet.monitor.history import History, TrialHistory
from hopfleet.monitor.wording import plural, short, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 11.0  #: inches
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.1, 0.9, 1.0, 0.6
_PANEL, _GAP = 0.85, 0.22
_MOST_PANELS = 4
_LABEL = 0.5  #: inches; a shorter bar has no room for the name of its clone


@dataclass(frozen=True, slots=True)
class LineageRow:
    """One trial: its row, its first and last epoch, and its metric after each epoch."""

    trial: str
    parent: str
    row: int
    start: float
    end: float
    epochs: list[int]
    values: list[float]
    ancestor: bool  #: whether this is the best trial or one of its ancestors


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of epochs in which the best model was trained with the configuration of one ancestor."""

    trial: str
    start: float
    end: float
    config: dict[str, Any]  #: the parameters that differ between trials, flattened


@dataclass(frozen=True, slots=True)
class Lineage:
    """The data of the chart: members in the order of their starts, and the path of the best model."""

    metric: str
    mode: str
    members: list[LineageRow]
    path: list[Stretch]


def lineage_data(history: History) -> Lineage:
    """Return the tree of clones. Raise UsageError if there are none."""
    trials = history.trials
    if not any(trial.parent in trials for trial in trials.values()):
        raise UsageError(
            "kind='lineage': this experiment has no clones; "
            "use a search that clones, or kind='curves' for learning curves"
        )
    starts = {trial.id: len(trial.inherited) / history.partitions for trial in trials.values()}
    ends = {trial.id: max([starts[trial.id], *_finite(history, trial)]) for trial in trials.values()}
    path = _path(history)
    rows = _rows(sorted(trials.values(), key=lambda trial: (starts[trial.id], trial.number)), starts, ends)
    members = [
        LineageRow(
            *(trial, trials[trial].parent if trials[trial].parent in trials else "", row, starts[trial], ends[trial]),
            *(list(_finite(history, trials[trial])), list(_finite(history, trials[trial]).values())),
            trial in path,
        )
        for trial, row in rows.items()
    ]
    return Lineage(history.metric, history.mode, members, _stretches(path, parameters(trials.values()), starts, ends))


def _finite(history: History, trial: TrialHistory) -> dict[int, float]:
    values = {row.epoch: row.metrics.get(history.metric, math.nan) for row in trial.epochs_done}
    return {epoch: value for epoch, value in values.items() if drawable(value)}


def _path(history: History) -> list[str]:
    """Return the best trial's ancestors from the first on, followed by the best trial."""
    leader = history.best()
    path: list[str] = []
    while leader is not None:
        path.insert(0, leader.id)
        leader = history.trials.get(leader.parent)
    return path


def _rows(trials: Sequence[TrialHistory], starts: dict[str, float], ends: dict[str, float]) -> dict[str, int]:
    """Assign a row to each trial. A clone takes the free row that is nearest to its parent's row."""
    rows: dict[str, int] = {}
    until: list[float] = []
    for trial in trials:
        free = [row for row, end in enumerate(until) if trial.parent and end <= starts[trial.id] and end > 0]
        home = rows.get(trial.parent, 0)
        free = [row for row in free if row != home or not trial.inherited] or [len(until)]
        row = min(free, key=lambda row: (abs(row - home), row))
        until[row : row + 1] = [ends[trial.id]]
        rows[trial.id] = row
    return rows


def _stretches(
    path: Sequence[str], differing: Sequence[Parameter], starts: dict[str, float], ends: dict[str, float]
) -> list[Stretch]:
    turns = [*(starts[trial] for trial in path[1:]), *(ends[trial] for trial in path[-1:])]
    return [
        Stretch(
            trial, starts[trial], end, {each.name: each.values[trial] for each in differing if trial in each.values}
        )
        for trial, end in zip(path, turns, strict=True)
    ]


# ------------------------------------------------------------------------------------------------------- drawing


def draw_lineage(history: History, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw the tree of clones, and below it the hyper-parameters along the best model's path.

    ``path`` ends in .png, .svg or .pdf.
    """
    data = lineage_data(history)
    changing = _changing(history, data.path)
    rows = 1 + max(member.row for member in data.members)
    tree = max(1.2, min(9.0, 0.3 * rows))
    height = _TOP + tree + len(changing) * (_PANEL + _GAP) + _BOTTOM
    figure = paper(_WIDTH, height, history.name, _facts(data), left=0.35)

    def panel(top: float, tall: float) -> Axes:
        place = (_LEFT / _WIDTH, 1 - (top + tall) / height, 1 - (_LEFT + _RIGHT) / _WIDTH, tall / height)
        return figure.add_axes(place)

    last = max(member.end for member in data.members)
    axes = panel(_TOP, tree)
    _draw_tree(axes, data, rows, last)
    for index, parameter in enumerate(changing):
        axes = panel(_TOP + tree + _GAP + index * (_PANEL + _GAP), _PANEL)
        _draw_parameter(axes, parameter, data.path, last)
    axes.tick_params(axis="x", labelbottom=True)
    axes.set_xlabel("epoch")
    save(figure, path)
    return figure


def _changing(history: History, path: Sequence[Stretch]) -> list[Parameter]:
    """Return the parameters that change along the path, if some of their values have a place on the axis."""
    return [
        parameter
        for parameter in parameters(history.trials.values())
        if len({repr(stretch.config.get(parameter.name)) for stretch in path}) > 1
        and any(parameter.place(stretch.trial) is not None for stretch in path)
    ][:_MOST_PANELS]


def _facts(data: Lineage) -> list[str]:
    better = "higher" if data.mode == "max" else "lower"
    clones = plural(sum(bool(member.parent) for member in data.members), "clone")
    facts = [f"trials and their clones; the darker, the better the {data.metric} ({better})", clones]
    if data.path:
        facts.append(f"blue: the path to {data.path[-1].trial}, the best")
    return facts


def _draw_tree(axes: Axes, data: Lineage, rows: int, last: float) -> None:
    dress(axes, grid="x")
    _epoch_axis(axes, last)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    merit = _merit(data)
    members = {member.trial: member for member in data.members}
    for member in data.members:
        if member.parent:
            _draw_link(axes, members[member.parent], member)
        _draw_member(axes, member, merit, data.mode == "max")
    first = {member.row: member for member in reversed(data.members)}
    for member in data.members:
        if member.parent and member is not first[member.row] and member.end - member.start >= _wide(last):
            _label_clone(axes, member, merit, data.mode == "max")
    for row, member in first.items():
        axes.annotate(
            member.trial, (member.start, row), (-6, 0), textcoords="offset points", ha="right", va="center",
            fontsize=8, color=HIGHLIGHTS[0] if member.ancestor else MUTED, annotation_clip=False,
        )  # fmt: skip
    if data.path:
        best = members[data.path[-1].trial]
        axes.scatter(
            [best.end], [best.row], marker="*", s=150, color=HIGHLIGHTS[0], edgecolors="white", zorder=30, clip_on=False
        )
        _draw_past(axes, data, members)
        # Beside the star is the bar of a clone, unless the star is at the end.
        offset, align = ((11, 0), "left") if best.end == last else ((0, 9), "center")
        axes.annotate(
            best.trial, (best.end, best.row), offset, textcoords="offset points", ha=align,
            va="center" if best.end == last else "bottom", fontsize=8.5, color=HIGHLIGHTS[0], fontweight="bold",
            annotation_clip=False, zorder=31, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )  # fmt: skip


def _wide(last: float) -> float:
    """Return the epochs that a label is wide."""
    return _LABEL * max(1.0, last) / (_WIDTH - _LEFT - _RIGHT)


def _merit(data: Lineage) -> Scale:
    values = [value for member in data.members for value in member.values]
    low, high = fences(values) if values else (0.0, 1.0)
    return Scale("linear", low, high)


def _draw_member(axes: Axes, member: LineageRow, merit: Scale, upwards: bool) -> None:
    """Draw a bar per epoch in the colour of the metric after that epoch."""
    begin = member.start
    for epoch, value in zip(member.epochs, member.values, strict=True):
        axes.barh(
            member.row, epoch - begin, left=begin, height=0.62, color=_tint(merit, value, upwards), edgecolor="white",
            linewidth=0.6, zorder=4, gid="epoch",
        )  # fmt: skip
        begin = epoch
    if member.end == member.start:
        axes.plot([member.start], [member.row], marker="|", color=OTHERS, zorder=4)


def _draw_link(axes: Axes, parent: LineageRow, child: LineageRow) -> None:
    """Draw a line from the parent's row to the child's row, dashed if the child inherits only the configuration."""
    style = "-" if child.start else (0, (2, 2))
    rows = [parent.row, child.row]
    axes.plot([child.start] * 2, rows, color=INK, linewidth=0.8, alpha=0.5, zorder=6, linestyle=style, gid="clone")
    axes.plot([child.start], [child.row], marker="o", markersize=3, color=INK, alpha=0.7, zorder=7)


def _label_clone(axes: Axes, member: LineageRow, merit: Scale, upwards: bool) -> None:
    """Write the name of a clone at the beginning of its bar."""
    color = readable_on(_tint(merit, member.values[0], upwards)) if member.values else INK
    axes.annotate(
        member.trial, (member.start, member.row), (5, 0), textcoords="offset points", va="center", fontsize=7.5,
        color=color, zorder=8, gid="clone name",
    )  # fmt: skip


def _tint(merit: Scale, value: float, upwards: bool) -> str:
    return shade(merit.place(value) if upwards else 1 - merit.place(value))


def _draw_past(axes: Axes, data: Lineage, members: dict[str, LineageRow]) -> None:
    """Draw a line below the bars that led to the best model."""
    xs = [place for stretch in data.path for place in (stretch.start, stretch.end)]
    ys = [members[stretch.trial].row + 0.38 for stretch in data.path for _ in range(2)]
    axes.plot(xs, ys, color=HIGHLIGHTS[0], linewidth=2.6, solid_joinstyle="round", zorder=20, gid="past", clip_on=False)


def _epoch_axis(axes: Axes, last: float) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0, max(1.0, last))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.tick_params(axis="x", labelbottom=False)


def _draw_parameter(axes: Axes, parameter: Parameter, path: Sequence[Stretch], last: float) -> None:
    """Draw one parameter as a step line along the best model's path."""
    dress(axes, grid="y")
    _epoch_axis(axes, last)
    found = [(stretch, parameter.place(stretch.trial)) for stretch in path]
    has = [stretch for stretch, place in found if place is not None]
    places = [place for _, place in found if place is not None]
    for (stretch, place), after in zip(zip(has, places, strict=True), [*places[1:], None], strict=True):
        axes.plot([stretch.start, stretch.end], [place, place], color=HIGHLIGHTS[0], linewidth=2.2)
        if after is not None:
            axes.plot([stretch.end, stretch.end], [place, after], color=HIGHLIGHTS[0], linewidth=0.9)
        if after is not None and stretch.end - stretch.start >= _wide(last):
            axes.annotate(
                short(stretch.config[parameter.name], 8), (stretch.start, place), (3, 3), textcoords="offset points",
                fontsize=7, color=MUTED, parse_math=False,
            )  # fmt: skip
    ticks = parameter.scale.ticks()
    axes.set_yticks([place for place, _ in ticks], [shorten(label, 10) for _, label in ticks], parse_math=False)
    middle, reach = (min(places) + max(places)) / 2, max(0.25, 0.7 * (max(places) - min(places)))
    axes.set_ylim(middle - reach, middle + reach)
    note = f"{shorten(parameter.name, 24)}{' (log)' if parameter.scale.kind == 'log' else ''}"
    axes.set_title(note, loc="left", fontsize=9, color=INK, pad=3, parse_math=False)
    axes.annotate(
        short(has[-1].config[parameter.name], 10), (has[-1].end, places[-1]), (6, 0), textcoords="offset points",
        va="center", fontsize=8.5, color=HIGHLIGHTS[0], annotation_clip=False, parse_math=False,
    )  # fmt: skip
