"""Draw the figures of the concept pages into docs/images/figures, as SVG that follows a light or a dark theme.

Usage: ``python tools/draw_figures.py [FOLDER]``. The schedule in ``hopping.svg`` is one that the
controller decides.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

import hopfleet as hop
from hopfleet.monitor.charts.colors import HIGHLIGHTS

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "figures"

STYLE = """
.hf-figure{--ink:#1f2328;--soft:#59636e;--line:#8c959f;--box:#f3f5f8;--mark:#0f6fbf;font:13px system-ui,sans-serif}
@media(prefers-color-scheme:dark){.hf-figure{--ink:#e6edf3;--soft:#a4adb8;--line:#6e7681;--box:#22272e;--mark:#6cb6ff}}
.hf-figure text{fill:var(--ink)}.hf-figure .soft{fill:var(--soft)}.hf-figure .on{fill:#fff;font-weight:600}
.hf-figure .box{fill:var(--box);stroke:var(--line)}.hf-figure .line{stroke:var(--line);fill:none}
.hf-figure .mark{stroke:var(--mark);fill:none;stroke-width:2}.hf-figure .name{font-weight:600}
.hf-figure .tip{fill:var(--line)}.hf-figure .marktip{fill:var(--mark)}
""".strip()
"""Colours of the two themes; the site sets them by its own switch, too."""


class Drawing:
    """A picture that is built from a few kinds of parts."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size, self._title = (width, height), title
        self._parts: list[str] = []

    def bar(self, x: float, y: float, width: float, height: float, color: str, label: str = "") -> None:
        """Draw a coloured bar with a white label."""
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" fill="{color}"/>'
        )
        if label:
            self.text(x + width / 2, y + height / 2 + 5, label, "on", "middle")

    def box(self, x: float, y: float, width: float, height: float, name: str, *lines: str) -> None:
        """Draw a box with a name and lines of text below it."""
        self._parts.append(f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        top = y + (height - 18 * (1 + len(lines))) / 2 + 14
        self.text(x + width / 2, top, name, "name", "middle")
        for number, line in enumerate(lines, 1):
            self.text(x + width / 2, top + 18 * number, line, "soft", "middle")

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Write a text."""
        self._parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def arrow(self, *points: tuple[float, float], mark: bool = False) -> None:
        """Draw a line through some points that ends in a tip."""
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        tip = "marktip" if mark else "tip"
        self._parts.append(
            f'<polyline class="{"mark" if mark else "line"}" points="{way}" marker-end="url(#{self._key}-{tip})"/>'
        )

    def line(self, *points: tuple[float, float]) -> None:
        """Draw a line without a tip."""
        self._parts.append(f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')

    @property
    def _key(self) -> str:
        return "hf-" + "".join(letter for letter in self._title.lower() if letter.isalpha())[:12]

    def svg(self) -> str:
        """Return the picture."""
        width, height = self._size
        tips = "".join(
            f'<marker id="{self._key}-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path class="{kind}" d="M0 0L8 4L0 8z"/></marker>'
            for kind in ("tip", "marktip")
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="hf-figure" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(self._title)}"><title>{escape(self._title)}</title><style>{STYLE}</style>'
            f"<defs>{tips}</defs>\n" + "\n".join(self._parts) + "\n</svg>\n"
        )


def hopping() -> Drawing:
    """Draw an epoch of four trials on three workers, as the default policy decides it."""
    found = hop.simulate(trials=4, partitions=3, costs="lognormal", sigma=0.4, seed=3)
    spans = [span for span in found.history.spans if span.ended is not None]
    begin = min(span.started for span in spans)
    scale = 560 / found.makespan
    draw = Drawing(700, 200, "Four trials hop between three workers in one epoch")
    places: dict[str, list[tuple[float, float, float]]] = {}
    for row in range(3):
        draw.text(0, 45 + 50 * row, f"worker {row + 1}", "name")
        draw.text(0, 61 + 50 * row, f"partition {row + 1}", "soft")
    for span in sorted(spans, key=lambda span: span.started):
        row, number = int(span.worker[1:]) - 1, int(span.trial[1:])
        x, width = 110 + scale * (span.started - begin), scale * (span.ended - span.started)
        draw.bar(x + 1, 32 + 50 * row, width - 2, 32, HIGHLIGHTS[number - 1], f"trial {number}")
        places.setdefault(span.trial, []).append((x + 1, x + width - 1, 48 + 50 * row))
    visits = places["t0003"]
    for (_, left, from_y), (right, _, to_y) in itertools.pairwise(visits):
        side = 16 if to_y > from_y else -16
        draw.arrow((left - 6, from_y + side), (right + 6, to_y - side), mark=True)
    draw.arrow((110, 190), (680, 190))
    draw.text(110, 180, "time", "soft")
    return draw


def unit() -> Drawing:
    """Draw what happens between the end of a unit and the start of the next one."""
    draw = Drawing(700, 250, "From the end of a unit to the start of the next one")
    draw.box(0, 90, 150, 70, "worker", "trains one unit")
    draw.box(275, 90, 150, 70, "driver", "asks, writes, sends")
    draw.box(550, 15, 150, 70, "controller", "pure: decides")
    draw.box(550, 165, 150, 70, "journal", "one transaction")
    draw.arrow((150, 112), (275, 112))
    draw.text(212, 104, "1  report", "soft", "middle")
    draw.arrow((425, 105), (550, 55))
    draw.text(455, 62, "2  event", "soft", "middle")
    draw.arrow((560, 86), (425, 122))
    draw.text(535, 118, "decisions", "soft", "middle")
    draw.arrow((425, 145), (550, 190))
    draw.text(448, 188, "3  append", "soft", "middle")
    draw.arrow((275, 140), (150, 140))
    draw.text(212, 157, "4  next unit", "soft", "middle")
    draw.text(75, 185, "model from memory,", "soft", "middle")
    draw.text(75, 203, "or the version that hopped", "soft", "middle")
    return draw


def flotilla() -> Drawing:
    """Draw three trials that share the batches of a partition."""
    draw = Drawing(730, 210, "Trials that train together share batches and nothing else")
    draw.box(0, 75, 120, 60, "partition", "read once")
    draw.box(170, 75, 130, 60, "batch", "transformed once")
    draw.arrow((120, 105), (170, 105))
    for number in range(3):
        y = 15 + 65 * number
        draw.arrow((300, 105), (350, y + 25))
        draw.bar(350, y, 150, 50, HIGHLIGHTS[number], f"trial {number + 1}")
        draw.arrow((500, y + 25), (545, y + 25))
        draw.text(552, y + 21, "its own weights,", "soft")
        draw.text(552, y + 39, "optimizer, random streams", "soft")
    return draw


def versions() -> Drawing:
    """Draw where the versions of a trial are while it visits three partitions in each of two epochs."""
    draw = Drawing(700, 230, "Where the versions of a trial are saved")
    rows = {"worker's memory": 65, "shared memory": 120, "disk": 175}
    for name, y in rows.items():
        draw.text(0, y + 5, name, "name")
        draw.line((130, y), (690, y))
    draw.text(150, 25, "epoch 1", "soft")
    draw.text(405, 25, "epoch 2", "soft")
    draw.line((395, 12), (395, 215))
    moves = {2: "hops", 5: "hops"}
    for number in range(1, 7):
        x = 150 + 85 * (number - 1) + 30
        draw.bar(x - 18, rows["worker's memory"] - 14, 36, 28, HIGHLIGHTS[0], f"v{number}")
        if number in moves:
            draw.arrow((x, 80), (x, 105))
            draw.bar(x - 18, rows["shared memory"] - 14, 36, 28, HIGHLIGHTS[1], f"v{number}")
            draw.text(x + 24, 113, moves[number], "soft")
        if number % 3 == 0:
            draw.arrow((x, 80), (x, 160))
            draw.bar(x - 18, rows["disk"] - 14, 36, 28, HIGHLIGHTS[2], f"v{number}")
    draw.text(150, 217, "v2: the model after its second unit", "soft")
    return draw


def exact() -> Drawing:
    """Draw how a step becomes a captured step, and what happens where it cannot."""
    draw = Drawing(740, 300, "How fuse=exact computes steps on CUDA")
    draw.box(0, 15, 150, 66, "first batch", "an eager step")
    draw.box(190, 15, 150, 66, "capture", "as a CUDA graph")
    draw.box(380, 15, 150, 66, "compare", "bits with eager steps")
    draw.box(590, 15, 150, 66, "replay", "members side by side")
    for x, end in ((150, 190), (340, 380), (530, 590)):
        draw.arrow((x, 48), (end, 48))
    draw.text(560, 40, "same", "soft", "middle")
    draw.arrow((265, 81), (265, 125))
    draw.text(275, 108, "refused", "soft")
    draw.line((455, 81), (455, 105))
    draw.arrow((455, 105), (340, 140))
    draw.text(462, 104, "other bits", "soft")
    draw.box(130, 125, 270, 44, "the gradients alone are captured")
    draw.arrow((265, 169), (265, 187))
    draw.box(130, 187, 270, 44, "the update alone is captured")
    draw.arrow((265, 231), (265, 249))
    draw.box(130, 249, 270, 44, "eager steps, in turn")
    draw.text(415, 152, "the optimizer computes on the host", "soft")
    draw.text(415, 214, "the loss reads a value", "soft")
    draw.text(415, 276, "the log says why, once", "soft")
    return draw


def fast() -> Drawing:
    """Draw how a stack holds the weights of its members."""
    draw = Drawing(700, 230, "How fuse=fast computes steps")
    draw.text(0, 20, "weights of three members", "name")
    draw.text(265, 20, "one table", "name")
    draw.text(480, 20, "one program", "name")
    for number in range(3):
        y = 40 + 55 * number
        for part, width in enumerate((70, 30, 45)):
            draw.bar((0, 75, 110)[part], y, width, 30, HIGHLIGHTS[number])
        draw.arrow((165, y + 15), (255, 83 + 26 * number))
        draw.bar(265, 70 + 26 * number, 145, 26, HIGHLIGHTS[number], f"row {number + 1}")
    draw.arrow((415, 109), (475, 109))
    draw.box(
        480,
        40,
        220,
        140,
        "for all rows at once",
        "loss, gradients, update;",
        "its own learning rate,",
        "dropout and schedule",
        "for each row",
    )
    draw.text(0, 218, "Trials of another kind, and those that compare as different, train as with exact.", "soft")
    return draw


FIGURES: tuple[Callable[[], Drawing], ...] = (hopping, unit, flotilla, versions, exact, fast)


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for figure in FIGURES:
        (folder / f"{figure.__name__}.svg").write_text(figure().svg(), encoding="utf-8")
    print(f"{len(FIGURES)} figures in {folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
