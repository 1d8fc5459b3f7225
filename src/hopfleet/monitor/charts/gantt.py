"""The Gantt chart: which worker trained which model when, and how the best model hopped between workers.

Bars are drawn as a few collections rather than one by one, so that tens of thousands of units draw quickly. Only bars
that are wide enough have labels. A thin bar below shows the predicted schedule.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from hopfleet.domain.unit import Work
from hopfleet.monitor.charts.canvas import dress, paper, save
from hopfleet.monitor.charts.colors import FAILURE, INK, MUTED, OTHERS, RULE, highlighted, readable_on, trial_colors
from hopfleet.monitor.history import History, Span
from hopfleet.monitor.wording import duration, makespan, natural_order, plural, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 12.0  #: inches
_RIGHT, _TOP, _BOTTOM = 0.75, 1.05, 0.95  #: inches around the axes; the left follows the workers' names
_BAR = 0.76  #: of a row's height
_ACTUAL, _PREDICTED = (
    (-0.38, 0.16),
    (0.22, 0.38),
)  #: extents of the two bars, from the middle of a row with a prediction
_DIGIT = 0.075  #: inches; the width of a digit
_LONG_GAP = 0.2  #: fraction of the whole time; a longer gap between two runs is cut out
_CUT_GAP = 0.03  #: fraction of the time shown; the width of a cut gap
_ROOMY = 0.04  #: inches; if the median bar is wider, bars have edges and hatches
_SHADED = 0.04  #: fraction of the time shown; shorter pauses are not marked
_MOST_HOPS = 150  #: arrows; above this count, none are drawn because they would hide the bars


@dataclass(frozen=True, slots=True)
class Gantt:
    """The units of all workers, in the order in which they ended. Times are in seconds since the start."""

    workers: list[str]
    busy: dict[str, float]  #: the fraction of a worker's lifetime spent on units
    spans: list[dict[str, Any]]
    predicted: list[dict[str, Any]]


def gantt_data(history: History, predicted: Sequence[Span] = ()) -> Gantt:
    """Return all units and evaluations, and those of the predicted schedule."""
    start = history.started or 0.0
    workers = sorted(history.workers, key=natural_order)
    spans = [_plain(span, start) for span in history.spans]
    return Gantt(workers, history.busy_fraction(), spans, [_plain(span, 0.0) for span in predicted])


def _plain(span: Span, start: float) -> dict[str, Any]:
    return {
        "worker": span.worker,
        "trial": span.trial,
        "epoch": span.epoch,
        "partition": span.partition,
        "work": span.work.value,
        "started": span.started - start,
        "ended": span.ended - start,
        "hopped": span.hopped,
        "failed": span.failed,
        "undone": span.undone,
    }


def draw_gantt(history: History, path: str | os.PathLike[str] | None = None, predicted: Sequence[Span] = ()) -> Figure:
    """Draw a row per worker and a bar per unit in its trial's colour. ``path`` ends in .png, .svg or .pdf.

    What was ``predicted``, in seconds from the start, is drawn beneath, unless the run was resumed.
    """
    if history.runs > 1:
        predicted = ()
    names = sorted(history.workers, key=natural_order)
    left = max(0.85, 0.3 + 0.08 * max((len(_row_label(name)) for name in names), default=0))
    height = _TOP + _BOTTOM + max(1.0, len(names) * (0.5 if len(names) <= 8 else 0.34))
    figure = paper(_WIDTH, height, history.name, _facts(history, predicted), left)
    width = _WIDTH - left - _RIGHT
    axes = figure.add_axes((left / _WIDTH, _BOTTOM / height, width / _WIDTH, 1 - (_TOP + _BOTTOM) / height))
    chart = _Chart(history, axes, names, width, predicted)
    chart.draw()
    handles = chart.legend()
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(left / _WIDTH - 0.005, 0.0),
        ncols=len(handles),
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handlelength=1.4,
        columnspacing=1.4,
    )
    save(figure, path)
    return figure


def _row_label(name: str) -> str:
    return shorten(name, 24)


def _facts(history: History, predicted: Sequence[Span]) -> list[str]:
    done = [span for span in history.spans if not span.undone and not span.failed]
    units = plural(sum(span.work is Work.TRAIN for span in done), "unit")
    evaluations = plural(sum(span.work is Work.EVALUATE for span in done), "evaluation")
    facts = [plural(len(history.trials), "trial"), plural(len(history.workers), "worker"), f"{units}, {evaluations}"]
    runs = [plural(history.runs, "run")] if history.runs > 1 else []
    return [*facts, plural(history.hops, "hop"), *runs, *_against(history, predicted)]


def _against(history: History, predicted: Sequence[Span]) -> list[str]:
    """Return the actual and the predicted duration; of an unfinished experiment only the predicted one."""
    if not predicted:
        return []
    expected = f"predicted {makespan(_end(predicted))}"
    if not history.finished:
        return [expected]
    return [f"took {makespan(_end(history.spans) - (history.started or 0.0))}, {expected}"]


def _end(spans: Sequence[Span]) -> float:
    return max((span.ended for span in spans), default=0.0)


class _Scale:
    """A mapping of times to seconds on the axis, which leaves out long gaps between two runs."""

    def __init__(self, history: History, predicted: Sequence[Span]) -> None:
        self.start = history.started or 0.0
        end = max([self.start + _end(predicted), history.updated or 0.0, *(span.ended for span in history.spans)])
        total = end - self.start
        self.gaps = [(start, stop) for start, stop in history.gaps if stop - start > _LONG_GAP * total]
        self.kept = _CUT_GAP * (total - sum(stop - start for start, stop in self.gaps))
        self.length = max(self(end), 1e-3)

    def __call__(self, time: float) -> float:
        left_out = sum(max(0.0, min(time, stop) - start - self.kept) for start, stop in self.gaps)
        return time - self.start - left_out

    def cuts(self) -> list[tuple[float, float]]:
        """Return where the axis is cut, and the seconds that each gap lasted."""
        return [(self(start) + self.kept / 2, stop - start) for start, stop in self.gaps]


class _Chart:
    """One drawing: the axes and the layout of rows, bars and colours."""

    def __init__(
        self, history: History, axes: Axes, names: Sequence[str], width: float, predicted: Sequence[Span]
    ) -> None:
        self.history = history
        #: The prediction, limited to workers and trials that exist.
        self.predicted = [span for span in predicted if span.worker in history.workers and span.trial in history.trials]
        self.extent = _ACTUAL if self.predicted else (-_BAR / 2, _BAR / 2)
        self.axes = axes
        self.rows = {name: row for row, name in enumerate(names)}
        self.scale = _Scale(history, self.predicted)
        self.colors = trial_colors(history)
        self.inches_per_second = width / self.scale.length
        self.roomy = median([self._inches(span) for span in history.spans] or [0.0]) > _ROOMY
        #: The slice of its worker's row for each unit, and the number of slices: a flotilla's members are stacked.
        self.slices = _slices(history.spans)
        leader = history.best()
        hops = [(a, b) for a, b in pairwise(leader.units) if a.worker != b.worker] if leader else []
        self.hops = hops if len(hops) <= _MOST_HOPS else []  #: pairs of units of the best trial

    def draw(self) -> None:
        self._dress()
        self._draw_bars()
        self._write_partitions()
        self._draw_hops()
        self._write_busy()
        self._mark_cuts()
        self._mark_pauses()
        if not self.history.spans:
            self.axes.text(0.5, 0.5, "no unit has ended yet", transform=self.axes.transAxes, ha="center", color=MUTED)

    def _dress(self) -> None:
        dress(self.axes, grid="x")
        self.axes.set_xlim(0, self.scale.length)
        self.axes.set_ylim(max(1, len(self.rows)) - 0.45, -0.55)
        self.axes.set_yticks(list(self.rows.values()), [_row_label(name) for name in self.rows])
        self.axes.tick_params(axis="y", length=0, labelcolor=INK)
        self.axes.spines["left"].set_visible(False)
        self.axes.set_xlabel("seconds since the start" + (", without the breaks" if self.scale.gaps else ""))

    # ------------------------------------------------------------------------------------------------ bars

    def _draw_bars(self) -> None:
        done = [span for span in self.history.spans if not span.undone]
        undone = [span for span in self.history.spans if span.undone]
        edge: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.7 if self.roomy else 0.0}
        hatch: dict[str, Any] = {"hatch": "/////"} if self.roomy else {}
        self._collect("unit", [span for span in done if span.work is Work.TRAIN], **edge)
        self._collect("evaluation", [span for span in done if span.work is Work.EVALUATE], alpha=0.45, **edge, **hatch)
        if self.roomy:
            edges = [self._color(span) for span in undone]
            self._collect("undone", undone, facecolors="white", edgecolors=edges, linestyles="dashed", linewidths=0.8)
        else:
            self._collect("undone", undone, alpha=0.25, linewidths=0.0)
        self._mark_failures([span for span in done if span.failed])
        if self.predicted:
            self._draw_predicted()

    def _draw_predicted(self) -> None:
        start = self.scale.start
        spans = [replace(span, started=start + span.started, ended=start + span.ended) for span in self.predicted]
        wide = median(self._inches(span) for span in spans) > 3 * _ROOMY
        self._collect("predicted", spans, extent=_PREDICTED, edgecolors="white", linewidths=0.4 if wide else 0.0)
        for worker, end in _ends(self.predicted).items():
            top, bottom = (self.rows[worker] + edge for edge in (_PREDICTED[0] - 0.04, _PREDICTED[1] + 0.04))
            self.axes.plot([end, end], [top, bottom], color=INK, linewidth=1.2, zorder=6, gid="predicted end")

    def _collect(
        self, name: str, spans: Sequence[Span], extent: tuple[float, float] | None = None, **style: Any
    ) -> None:
        from matplotlib.collections import PolyCollection

        style = {"facecolors": [self._color(span) for span in spans], **style}
        corners = [self._corners(span, extent or self.extent) for span in spans]
        bars = PolyCollection(corners, gid=name, zorder=2, **style)
        self.axes.add_collection(bars, autolim=False)

    def _mark_failures(self, spans: Sequence[Span]) -> None:
        ends = [self.scale(span.ended) for span in spans]
        rows = [self._middle(span.worker) for span in spans]
        self.axes.scatter(ends, rows, marker="x", s=45, color=FAILURE, linewidths=1.8, zorder=6, gid="failed")

    def _color(self, span: Span) -> str:
        """Return the colour of a unit's trial; units of deleted trials are grey."""
        return self.colors.get(span.trial, OTHERS)

    def _corners(self, span: Span, extent: tuple[float, float]) -> list[tuple[float, float]]:
        left, right, row = self.scale(span.started), self.scale(span.ended), self.rows[span.worker]
        number, count = self.slices.get(id(span), (0, 1))
        height = (extent[1] - extent[0]) / count
        top = row + extent[0] + number * height
        bottom = top + height
        return [(left, top), (right, top), (right, bottom), (left, bottom)]

    def _middle(self, worker: str) -> float:
        """Return the vertical centre of a worker's bars."""
        return self.rows[worker] + sum(self.extent) / 2

    def _inches(self, span: Span) -> float:
        return (self.scale(span.ended) - self.scale(span.started)) * self.inches_per_second

    # ------------------------------------------------------------------------------------------- on the bars

    def _write_partitions(self) -> None:
        from matplotlib.patheffects import withStroke

        for span in self.history.spans:
            text = str(span.partition)
            number, count = self.slices[id(span)]
            # The partition of a flotilla is written once, on the bar in the middle.
            shown = span.work is Work.TRAIN and number == count // 2 and not span.undone
            if shown and self._inches(span) > _DIGIT * (len(text) + 1):
                color = self._color(span)
                height = sum(y for _, y in self._corners(span, self.extent)) / 4
                self.axes.text(
                    self.scale((span.started + span.ended) / 2), height, text, fontsize=7, color=readable_on(color),
                    ha="center", va="center", zorder=3, path_effects=[withStroke(linewidth=1.6, foreground=color)],
                )  # fmt: skip

    def _draw_hops(self) -> None:
        from matplotlib.patches import FancyArrowPatch

        for before, after in self.hops:
            rows = self._middle(before.worker), self._middle(after.worker)
            inward = (self.extent[1] - self.extent[0]) / 4 * (1 if rows[1] > rows[0] else -1)
            arrow = FancyArrowPatch(
                (self.scale(before.ended), rows[0] + inward),
                (self.scale(after.started), rows[1] - inward),
                arrowstyle="-|>",
                mutation_scale=6,
                linewidth=0.8 if self.roomy else 0.6,
                color=INK,
                shrinkA=0,
                shrinkB=0,
                zorder=5,
            )
            self.axes.add_patch(arrow)

    # ----------------------------------------------------------------------------------------- on the margins

    def _write_busy(self) -> None:
        beside = self.axes.get_yaxis_transform()
        if self.rows:
            self.axes.text(1.012, -0.62, "busy", transform=beside, fontsize=8.5, color=MUTED, va="bottom")
        for name, fraction in self.history.busy_fraction().items():
            text = f"{fraction:.0%}"
            self.axes.text(1.012, self._middle(name), text, transform=beside, fontsize=9, color=INK, va="center")

    def _mark_cuts(self) -> None:
        beside = self.axes.get_xaxis_transform()
        for position, seconds in self.scale.cuts():
            for shift in (-0.2, 0.2):
                self.axes.axvline(position + shift * self.scale.kept, color=MUTED, linewidth=0.9, zorder=4)
            text = f"break of {duration(seconds)}"
            self.axes.text(position, 1.01, text, transform=beside, fontsize=8.5, color=MUTED, ha="center", va="bottom")

    def _mark_pauses(self) -> None:
        """Shade the time before the first unit, and the times in which the run was paused on request."""
        first = min((span.started for span in self.history.spans), default=self.scale.start)
        pauses = [(self.scale.start, first, "start"), *((*hold, "paused") for hold in self.history.holds)]
        for begin, end, word in pauses:
            left, right = self.scale(begin), self.scale(min(end, self.history.updated or begin))
            if right - left < _SHADED * self.scale.length:
                continue
            self.axes.axvspan(left, right, facecolor=RULE, alpha=0.45, linewidth=0, zorder=1, gid=word)
            self.axes.annotate(
                f"{word} {duration(right - left)}", ((left + right) / 2, 1.01), fontsize=8.5,
                xycoords=self.axes.get_xaxis_transform(), color=MUTED, ha="center", va="bottom", annotation_clip=False,
            )  # fmt: skip

    def legend(self) -> list[Any]:
        """Return the legend entries of all colours and marks in the chart."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        leaders, spans = highlighted(self.history), self.history.spans
        handles: list[Any] = [Patch(color=self.colors[trial.id], label=trial.id) for trial in leaders]
        if len(self.history.trials) > len(leaders):
            handles.append(Patch(color=OTHERS, alpha=0.6, label="other trials, paler"))
        handles.append(Patch(facecolor=OTHERS, alpha=0.6, hatch="/////", edgecolor="white", label="evaluation"))
        if self.predicted:
            handles.append(Line2D([], [], color=OTHERS, linewidth=3, label="predicted"))
        if any(span.undone for span in spans):
            handles.append(Patch(facecolor="white", edgecolor=MUTED, linestyle="dashed", label="discarded"))
        if any(span.failed for span in spans):
            handles.append(Line2D([], [], color=FAILURE, marker="x", linestyle="", label="failed"))
        if self.hops:
            label = f"hops of {leaders[0].id}"
            handles.append(Line2D([], [], color=INK, marker=">", markersize=4, linewidth=0.8, label=label))
        return handles


def _slices(spans: Sequence[Span]) -> dict[int, tuple[int, int]]:
    """Return the position of each unit among those that ran together with it, and their number."""
    flotillas: dict[tuple[str, float], list[Span]] = {}
    for span in spans:
        flotillas.setdefault((span.worker, span.started), []).append(span)
    return {id(span): (number, len(members)) for members in flotillas.values() for number, span in enumerate(members)}


def _ends(spans: Sequence[Span]) -> dict[str, float]:
    """Return the time at which each worker's last unit ends."""
    return {span.worker: span.ended for span in sorted(spans, key=lambda span: span.ended)}
