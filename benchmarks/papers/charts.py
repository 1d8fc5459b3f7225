"""The pictures of the report that are no timetables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, PALE = "#1f5fa8", "#b8c4d2"


def bars(path: Path, names: Sequence[str], values: Mapping[str, Sequence[float]], what: str, form: str) -> None:
    """Draw two bars for each name; the values of the second label are the ones to look at. ``form`` formats values."""
    figure = Figure(figsize=(8, 0.5 + 0.62 * len(names)), layout="constrained")
    axes = figure.subplots()
    for number, (label, color) in enumerate(zip(values, (PALE, INK), strict=True)):
        places = [at + 0.38 * number for at in range(len(names))]
        drawn = axes.barh(places, values[label], height=0.36, color=color, label=label)
        axes.bar_label(drawn, [format(value, form) for value in values[label]], padding=3, fontsize=8)
    axes.set_yticks([at + 0.19 for at in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xlabel(what)
    axes.margins(x=0.1)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    _finish(figure, axes, path)


def lines(
    path: Path, values: Mapping[str, Sequence[float]], at: Sequence[int], points: Mapping[int, float], what: str
) -> None:
    """Draw a line for each label, and the ``points`` that the paper gives."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    for label, line in values.items():
        axes.plot(at, line, marker="o", markersize=4, label=label)
    axes.plot(list(points), list(points.values()), "kx", label="FLEET-G in the paper")
    axes.axhline(1.0, color="0.6", linewidth=1)
    axes.set_xlabel("GPUs")
    axes.set_ylabel(what)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    _finish(figure, axes, path)


def _finish(figure: Figure, axes: Axes, path: Path) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
