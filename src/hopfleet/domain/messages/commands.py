"""Commands: what the controller wants done by workers, backends and the store."""

from __future__ import annotations

from dataclasses import dataclass

from hopfleet.domain.placement import TeamShape
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef


@dataclass(frozen=True, slots=True)
class RunUnit:
    """Run a unit, starting from the model version ``model``."""

    worker: str
    unit: Unit
    attempt: int
    model: VersionRef
    last: bool = False  #: whether training on this partition closes the epoch
    digest: str = ""  #: expected SHA-256 of the model's file, if known
    flotilla: int = 0  #: units with the same number run together; 0 runs alone
    more: bool = False  #: whether another unit of the same flotilla follows
    lookahead: bool = False  #: whether the unit starts after the worker's current one; its model can be fetched now
    metric: float | None = None  #: the goal's metric at the end of the epoch before, for the first unit of an epoch

    @property
    def trial(self) -> str:
        return self.unit.trial


@dataclass(frozen=True, slots=True)
class SaveVersion:
    """Save the version that the worker holds in memory as ``ref``, so that others can load it."""

    worker: str
    ref: VersionRef
    durable: bool
    saved: int | None = None  #: an earlier save of the same version, for a worker that no longer holds it
    digest: str = ""
    waits: bool = False  #: whether a copy may wait in memory, so that newer versions can replace it
    replaces: tuple[int, ...] = ()  #: the trial's waiting saves that are no longer needed

    @property
    def trial(self) -> str:
        return self.ref.trial


@dataclass(frozen=True, slots=True)
class DropVersion:
    """Delete the file ``ref``: no unit will load it again."""

    ref: VersionRef

    @property
    def trial(self) -> str:
        return self.ref.trial


@dataclass(frozen=True, slots=True)
class CopyVersion:
    """Save the parent's version ``source`` as a clone's own version ``ref``.

    ``source.attempt`` is None if the parent no longer has that version.
    """

    source: VersionRef
    ref: VersionRef
    digest: str = ""

    @property
    def trial(self) -> str:
        return self.ref.trial


@dataclass(frozen=True, slots=True)
class StopUnit:
    """Give up this attempt: its worker drops the unit, is lost, or reports that the unit had already ended."""

    worker: str
    trial: str
    attempt: int
    overdue: bool = False  #: whether the unit takes far too long, so that its worker is ended at once


@dataclass(frozen=True, slots=True)
class PlacePartition:
    """Let the worker get a partition that it cannot read yet, from another worker or from the source."""

    worker: str
    partition: int
    valid: bool = False  #: whether it is a validation partition


@dataclass(frozen=True, slots=True)
class AddWorkers:
    """Start ``count`` more workers."""

    count: int


@dataclass(frozen=True, slots=True)
class FormTeams:
    """Start a worker of each shape on the devices of the workers that left for that."""

    shapes: tuple[TeamShape, ...]


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """Let the worker go once it has finished its saves."""

    worker: str


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run. ``complete`` is False when a person drained the run, or when there is a ``reason``."""

    complete: bool
    reason: str = ""


Command = (
    RunUnit
    | SaveVersion
    | DropVersion
    | CopyVersion
    | StopUnit
    | PlacePartition
    | AddWorkers
    | FormTeams
    | ReleaseWorker
    | Finish
)
