"""The table of results, and one row of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. ``other`` is the alternative, ``ratio`` is ours divided by theirs, ``ok`` is None without a bar."""

    name: str
    what: str
    ours: str
    other: str = ""
    ratio: float | None = None
    bar: str = ""
    ok: bool | None = None


HEADER = ("benchmark", "what is measured", "ours", "compared with", "ratio", "bar", "ok")


def table(rows: Sequence[Row]) -> str:
    """Format the rows as a Markdown table, aligned for a terminal."""
    lines = [HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    padded = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    padded.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(padded)


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    verdict = {True: "yes", False: "**no**", None: ""}[row.ok]
    return row.name, row.what, row.ours, row.other, ratio, row.bar, verdict


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"
