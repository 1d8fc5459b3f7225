"""Parts shared by all charts: figure, title, style of the axes, saving. Uses neither pyplot nor global state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.monitor.charts.colors import INK, MUTED, RULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".pdf", ".png", ".svg")


def paper(width: float, height: float, title: str, facts: str, left: float) -> Figure:
    """Return a white figure, sized in inches, with a title and a line of facts ``left`` inches from the edge."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error

    figure = Figure(figsize=(width, height), facecolor="white")
    title_place, facts_place = (left / width, 1 - 0.38 / height), (left / width, 1 - 0.66 / height)
    # The text may contain user input, in which a dollar sign does not start a formula.
    figure.text(*title_place, title, fontsize=14, fontweight="bold", color=INK, parse_math=False)
    figure.text(*facts_place, facts, fontsize=10, color=MUTED, parse_math=False)
    return figure


def dress(axes: Axes, grid: str) -> None:
    """Style the axes: thin lines, grey ticks, no box, and a grid along one axis (``"x"`` or ``"y"``)."""
    axes.grid(axis="x" if grid == "x" else "y", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, length=3, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)


def save(figure: Figure, path: str | Path | None) -> None:
    """Write the figure in the format given by the path's suffix; without a path, do nothing."""
    if path is None:
        return
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"path={str(path)!r}: must end in one of {', '.join(SUFFIXES)}")
    figure.savefig(path, dpi=150)


def spread(wanted: Sequence[float], distance: float) -> list[float]:
    """Return heights near the wanted ones, in the same order, at least ``distance`` apart and between 0 and 1.

    After subtracting the distances below each height, the heights must not decrease. Neighbours that violate this are
    pooled at their mean until none do (isotonic regression).
    """
    order = sorted(range(len(wanted)), key=lambda index: (wanted[index], -index))
    pools: list[list[float]] = []
    for place, index in enumerate(order):
        pools.append([wanted[index] - place * distance])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    bases = [fmean(pool) for pool in pools for _ in pool]
    highest = 1 - distance / 2 - (len(wanted) - 1) * distance
    heights = [0.0] * len(wanted)
    for place, (index, base) in enumerate(zip(order, bases, strict=True)):
        heights[index] = max(distance / 2, min(base, highest)) + place * distance
    return heights
