"""Decisions: facts that the controller settled by itself. They change its state and need no action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hopfleet.domain.trial import Config, TrialState


@dataclass(frozen=True, slots=True)
class TrialAdded:
    """A trial that will train until ``epochs``.

    A warm clone starts with the model that its parent had after ``visits``; a cold clone has a parent and no visits.
    """

    trial: str
    number: int
    config: Config
    seed: int
    epochs: int
    origin: str = "search"  #: or "point", a configuration to try first; "clone"; "person"
    parent: str = ""
    visits: tuple[int, ...] = ()
    planned: int = 0  #: the most epochs that were planned, which numbers of steps count on; 0 in old journals
    #: The values that a space that is a function asked for, by name; empty if the configuration says the same.
    chosen: Config = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrialRolledBack:
    """The newest versions were lost; the units after ``version`` will run again in the same order."""

    trial: str
    version: int


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """All training partitions were visited and all validation partitions evaluated."""

    trial: str
    epoch: int
    version: int
    metrics: Mapping[str, float]
    best: bool  #: whether this is the trial's best epoch so far


@dataclass(frozen=True, slots=True)
class TrialStopped:
    """The trial trains no further; it ends once no unit of it runs and its model is saved."""

    trial: str
    reason: str
    delete: bool = False  #: whether the trial and its models will be removed, so nothing is saved


@dataclass(frozen=True, slots=True)
class TrialPaused:
    """The trial has trained as far as its search wants for now, and its model is saved."""

    trial: str


@dataclass(frozen=True, slots=True)
class TrialResumed:
    """The trial may train until ``epochs``; a paused, stopped or completed one goes on."""

    trial: str
    epochs: int


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """The trial is over."""

    trial: str
    state: TrialState
    reason: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class TrialDeleted:
    """The trial and its models are gone; only the journal remembers the trial."""

    trial: str


@dataclass(frozen=True, slots=True)
class TrialPrioritised:
    """Trials with a higher level start their units first. All others have level 0."""

    trial: str
    level: int


@dataclass(frozen=True, slots=True)
class SearchExtended:
    """More trials, more epochs or other dimensions, at a person's request."""

    trials: int = 0
    epochs: int = 0
    space: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunHeld:
    """While ``held``, running units end and no other unit starts."""

    held: bool


@dataclass(frozen=True, slots=True)
class WorkerRetired:
    """The worker gets no more work and is released when it is idle."""

    worker: str
    #: Whether teams will have its devices.
    for_teams: bool = False


@dataclass(frozen=True, slots=True)
class DevicesAllocated:
    """Trials train on these numbers of devices until the end of these epochs, on teams of these sizes.

    A trial that is not named keeps what it was given before.
    """

    teams: tuple[int, ...]
    devices: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionsMissing:
    """No worker has these training partitions, and none can get them; trials that need them wait. Empty: none is
    missing any more."""

    partitions: tuple[int, ...]
    valid: tuple[int, ...] = ()  #: validation partitions that no worker can evaluate on


@dataclass(frozen=True, slots=True)
class RunStalled:
    """Work remained while nothing ran and nothing was coming: a bug, told once in a run. ``text`` is the state."""

    text: str
    overruled: bool  #: whether units start although the policy waits; otherwise none can start


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """The outcome of a request: what it did, or why it was refused."""

    number: int
    granted: bool
    text: str


Decision = (
    TrialAdded
    | TrialRolledBack
    | EpochEnded
    | TrialStopped
    | TrialPaused
    | TrialResumed
    | TrialEnded
    | TrialDeleted
    | TrialPrioritised
    | SearchExtended
    | RunHeld
    | WorkerRetired
    | DevicesAllocated
    | PartitionsMissing
    | RunStalled
    | RequestAnswered
)
