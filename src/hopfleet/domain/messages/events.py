"""Events: what happened in the world, as workers, backends and people report it to the controller.

Every unit, save and copy has a number, its ``attempt``. A report whose number is not current does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hopfleet.domain.placement import CPU, Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.step_values import StepValues
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef

RELEASED = "no longer wanted"
"""The reason in ``WorkerLost`` for a worker that was released."""


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A controller took charge, for the first time or to resume. No worker of an earlier run is left."""

    hopfleet: str  #: the version of the library
    workers: int = 0  #: workers that are being started
    requests: int = 0  #: requests that waited for this run and come next
    definition: Mapping[str, Any] = field(default_factory=dict)  #: of the experiment; empty in old journals


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker is ready. ``partitions`` are the training partitions that it can read; None means all."""

    worker: str
    placement: Placement = CPU
    partitions: tuple[int, ...] | None = None
    valid: tuple[int, ...] | None = None  #: the validation partitions that it can read; None means all


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone, with its memory and the unit it ran. ``log`` is the end of that unit's output, if known."""

    worker: str
    reason: str
    log: str = ""
    replaced: bool = False  #: a worker that can read the same partitions is about to join in its place


@dataclass(frozen=True, slots=True)
class WorkerUnavailable:
    """A worker that was about to join will not: its node is gone. Another may join in its place, somewhere else."""

    reason: str


@dataclass(frozen=True, slots=True)
class PartitionPlaced:
    """The worker can now read this partition too."""

    worker: str
    partition: int
    valid: bool = False  #: whether it is a validation partition


@dataclass(frozen=True, slots=True)
class PartitionUnavailable:
    """The worker could not get this partition."""

    worker: str
    partition: int
    reason: str
    valid: bool = False  #: whether it is a validation partition


@dataclass(frozen=True, slots=True)
class UnitFinished:
    """A unit ran to its end; the worker's memory holds model version ``version``. Times are seconds since the epoch."""

    worker: str
    unit: Unit
    attempt: int
    version: int  #: the version that training made, or that was evaluated (0 for evaluations before format 4)
    started: float
    ended: float
    hopped: bool = False  #: the model was loaded from a version that another worker saved
    sums: Mapping[str, RowSum] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  #: configuration keys that the task has not read so far
    share: float = 1.0  #: this trial's part of the time from ``started`` to ``ended``, which a flotilla divides
    absent: tuple[str, ...] = ()  #: keys that the task asked for, with a default, and the configuration does not have
    placement: Placement | None = None  #: the devices and the strategy; None for the whole model on one device
    whole: bool = False  #: an evaluation of all validation partitions, because a metric needs their rows at once
    logged: StepValues | None = None  #: values of single steps; None if the unit logged nothing

    @property
    def trial(self) -> str:
        return self.unit.trial


@dataclass(frozen=True, slots=True)
class UnitFailed:
    """The user's code raised in a unit. The worker lives on."""

    worker: str
    unit: Unit
    attempt: int
    started: float
    ended: float
    error: str
    traceback: str = ""
    place: str = ""  #: the innermost line of the user's code, as in ``path/task.py:12``; empty if there is none

    @property
    def trial(self) -> str:
        return self.unit.trial


@dataclass(frozen=True, slots=True)
class UnitStopped:
    """A unit was given up before its end, as a person asked. The worker lives on, without the model of the trial."""

    worker: str
    unit: Unit
    attempt: int
    started: float
    ended: float

    @property
    def trial(self) -> str:
        return self.unit.trial


@dataclass(frozen=True, slots=True)
class UnitOverdue:
    """A unit has run far longer than expected. ``expected`` is 0 where there was no estimate."""

    worker: str
    attempt: int
    seconds: float
    expected: float
    limit: float = 0.0  #: the seconds that were allowed; 0 in journals that do not tell
    derived: bool = False  #: whether the limit was derived from the estimate


@dataclass(frozen=True, slots=True)
class VersionSaved:
    """A model version can be loaded by every worker; a durable one also survives the death of the machine.

    A durable save to a storage behind a URL ends with two of these: the version is on its node, then in the storage.
    """

    ref: VersionRef
    durable: bool
    digest: str  #: SHA-256 of the file; empty for a file in shared memory
    size: int

    @property
    def trial(self) -> str:
        return self.ref.trial


@dataclass(frozen=True, slots=True)
class VersionLost:
    """The file ``ref`` is missing or damaged, so ``worker`` could not do ``attempt``: a unit, a save or a copy.

    Without an attempt, only the file is gone. ``ref.attempt`` is None if there was no file to load.
    """

    ref: VersionRef
    reason: str
    worker: str | None = None
    attempt: int = 0
    intact: bool = False  #: whether the file is as it was saved, and still no model could be made from it

    @property
    def trial(self) -> str:
        return self.ref.trial


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """The trial's state cannot be saved, e.g. for its kind, or because it exceeds a limit of the process."""

    ref: VersionRef
    error: str
    traceback: str = ""

    @property
    def trial(self) -> str:
        return self.ref.trial


@dataclass(frozen=True, slots=True)
class SaveDelayed:
    """The disk or the storage refuses a version for now. The worker keeps the version and retries until it is saved."""

    worker: str  #: empty for a copy, which the process of the controller makes
    ref: VersionRef
    error: str  #: the file, the problem and the remedy
    on_node: bool = False  #: whether the version is on the disk of its node, where other workers can get it

    @property
    def trial(self) -> str:
        return self.ref.trial


@dataclass(frozen=True, slots=True)
class RecordLogged:
    """The user's code has logged a record at WARNING or above, for the first time on this worker."""

    worker: str
    trial: str  #: or "probe", while a configuration is tried before the run
    text: str


@dataclass(frozen=True, slots=True)
class RequestMade:
    """A person's request by name, with its arguments. ``hopfleet.controller.requests`` knows all of them."""

    request: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    who: str = ""
    number: int = 0  #: its number in the queue; 0 if the run's own process made it
    problem: str = ""  #: why the arguments, which are left out then, are unfit for a journal


Event = (
    RunStarted
    | WorkerJoined
    | WorkerLost
    | WorkerUnavailable
    | PartitionPlaced
    | PartitionUnavailable
    | UnitFinished
    | UnitFailed
    | UnitStopped
    | UnitOverdue
    | VersionSaved
    | VersionLost
    | SaveFailed
    | SaveDelayed
    | RecordLogged
    | RequestMade
)
