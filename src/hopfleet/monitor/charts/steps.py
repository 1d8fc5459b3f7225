"""Values of single steps: one line per trial over its steps, e.g. of learning rates.

The best trials are coloured and labelled where their lines end; all other lines are thin and grey in the background.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopfleet.errors import UsageError
from hopfleet.monitor.charts.canvas import dress, paper, save, spread
from hopfleet.monitor.charts.colors import OTHERS, highlighted, trial_colors
from hopfleet.monitor.charts.parameters import drawable
from hopfleet.monitor.history import History, TrialHistory
from hopfleet.monitor.wording import number, plural
from hopfleet.phrases import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 10.0, 5.6  #: inches
_LABEL_HEIGHT = 0.06  #: fraction of the axes' height for a label


@dataclass(frozen=True, slots=True)
class StepCurves:
    """The data of the chart: one logged value of all trials in their steps, the best trial first."""

    metric: str
    curves: list[dict[str, Any]]


def steps_data(history: History, metric: str | None = None) -> StepCurves:
    """Return the finite values of a name, by default the first in the alphabet. Raise UsageError if none was logged."""
    name = _name(history, metric)
    found = [(trial, _line(history, trial, name)) for trial in history.leaderboard()]
    return StepCurves(
        name, [{"trial": trial.id, "steps": steps, "values": values} for trial, (steps, values) in found if steps]
    )


def draw_steps(history: History, path: str | os.PathLike[str] | None = None, metric: str | None = None) -> Figure:
    """Draw a logged value over the steps of trials. ``path`` ends in .png, .svg or .pdf."""
    from matplotlib.ticker import MaxNLocator

    data = steps_data(history, metric)
    facts = [f"{data.metric} by step", plural(len(data.curves), "trial")]
    figure = paper(_WIDTH, _HEIGHT, history.name, facts, left=0.75)
    axes = figure.add_axes((0.085, 0.11, 0.775, 0.73))
    dress(axes, grid="y")
    axes.set_xlabel("step")
    axes.set_ylabel(data.metric, parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    colors, leaders = trial_colors(history), [trial.id for trial in highlighted(history)]
    for curve in data.curves:
        best = curve["trial"] in leaders
        style: dict[str, Any] = {"color": colors[curve["trial"]] if best else OTHERS, "linewidth": 1.8 if best else 0.8}
        marker = "o" if len(curve["steps"]) == 1 else ""
        axes.plot(curve["steps"], curve["values"], marker=marker, zorder=10 if best else 2, **style)
    labelled = [curve for curve in data.curves if curve["trial"] in leaders]
    low, high = axes.get_ylim()
    heights = spread([(curve["values"][-1] - low) / (high - low) for curve in labelled], _LABEL_HEIGHT)
    for curve, height in zip(labelled, heights, strict=True):
        text, color = f"{curve['trial']}   {number(curve['values'][-1])}", colors[curve["trial"]]
        axes.text(1.01, height, text, transform=axes.transAxes, va="center", fontsize=8.5, color=color)
    save(figure, path)
    return figure


def _name(history: History, metric: str | None) -> str:
    names = history.logged_names()
    if not names:
        raise UsageError("kind='steps': no trial has logged a value; call self.log(name, value) in loss()")
    if metric is not None and metric not in names:
        raise UsageError(f"metric={metric!r}: no trial has logged it; choose one of {listed(metric, names)}")
    return metric or names[0]


def _line(history: History, trial: TrialHistory, name: str) -> tuple[list[int], list[float]]:
    """Return the steps and the finite values of a trial."""
    points = zip(*history.logged(trial).get(name, ((), ())), strict=True)
    kept = [(step, value) for step, value in points if drawable(value)]
    return [step for step, _ in kept], [value for _, value in kept]
