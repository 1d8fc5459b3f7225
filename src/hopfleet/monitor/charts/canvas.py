"""Parts shared by all charts: figure, title, style of the axes, saving. Uses neither pyplot nor global state."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hopfleet.errors import UsageError
from hopfleet.monitor.charts.colors import INK, MUTED, RULE
from hopfleet.safe_text import visible
from hopfleet.support.files import trouble, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".pdf", ".png", ".svg")
_MARGIN = 0.25  #: inches to the right of the title
_LINE = 0.19  #: inches from one line of facts to the next


def paper(width: float, height: float, title: str, facts: Sequence[str], left: float) -> Figure:
    """Return a white figure, sized in inches, with a title and facts ``left`` inches from the edge."""
    from hopfleet.monitor.charts.figure import ChartFigure

    figure = ChartFigure(figsize=(width, height), facecolor="white")
    room = width - left - _MARGIN
    _write(figure, (left / width, 1 - 0.38 / height), [title], room, fontsize=14, fontweight="bold", color=INK)
    _write(figure, (left / width, 1 - 0.66 / height), facts, room, fontsize=10, color=MUTED)
    return figure


def _write(figure: Figure, place: tuple[float, float], facts: Sequence[str], room: float, **style: Any) -> None:
    """Write facts in a line; those that do not fit into ``room`` inches continue below."""
    # The text may contain user input, in which a dollar sign does not start a formula.
    probe = figure.text(0, 0, "", parse_math=False, **style)

    def fits(line: str) -> bool:
        probe.set_text(line)
        return probe.get_window_extent().width <= room * figure.dpi

    lines: list[str] = []
    for fact in map(visible, facts):
        while len(fact) > 1 and not fits(fact):
            fact = fact[: -1 - len(fact) // 20].rstrip("…") + "…"
        if lines and fits(longer := f"{lines[-1]}   ·   {fact}"):
            lines[-1] = longer
        else:
            lines.append(fact)
    probe.remove()
    for number, line in enumerate(lines):
        height = place[1] - number * _LINE / figure.get_figheight()
        figure.text(place[0], height, line, parse_math=False, **style)


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


def save(figure: Figure, path: str | os.PathLike[str] | None) -> None:
    """Make control characters visible, and write the figure in the format given by the suffix of the path, if any."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(visible(text.get_text()))
    if path is None:
        return
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"path={path!r}: must be the name of a file that ends in one of {', '.join(SUFFIXES)}")
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"path={str(path)!r}: must end in one of {', '.join(SUFFIXES)}")
    try:
        target = Path(path).expanduser()
        kind = target.suffix[1:].lower()
        write_atomically(target, lambda place: figure.savefig(place, dpi=150, format=kind), durable=False)
    except OSError as error:
        raise UsageError(trouble(path, error)) from error


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
