"""A section of the report: one table or figure of a paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple


class How(Enum):
    """How a figure of ours was obtained."""

    MEASURED = "measured"
    RECORDED = "measured earlier"
    SIMULATED = "simulated"
    FORMULA = "by formula"
    NOT = "not repeated"


class Figure(NamedTuple):
    """One row: a figure of a paper and ours. ``ratio`` is ours by theirs; None where it says nothing.

    ``worse`` says so where ours is worse than the paper's, or than what it is compared with.
    """

    what: str
    published: str
    ours: str
    ratio: float | None
    how: How
    worse: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A table or a figure of a paper, made again."""

    paper: str
    title: str
    rows: Sequence[Figure]
    #: What differs from the paper, and why.
    remark: str = ""
    #: Names of files in the report's folder, with what each shows.
    pictures: Sequence[tuple[str, str]] = field(default=())


class Effort(NamedTuple):
    """How much to compute, and where pictures go."""

    folder: Path
    #: Seeds of a quick part, a usual one and a full one.
    level: int = 1

    def pick(self, smoke: int, usual: int, full: int) -> int:
        return (smoke, usual, full)[self.level]


Maker = Callable[[Effort], Section]
