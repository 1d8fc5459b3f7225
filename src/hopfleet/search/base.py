"""What every search procedure promises.

The controller owns one search. It calls ``setup`` once, then ``suggest`` whenever it has room for another trial,
and ``observe`` after every epoch of every trial. A search keeps its own state and touches nothing else, so an
experiment can be resumed by showing it the same calls again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.trial import Config, Trial
from hopfleet.errors import UsageError


class Verdict(Enum):
    """What a search wants of a trial whose epoch has ended."""

    CONTINUE = "continue"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be optimised."""

    metric: str
    mode: str

    def better(self, value: float, than: float) -> bool:
        """Whether ``value`` beats ``than``. NaN beats nothing, and is beaten by every number."""
        if value != value:
            return False
        if than != than:
            return True
        return value > than if self.mode == "max" else value < than


class Search(ABC):
    """A search procedure. ``max_epochs`` is the longest that any trial may train."""

    max_epochs: int

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        """Check the space and start afresh. Raises SpaceError for a space that this search cannot walk."""
        spaces.check(space)
        self.space, self.seed, self.goal = space, seed, goal

    @abstractmethod
    def suggest(self, number: int) -> Config | None:
        """The configuration of trial ``number`` (0, 1, 2, ...), or None when there is none."""

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Verdict:
        """Hear the metrics of a trial after an epoch."""
        return Verdict.CONTINUE

    @property
    @abstractmethod
    def trials(self) -> int:
        """How many trials there will be at most; known after ``setup``."""

    def describe(self) -> dict[str, Any]:
        """The search as JSON, for the record and for comparing two definitions."""
        return {"search": type(self).__name__, "trials": self.trials, "max_epochs": self.max_epochs}


def at_least_one(name: str, value: Any) -> int:
    """``value`` if it is a positive integer, else UsageError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name}={value!r}: must be an integer of at least 1")
    return value
