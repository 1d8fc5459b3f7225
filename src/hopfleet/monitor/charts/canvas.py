"""What all charts share: the paper, the title, the look of the axes, and saving. No pyplot, no global state."""

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
    """A white figure of so many inches with a title and a line of facts, which start ``left`` inches from the edge."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error

    figure = Figure(figsize=(width, height), facecolor="white")
    title_place, facts_place = (left / width, 1 - 0.38 / height), (left / width, 1 - 0.66 / height)
    # The words are the user's: a dollar sign in them is not mathematics.
    figure.text(*title_place, title, fontsize=14, fontweight="bold", color=INK, parse_math=False)
    figure.text(*facts_place, facts, fontsize=10, color=MUTED, parse_math=False)
    return figure


def dress(axes: Axes, grid: str) -> None:
    """Thin lines, grey ticks, no box; a grid along one axis (``"x"`` or ``"y"``)."""
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
    """Write the figure in the format that the suffix names; nothing when there is no path."""
    if path is None:
        return
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"path={str(path)!r}: must end in one of {', '.join(SUFFIXES)}")
    figure.savefig(path, dpi=150)


def spread(wanted: Sequence[float], distance: float) -> list[float]:
    """Heights near the wanted ones and in the same order, at least ``distance`` apart, between 0 and 1.

    Less the distances below it, each height may equal the next lower one but not undercut it; so neighbours that
    are too close are pooled at their mean until none are.
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
