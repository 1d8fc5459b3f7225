"""A trial, its states, and the table of transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Config = Mapping[str, Any]
"""One point of the search space: names to JSON values, possibly nested."""


def trial_name(number: int) -> str:
    """Return the name of the trial with a number: the first is ``t0001``."""
    return f"t{number + 1:04d}"


class TrialState(Enum):
    """The state of a trial."""

    PENDING = "pending"  #: added, no unit finished yet
    RUNNING = "running"  #: at least one unit finished
    PAUSED = "paused"  #: trained until the epoch that its search has requested so far
    COMPLETED = "completed"  #: trained for all its epochs
    STOPPED = "stopped"  #: ended early by the search, a budget or a user
    FAILED = "failed"  #: its own code raised, or its units kept killing workers

    @property
    def ended(self) -> bool:
        return self in (TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED)


TRANSITIONS: Mapping[TrialState, frozenset[TrialState]] = {
    TrialState.PENDING: frozenset({TrialState.RUNNING, TrialState.STOPPED, TrialState.FAILED}),
    TrialState.RUNNING: frozenset({TrialState.PAUSED, TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED}),
    TrialState.PAUSED: frozenset({TrialState.RUNNING, TrialState.STOPPED}),
    TrialState.COMPLETED: frozenset({TrialState.RUNNING}),
    TrialState.STOPPED: frozenset({TrialState.RUNNING}),
    TrialState.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Parent:
    """The origin of a clone: the parent trial, the model version it starts from, and that trial's configuration."""

    trial: str
    version: int
    config: Config


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration to train until ``epochs``. ``seed`` determines every random stream of its training."""

    id: str
    number: int
    config: Config
    seed: int
    epochs: int
    #: Set only if the trial starts from another trial's model.
    parent: Parent | None = None
    #: Where the trial comes from: "search", "point" (to try first), "clone" or "person" (a user).
    origin: str = "search"
    #: The epochs that were planned when the trial was added, at least those of its search; 0 if it is not known. They
    #: stay the same if the trial is extended.
    planned: int = 0
    #: The values that a space that is a function asked for, by name; empty if the configuration says the same.
    chosen: Config = field(default_factory=dict)
