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
    PAUSED = "paused"  #: trained as far as its search wants for now
    COMPLETED = "completed"  #: trained for all its epochs
    STOPPED = "stopped"  #: ended early by the search, a budget or a person
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
    """The trial that another one goes on from, the version that it goes on from, and the configuration that made it."""

    trial: str
    version: int
    config: Config


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration to be trained until ``epochs``. ``seed`` starts every random stream of its training."""

    id: str
    number: int
    config: Config
    seed: int
    epochs: int
    #: Only where it starts with somebody else's model.
    parent: Parent | None = None
    #: Who wanted it: "search", "point" (to try first), "clone" or "person".
    origin: str = "search"
