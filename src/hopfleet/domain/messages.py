"""The messages of an experiment, and their form in the journal.

Three kinds, all frozen:

* *events* tell the controller what happened in the world;
* *decisions* are facts that the controller settled by itself; nobody has to act on them;
* *commands* are what the controller wants done.

The state of an experiment is a fold over all three in the order of the journal, so a journal can be replayed
without deciding anything anew. ``encode`` and ``decode`` turn a message into JSON values and back.

Every unit, evaluation, save and copy that is asked for has a number of its own, its ``attempt``; a report that bears
another one than is current does not count. A saved version lies in a file that bears the number of its save, so
nobody who comes late can write over it. Saves of journals before format 3 have the number 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Config, TrialState
from hopfleet.domain.unit import Work

# ----------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """``partitions`` are the training partitions that it can read; None means all of them."""

    worker: str
    device: str = "cpu"
    partitions: tuple[int, ...] | None = None


RELEASED = "no longer wanted"
"""The reason of a worker that is lost because it was released."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """Its memory, and what it was doing, are gone. ``log`` is the end of what that had printed, if anybody knows.

    ``replaced``: another one that can read the same is about to join in its place.
    """

    worker: str
    reason: str
    log: str = ""
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class UnitOverdue:
    """What a worker does has taken far longer than it should. ``expected`` is 0 where nobody had estimated it."""

    worker: str
    attempt: int
    seconds: float
    expected: float


@dataclass(frozen=True, slots=True)
class PartitionPlaced:
    """The worker can now read this training partition too."""

    worker: str
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionUnavailable:
    """The worker could not get hold of this training partition."""

    worker: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True)
class UnitFinished:
    """A unit ran to its end; the worker's memory holds model version ``version``. Times are seconds since the epoch."""

    worker: str
    trial: str
    epoch: int
    partition: int
    attempt: int
    version: int
    started: float
    ended: float
    hopped: bool = False  #: the model had to be loaded from another worker's version
    sums: Mapping[str, RowSum] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  #: config keys that the task has not read so far
    share: float = 1.0  #: of the time between ``started`` and ``ended``; a flotilla's members share it


@dataclass(frozen=True, slots=True)
class UnitFailed:
    """The user's code raised in a unit or an evaluation. The worker lives on."""

    worker: str
    trial: str
    epoch: int
    partition: int
    attempt: int
    work: Work
    started: float
    ended: float
    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One validation partition was evaluated with the model as it was at the end of ``epoch``."""

    worker: str
    trial: str
    epoch: int
    partition: int
    attempt: int
    started: float
    ended: float
    sums: Mapping[str, RowSum] = field(default_factory=dict)
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class VersionSaved:
    """A model version can now be loaded by anybody; a durable one survives the machine's death too."""

    trial: str
    version: int
    durable: bool
    digest: str  #: SHA-256 of its file; empty for one that lies in memory
    size: int
    attempt: int = 0  #: of the save or copy; the file bears it


@dataclass(frozen=True, slots=True)
class VersionLost:
    """A version turned out to be missing or damaged; ``worker`` does not have it, and could not do what it wanted.

    Without an attempt it is only the file of save ``saved`` that is gone.
    """

    trial: str
    version: int
    reason: str
    worker: str | None = None
    attempt: int = 0  #: what could not be done: a unit, an evaluation, a save or a copy
    saved: int | None = 0  #: the save whose file cannot be loaded; None if there was none to be loaded


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """A trial's state is of a kind that cannot be saved."""

    trial: str
    version: int
    error: str
    traceback: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class SaveDelayed:
    """The disk does not take a version for now. Its worker keeps the model, and tries until it is saved."""

    worker: str
    trial: str
    version: int
    attempt: int
    error: str  #: which file, what happened, and what to do about it


@dataclass(frozen=True, slots=True)
class RequestMade:
    """A person's wish, by name, with what it needs. ``hopfleet.controller.requests`` says what there is."""

    request: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    who: str = ""
    number: int = 0  #: under which it was put into the queue; 0 if it came from the run's own process


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A controller took charge, for the first time or to resume; nothing of earlier workers is left."""

    hopfleet: str
    workers: int = 0  #: that are being started
    requests: int = 0  #: that have waited for it, and come next


# -------------------------------------------------------------------------------------------- decisions


@dataclass(frozen=True, slots=True)
class TrialAdded:
    """A trial that will train until ``epochs``. A clone that is warm starts with the model that its parent had after
    ``visits``; one that is cold has a parent and no visits."""

    trial: str
    number: int
    config: Config
    seed: int
    epochs: int
    origin: str = "search"  #: or "point", to try first; "clone"; "person"
    parent: str = ""
    visits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialRolledBack:
    """The newest versions were lost; units after ``version`` will run again in the same order."""

    trial: str
    version: int


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """All partitions were visited and all validation partitions evaluated."""

    trial: str
    epoch: int
    version: int
    metrics: Mapping[str, float]
    best: bool  #: the best epoch of this trial so far


@dataclass(frozen=True, slots=True)
class TrialStopped:
    """It trains no further; it ends when nothing of it runs and its model is saved."""

    trial: str
    reason: str
    delete: bool = False  #: then it and its models are to go, and nothing is saved


@dataclass(frozen=True, slots=True)
class TrialPaused:
    """It has trained as far as its search wants for now, and its model is saved."""

    trial: str


@dataclass(frozen=True, slots=True)
class TrialResumed:
    """It may train until ``epochs``; if it was paused, stopped or completed, it goes on."""

    trial: str
    epochs: int


@dataclass(frozen=True, slots=True)
class TrialEnded:
    trial: str
    state: TrialState
    reason: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class TrialDeleted:
    """It and its models are gone; only the journal remembers it."""

    trial: str


@dataclass(frozen=True, slots=True)
class TrialPrioritised:
    """Among trials that could train, those of a higher level come first. The level of all others is 0."""

    trial: str
    level: int


@dataclass(frozen=True, slots=True)
class SearchExtended:
    """More trials, more epochs or other dimensions, as a person wished."""

    trials: int = 0
    epochs: int = 0
    space: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunHeld:
    """While ``held``, running units end and no other starts."""

    held: bool


@dataclass(frozen=True, slots=True)
class WorkerRetired:
    """It gets nothing more to do, and may go when it is done."""

    worker: str


@dataclass(frozen=True, slots=True)
class PartitionsMissing:
    """These training partitions are on no worker, and nobody can get them; those who need them wait. None: all are
    there again."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """What came of a wish: what it did, or why it was refused."""

    number: int
    granted: bool
    text: str


# --------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class RunUnit:
    """Train from model version ``version`` over one partition. ``last`` closes the epoch."""

    worker: str
    trial: str
    epoch: int
    partition: int
    attempt: int
    version: int
    last: bool
    saved: int | None = None  #: the save whose file is that version, if it is saved
    digest: str = ""  #: what that file must have, if it is known
    flotilla: int = 0  #: units of the same number run together; 0 runs alone
    more: bool = False  #: another one of the same flotilla follows
    ahead: bool = False  #: it comes after what the worker does now; until then the model can be fetched


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate model version ``version`` on one validation partition."""

    worker: str
    trial: str
    epoch: int
    partition: int
    attempt: int
    version: int
    saved: int | None = None
    digest: str = ""
    flotilla: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class SaveVersion:
    """Make the version that the worker holds in memory loadable by others."""

    worker: str
    trial: str
    version: int
    durable: bool
    attempt: int = 0
    saved: int | None = None  #: an earlier save of the same version, for a worker that does not hold it any more
    digest: str = ""


@dataclass(frozen=True, slots=True)
class DropVersion:
    """Nobody will ask for the file of this save again."""

    trial: str
    version: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class CopyVersion:
    """Give ``trial`` a saved version of ``parent`` as its own."""

    parent: str
    version: int
    trial: str
    attempt: int = 0
    saved: int | None = 0  #: the parent's save; None if it does not have that version any more
    digest: str = ""


@dataclass(frozen=True, slots=True)
class StopUnit:
    """Do not finish this attempt; its worker is lost or says that it was too late."""

    worker: str
    trial: str
    attempt: int


@dataclass(frozen=True, slots=True)
class PlacePartition:
    """Let the worker get a training partition that it cannot read yet, from whoever has it or from its source."""

    worker: str
    partition: int


@dataclass(frozen=True, slots=True)
class AddWorkers:
    count: int


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """It may go, when it has saved what it was told to save."""

    worker: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do; ``complete`` is False when a person drained the run, or when there is a ``reason``."""

    complete: bool
    reason: str = ""


Event = (
    WorkerJoined
    | WorkerLost
    | UnitOverdue
    | PartitionPlaced
    | PartitionUnavailable
    | UnitFinished
    | UnitFailed
    | Evaluated
    | VersionSaved
    | VersionLost
    | SaveFailed
    | SaveDelayed
    | RequestMade
    | RunStarted
)
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
    | PartitionsMissing
    | RequestAnswered
)
Command = (
    RunUnit
    | Evaluate
    | SaveVersion
    | DropVersion
    | CopyVersion
    | StopUnit
    | PlacePartition
    | AddWorkers
    | ReleaseWorker
    | Finish
)
Message = Event | Decision | Command

_OLD_NAMES = {"RequestMade": "OperatorAsked", "RequestAnswered": "WishAnswered"}

KINDS: Mapping[str, type[Any]] = {
    _OLD_NAMES.get(kind.__name__, kind.__name__): kind
    for kind in (
        *(WorkerJoined, WorkerLost, UnitFinished, UnitFailed, Evaluated, VersionSaved, VersionLost),
        *(SaveFailed, SaveDelayed, RequestMade, RunStarted, UnitOverdue, PartitionPlaced, PartitionUnavailable),
        *(TrialAdded, TrialRolledBack, EpochEnded, TrialStopped, TrialPaused, TrialResumed, TrialEnded),
        *(TrialDeleted, TrialPrioritised, SearchExtended, RunHeld, WorkerRetired, RequestAnswered),
        *(PartitionsMissing, RunUnit, Evaluate, SaveVersion, DropVersion, CopyVersion, StopUnit, PlacePartition),
        *(AddWorkers, ReleaseWorker, Finish),
    )
}


def _encode_sums(sums: Mapping[str, RowSum]) -> dict[str, list[object]]:
    return {name: value.encode() for name, value in sums.items()}


def _decode_sums(sums: Mapping[str, list[object]]) -> dict[str, RowSum]:
    return {name: RowSum.decode(value) for name, value in sums.items()}


#: Fields whose values are not JSON themselves: name -> (encode, decode).
_CODECS: Mapping[str, tuple[Any, Any]] = {
    "sums": (_encode_sums, _decode_sums),
    "partitions": (lambda value: value and list(value), lambda value: value if value is None else tuple(value)),
    "unused": (list, tuple),
    "visits": (list, tuple),
    "state": (lambda state: state.value, TrialState),
    "work": (lambda work: work.value, Work),
}

_FIELDS: Mapping[str, tuple[str, ...]] = {name: tuple(f.name for f in fields(kind)) for name, kind in KINDS.items()}
#: Of each kind, the fields that are coded.
_CODED = {kind: tuple(name for name in names if name in _CODECS) for kind, names in _FIELDS.items()}


_WIRE = {"request": "wish", "requests": "wishes"}
_PYTHON = {wire: name for name, wire in _WIRE.items()}
_NAMES = {kind: name for name, kind in KINDS.items()}


def encode(message: Message) -> tuple[str, dict[str, Any]]:
    """The kind of a message and its fields as JSON values."""
    kind = _NAMES[type(message)]
    body = {_WIRE.get(name, name): getattr(message, name) for name in _FIELDS[kind]}
    for name in _CODED[kind]:
        body[name] = _CODECS[name][0](body[name])
    return kind, body


def decode(kind: str, body: Mapping[str, Any]) -> Message:
    """The inverse of ``encode``. Raises KeyError for an unknown kind."""
    known = KINDS[kind]
    named = {_PYTHON.get(name, name): value for name, value in body.items()}
    coded = {name: _CODECS[name][1](body[name]) for name in _CODED[kind] if name in body}
    message: Message = known(**{**named, **coded})
    return message
