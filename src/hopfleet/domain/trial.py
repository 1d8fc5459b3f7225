"""A trial, the states it can be in, and the table of the ways between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

Config = Mapping[str, Any]
"""One point of the search space: names to JSON values, possibly nested."""


class TrialState(Enum):
    """Where a trial stands."""

    PENDING = "pending"  #: added, no unit finished yet
    RUNNING = "running"  #: at least one unit finished
    COMPLETED = "completed"  #: trained for all its epochs
    STOPPED = "stopped"  #: ended early by the search or a person
    FAILED = "failed"  #: its own code raised, or its units kept killing workers

    @property
    def ended(self) -> bool:
        return self in (TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED)


TRANSITIONS: Mapping[TrialState, frozenset[TrialState]] = {
    TrialState.PENDING: frozenset({TrialState.RUNNING, TrialState.STOPPED, TrialState.FAILED}),
    TrialState.RUNNING: frozenset({TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED}),
    TrialState.COMPLETED: frozenset(),
    TrialState.STOPPED: frozenset(),
    TrialState.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration to be trained. ``seed`` starts every random stream of its training."""

    id: str
    number: int
    config: Config
    seed: int
    epochs: int
