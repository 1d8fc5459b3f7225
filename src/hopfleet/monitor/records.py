"""The records of a history: spans of work, trials with their epochs, and workers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import groupby

from hopfleet.domain.messages import VersionSaved
from hopfleet.domain.trial import Config, TrialState
from hopfleet.domain.unit import Unit, Work


@dataclass(slots=True)
class Span:
    """A unit or an evaluation on one worker, from ``started`` to ``ended``."""

    worker: str
    trial: str
    epoch: int
    partition: int
    work: Work
    started: float
    ended: float
    hopped: bool = False  #: the model came from another worker
    failed: bool = False  #: the user's code raised
    undone: bool = False  #: the work does not count: rolled back, repeated, or its worker was lost


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One finished epoch of a trial."""

    epoch: int
    version: int
    metrics: dict[str, float]
    time: float


@dataclass(slots=True)
class TrialHistory:
    """The journal's record of one trial."""

    id: str
    number: int
    config: Config
    seed: int
    epochs: int  #: planned
    origin: str = "search"  #: or "point", "clone", "person"
    parent: str = ""  #: the trial that this one was cloned from
    inherited: tuple[int, ...] = ()  #: the partitions visited by the parent's model
    begins: int = 0  #: the parent's epoch from which a warm clone continues; 0 for other trials
    milestones: list[int] = field(default_factory=list)  #: planned last epochs before the trial was told to continue
    state: TrialState = TrialState.PENDING
    epochs_done: list[EpochRow] = field(default_factory=list)
    best: EpochRow | None = None
    reason: str = ""  #: why the trial ended, unless it completed
    traceback: str = ""
    units: list[Span] = field(default_factory=list)  #: units that count, in order, without those inherited
    saved: dict[int, VersionSaved] = field(default_factory=dict)  #: durable versions that still exist

    @property
    def units_done(self) -> int:
        return len(self.units)

    @property
    def epochs_trained(self) -> int:
        """The last finished epoch, including inherited ones."""
        return self.epochs_done[-1].epoch if self.epochs_done else self.begins

    @property
    def source(self) -> str:
        """The parent: ``t0003``, or ``t0003 at 2`` for a warm clone from epoch 2; empty if there is no parent."""
        return f"{self.parent} at {self.begins}" if self.inherited else self.parent

    @property
    def visits(self) -> list[list[int]]:
        """The partitions in the order visited, without inherited visits, one list per epoch; the last may be short."""
        return [[unit.partition for unit in units] for _, units in groupby(self.units, key=lambda unit: unit.epoch)]

    @property
    def error(self) -> str | None:
        """Why the trial failed, or None if it did not."""
        return self.reason if self.state is TrialState.FAILED else None


@dataclass(slots=True)
class WorkerView:
    """One worker, across all periods in which a worker of this name was present."""

    name: str
    device: str
    joined: float
    lost: float | None = None  #: None while the worker is present
    doing: Unit | None = None
    since: float = 0.0  #: when the current unit was assigned
    next: Unit | None = None  #: the unit assigned to run after the current one
    units: int = 0  #: units and evaluations finished
    busy: float = 0.0  #: seconds of finished work, overlaps counted once
    busy_until: float = -math.inf
    earlier: float = 0.0  #: seconds present before the current period


@dataclass(slots=True)
class Dropped:
    """Units of trials that a history with a limit has dropped."""

    units: int = 0  #: trained
    planned: int = 0  #: of trials that the search suggested
