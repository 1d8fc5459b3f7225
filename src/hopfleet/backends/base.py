"""The contract of every backend.

A backend starts workers, carries commands to them and brings their events back. It decides nothing. The loop calls
it from one thread: ``start`` once, then ``send`` and ``receive`` in any order, then ``close`` once, also after an
error. Each worker executes its commands in the order sent. A worker that dies is reported as WorkerLost, exactly
once. The backend decides whether to replace it, says so in the same event, and reports the new worker as WorkerJoined.

``add``, ``retire``, ``release`` and ``stop`` change the set of workers, ``place`` changes which partitions a worker can
read; their outcomes are reported as events as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from hopfleet.domain.messages import Command, Event
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.domain.trial import Trial
from hopfleet.planner.dike.problem import Node
from hopfleet.store.base import VersionStore
from hopfleet.worker.spec import Profile, WorkerSpec


class Backend(Protocol):
    name: str

    def versions(self, checkpoints: Path) -> VersionStore:
        """Return the saved versions of a run, for the process that runs it. Called before ``start``."""

    def start(self, spec: WorkerSpec, workers: int) -> None:
        """Begin to start workers. Each is reported as WorkerJoined."""

    def probe(self, trial: Trial, batches: int = 0) -> Profile:
        """Build a trial, evaluate one batch, and time ``batches`` batches of training. Blocks; keeps nothing."""

    def send(self, command: Command, trial: Trial) -> None:
        """Send a command to its worker and return at once. ``trial`` is the trial of the command."""

    def add(self, count: int) -> None:
        """Begin to start ``count`` more workers."""

    def retire(self, worker: str) -> None:
        """Do not replace a worker that will be released, should it be lost before that."""

    def release(self, worker: str) -> None:
        """Let an idle worker go after its pending saves. It is reported as WorkerLost."""

    def stop(self, worker: str) -> None:
        """Abort the work of a worker if possible, which loses and replaces the worker. Otherwise the work just ends."""

    def give_up(self, worker: str, attempt: int) -> None:
        """Have a worker drop one unit and go on with all else; reported as UnitStopped, unless the unit ends before.

        A worker that does not react in time is lost, as with ``stop``.
        """

    def place(self, worker: str, partition: int, *, valid: bool = False) -> None:
        """Let a worker fetch a training partition, or with ``valid`` a validation partition.

        Reported as PartitionPlaced or PartitionUnavailable. Validation partitions are placed only where workers have
        joined that cannot read all of them.
        """

    def receive(self, timeout: float) -> list[Event]:
        """Return the events so far, waiting up to ``timeout`` seconds for the first.

        A worker's reports of units are in the order of the units; the report of a save may overtake them.
        """

    def now(self) -> float:
        """Return the seconds since the epoch, or virtual time."""

    def close(self, *, kill: bool = False) -> None:
        """Stop all workers; with ``kill`` without waiting for anything."""


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """What a backend knows of one of its workers."""

    worker: str
    host: str
    pid: int
    memory: int  #: bytes of its processes in memory, 0 if unknown
    device_memory: int  #: bytes of its processes on devices, 0 if unknown
    heard: float  #: when the worker was last heard from, in seconds since the epoch
    processor: float = 0.0  #: seconds of processors that its processes have used so far
    clock: float = 0.0  #: when that was, by a clock of its own
    device_load: float | None = None  #: the busy share of its devices, None if unknown


@runtime_checkable
class Supervisor(Protocol):
    """A backend that knows how its workers are."""

    def health(self) -> list[WorkerHealth]:
        """Return what is known of the workers that are ready."""


class Offer(NamedTuple):
    """The workers that fit on a cluster, and why."""

    workers: int
    why: str
    #: How many workers on one device fit on each node, by the node's name; empty if that is unknown.
    nodes: Mapping[str, int] = MappingProxyType({})
    #: Nodes that can read each partition; 0 for all.
    replicas: int = 0
    #: The sort of each node, by its name. Nodes of one sort are equally fast.
    sorts: Mapping[str, str] = MappingProxyType({})


@runtime_checkable
class Cluster(Protocol):
    """A backend on several machines. It can be started again after it was closed, and chooses devices itself."""

    def offer(
        self, device: str, threads: int, teams: Sequence[TeamShape] = (SINGLE,), *, spanning: Collection[str] = ()
    ) -> Offer:
        """Return how many workers fit, and why.

        Workers have these ``teams`` in turn; members of a team may be on several machines if its strategy is among
        those ``spanning`` them. Only called with teams for frameworks that can train on some.
        """

    def trouble(self) -> str:
        """Return what the run waits for, e.g. a network that is down; empty if for nothing."""


@runtime_checkable
class FormsTeams(Protocol):
    """A backend whose devices can join as other teams during a run."""

    #: Seconds until the processes of a new team have met, about; building the model comes on top.
    form_seconds: float

    def teams_blocker(self, device: str, threads: int) -> str:
        """Return why devices of this kind cannot join as teams here; empty if they can."""

    def form_teams(self, shapes: Sequence[TeamShape]) -> None:
        """Begin to start a worker of each shape on devices of workers that were released. Reported as WorkerJoined."""


@runtime_checkable
class WarmsUp(Protocol):
    """A backend that can get ready for workers before it knows all that they need."""

    def warmed_up(self, modules: Sequence[str], threads: int, logs: Path) -> AbstractContextManager[None]:
        """Begin to load the modules of a task before ``start``; the context ends what is left of that."""


@runtime_checkable
class KeepsTo(Protocol):
    """A backend that can train on one team as planned."""

    def keep_to(self, members: Sequence[str], *, cpus: float | None, memory: float) -> None:
        """Have one worker, whose members are on the named nodes in this order.

        Each takes ``cpus`` (None: as many as it has threads) and ``memory`` bytes of its node. Called before ``start``.
        If a named node is missing then, or is lost later, members may be anywhere.
        """


@runtime_checkable
class Measurable(KeepsTo, Protocol):
    """A backend that can tell what its machines have, and how fast bytes travel between them."""

    def measure_links(self, size: int) -> tuple[tuple[Node, ...], tuple[tuple[float, ...], ...]]:
        """Return the nodes, with what is free on them, and the seconds of each byte between them.

        About ``size`` bytes are sent over each link.
        """
