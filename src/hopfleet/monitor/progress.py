"""Progress and remaining time: measured work and the search's expectation, put together.

Units that exist are counted; trials that the search has yet to add, and promotions that it has yet to decide, are
expected. So the total is known from the first unit on, as far as the search knows it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from hopfleet.domain.expectation import Expectation
from hopfleet.monitor.records import Dropped, TrialHistory, WorkerView
from hopfleet.monitor.wording import duration, plural

SUGGESTED = ("search", "point")
"""Origins of the trials that the search expects; clones and trials that users add come on top."""


@dataclass(frozen=True, slots=True)
class UnitCounts:
    """Units of training: those done, and all that the experiment is going to be."""

    done: int
    planned: int
    bound: Literal["exactly", "about", "at most", "at least"]  #: how exact ``planned`` is
    fraction: float  #: of the work, or of a budget of time, whichever is further
    eta: float | None  #: seconds; None while unknown or paused

    def units(self) -> str:
        """Format the units: ``34/96 units``, ``34 of about 96 units``; without an end ``34 units``."""
        if self.bound == "exactly":
            return f"{self.done}/{self.planned} units"
        if self.bound == "at least":
            return plural(self.done, "unit")
        return f"{self.done} of {self.bound} {self.planned} units"

    def remaining(self) -> str:
        """Format the remaining time: ``eta 20s``, ``eta about 20s``; empty if unknown or over."""
        if not self.eta:
            return ""
        bound = {"exactly": "", "about": "about ", "at most": "at most ", "at least": "at most "}[self.bound]
        return f"eta {bound}{duration(max(1.0, self.eta))}"


class CountsUnits(Protocol):
    """The part of a history that its progress follows from."""

    partitions: int
    expected: Expectation | None
    trials: dict[str, TrialHistory]
    dropped: Dropped
    workers: dict[str, WorkerView]
    trained: int
    finished: bool | None
    held: bool

    @property
    def elapsed(self) -> float: ...

    def live_workers(self) -> Collection[WorkerView]: ...


def measure(history: CountsUnits) -> UnitCounts:
    """Return the progress of a history.

    ``eta`` is based on measured times: workers share the remaining units evenly, but the units of one trial run one
    after another. The cost of a unit includes evaluations.
    """
    trials = history.trials.values()
    done = history.dropped.units + sum(trial.units_done for trial in trials)
    ahead = [_planned(history, trial) - trial.units_done for trial in trials if not trial.state.ended]
    owed = sum(ahead) + _expected(history)
    expected = history.expected
    if expected is not None and expected.capped and expected.epochs is not None:
        owed = max(0, min(owed, expected.epochs * history.partitions - done))
    planned = done + owed
    fraction = done / planned if planned else 0.0
    bound: Literal["exactly", "about", "at most", "at least"] = "exactly" if expected is None else expected.bound
    if history.finished:
        return UnitCounts(done, done, "exactly", 1.0 if planned else 0.0, 0.0)
    if expected is not None and expected.epochs is None:
        bound, fraction = "at least", 0.0
    seconds = math.inf if expected is None or expected.seconds is None else expected.seconds
    left = min(_seconds_for(history, owed, max(ahead, default=0)), max(0.0, seconds - history.elapsed))
    known = left < math.inf and not history.held and (owed > 0 or bound == "at least")
    return UnitCounts(done, planned, bound, max(fraction, min(1.0, history.elapsed / seconds)), left if known else None)


def _planned(history: CountsUnits, trial: TrialHistory) -> int:
    return trial.epochs * history.partitions - len(trial.inherited)


def _expected(history: CountsUnits) -> int:
    """Return the units that the search expects beyond those of the trials that exist."""
    if history.expected is None or history.expected.epochs is None:
        return 0
    known = sum(_planned(history, trial) for trial in history.trials.values() if trial.origin in SUGGESTED)
    return max(0, history.expected.epochs * history.partitions - known - history.dropped.planned)


def _seconds_for(history: CountsUnits, owed: int, longest: int) -> float:
    workers = len(history.live_workers())
    if not workers or not history.trained or (history.expected is not None and history.expected.epochs is None):
        return math.inf
    seconds_per_unit = sum(worker.busy for worker in history.workers.values()) / history.trained
    return seconds_per_unit * max(owed / workers, longest)
