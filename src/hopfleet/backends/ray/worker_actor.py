"""The actor around a worker on a node: it passes orders in and reports out.

The worker executes its orders in a thread of its own, one after another. Ray restarts nothing and repeats nothing here:
that is the controller's business.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle

from hopfleet.backends.ray import links
from hopfleet.backends.ray.links import Seat
from hopfleet.backends.ray.node_agent import LOGS, at_home
from hopfleet.backends.ray.versions import StorageLocation, WorkerVersions
from hopfleet.domain.messages import RunUnit, SaveVersion
from hopfleet.domain.placement import SINGLE, Placement, TeamShape
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import UsageError, describe
from hopfleet.frameworks.base import Framework
from hopfleet.frameworks.teams import MemberLost, Membership, Team
from hopfleet.store.versions.cluster import receive
from hopfleet.support import meeting
from hopfleet.support.files import make_folder, remove_file, remove_folder
from hopfleet.support.logging import messages
from hopfleet.worker.interruption import Interruption
from hopfleet.worker.logs import Turn, captured
from hopfleet.worker.process import why_unable
from hopfleet.worker.protocol import (
    Apart,
    Events,
    Execute,
    Fetched,
    GiveUp,
    NodeJoined,
    NodeLost,
    Order,
    Printed,
    Ready,
    Report,
    Stopped,
    Unable,
)
from hopfleet.worker.serving import carry_out, sign_of_life
from hopfleet.worker.spec import WorkerSpec, preload
from hopfleet.worker.surroundings import terminal
from hopfleet.worker.surroundings.isolation import Isolation
from hopfleet.worker.surroundings.table import settings_of
from hopfleet.worker.unit_runner import Broken
from hopfleet.worker.worker import Worker

FETCHES = 4
"""Maximum number of versions that a worker fetches at once."""

OUTPUT_BYTES = 1 << 20
"""Maximum bytes, the last ones, of a unit's output that are sent to the run folder."""

CHECK_SECONDS = 0.25
"""Seconds between checks whether the node that a version is fetched from is lost."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker must know to start."""

    name: str
    node: str
    agent: Any  #: of the worker's own node
    device: str
    location: StorageLocation
    path: tuple[str, ...]
    home: tuple[str, str]  #: of the driver, see ``node_agent.home``
    shape: TeamShape = SINGLE
    seat: Seat | None = None  #: in a team; None for a worker on one device


class WorkerActor:
    """One worker. All of its own work is done in one thread."""

    def __init__(self, setup: Setup, payload: bytes) -> None:
        self._setup = setup
        #: Where the other members of a team find the first one, or why they cannot.
        self._listener, self._refusal = _listen(setup.seat) if setup.seat and not setup.seat.rank else (None, None)
        self._payload = payload
        #: Orders, each with the version that is being fetched for it; done when the version is here or will not come.
        self._inbox: queue.SimpleQueue[tuple[Order, Future[None] | None]] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Report] = queue.SimpleQueue()
        #: Reports that can wait until there is another one.
        self._notes: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._fetching = ThreadPoolExecutor(FETCHES, "fetch")
        #: The agents of all nodes that are not lost.
        self._agents: dict[str, Any] = {}
        #: Messages that have overtaken another one, by number, and the number of the next message.
        self._early: dict[int, Sequence[Order]] = {}
        self._next = 0
        self._order = threading.Lock()
        #: Of the worker, once there is one.
        self._interruption: Interruption | None = None
        self._used: tuple[Framework, Placement] | None = None
        self._versions = WorkerVersions(setup.location, setup.node, setup.agent)
        threading.Thread(target=self._work, name="worker", daemon=True).start()

    def meeting(self) -> tuple[str, int]:
        """Return where the other members of the team find this one."""
        assert self._listener is not None
        place: tuple[str, int] = self._listener.getsockname()[:2]
        return place

    def tell(self, number: int, orders: Sequence[Order], drops: Sequence[VersionRef]) -> None:
        """Take orders, and drop versions on this node. Messages are numbered, since calls overtake each other.

        Versions on other nodes are fetched at once.
        """
        with self._order:
            self._early[number] = orders
            while self._next in self._early:
                for order in self._early.pop(self._next):
                    self._take(order)
                self._next += 1
        for ref in drops:
            self._versions.drop(ref)

    def exchange(
        self, number: int, orders: Sequence[Order], drops: Sequence[VersionRef], seconds: float
    ) -> list[Report]:
        """Do what ``tell`` does; return all reports, waiting up to ``seconds`` for the first."""
        self.tell(number, orders, drops)
        reports = []
        with contextlib.suppress(queue.Empty):
            reports = [self._outbox.get(timeout=seconds), *_rest(self._outbox)]
        return [*self._beat(), *_rest(self._notes), *reports]

    def _beat(self) -> list[Report]:
        return [] if self._used is None else [sign_of_life(*self._used)]

    def _take(self, order: Order) -> None:
        match order:
            case NodeJoined():
                self._agents[order.node] = order.agent
            case NodeLost():
                self._agents.pop(order.node, None)
            case GiveUp():
                if self._interruption is not None:
                    self._interruption.order(order.attempt)
            case Execute() if order.source is not None:
                self._inbox.put((order, self._prefetch(order, order.source)))
            case _:
                self._inbox.put((order, None))

    def _work(self) -> None:
        setup = self._setup
        sys.path.extend(entry for entry in setup.path if entry not in sys.path)
        logs = self._versions.local.shared_folder / LOGS / setup.name
        try:
            if self._refusal is not None:
                raise self._refusal
            setup.location.prepare(setup.node)
            make_folder(logs, private=True)
            spec: WorkerSpec = cloudpickle.loads(self._payload)
            _preload(spec)
            spec.task.framework.apply(spec.settings)
            spec.surroundings.adopt()
            terminal.do_without()
            valid = spec.valid and at_home(spec.valid, setup.home)
            spec = replace(spec, train=at_home(spec.train, setup.home), valid=valid)
            device = _device(setup.device, spec)
            team, placement = None, Placement((device,) * setup.shape.devices, setup.shape.strategy)
            if setup.seat is not None:
                team = self._join(setup.seat, spec, placement)
                if setup.seat.rank:
                    self._outbox.put(Ready(os.getpid(), device))
                    spec.task.framework.follow(team, Isolation(settings_of(spec.task), guest=False).around)
                    return
            worker = Worker(
                setup.name,
                replace(spec, logs=logs),
                placement,
                lambda events: self._outbox.put(Events(events)),
                capture=self._captured,
                guest=False,
                versions=self._versions,
                team=team,
            )
        except MemberLost as error:
            messages().warning("the team cannot be formed: %s", error)
            self._outbox.put(Apart(str(error)))
            self._exit()  # the driver starts all members anew
        except Exception as error:
            self._outbox.put(Unable(*why_unable(error)))
            return
        del self._payload
        self._interruption = worker.interruption
        self._used = spec.task.framework, Placement.on(device)
        self._outbox.put(Ready(os.getpid(), device))
        try:
            self._serve(worker)
            remove_folder(logs, ignore_errors=True)
            self._outbox.put(Stopped())
        except Exception as error:
            # Broken, or an unknown error: another process must go on.
            if not isinstance(error, Broken):
                traceback.print_exc()
            self._exit()

    def _exit(self) -> None:
        """End the process, once all reports are delivered."""
        while not self._outbox.empty():
            time.sleep(CHECK_SECONDS)
        time.sleep(CHECK_SECONDS)
        os._exit(1)

    def _join(self, seat: Seat, spec: WorkerSpec, placement: Placement) -> Team:
        """Form a team with the other members."""
        import ray

        if self._listener is not None:
            connections = links.welcome(self._listener, seat, placement.device)
        else:
            try:
                place = ray.get(seat.first.meeting.remote())
            except ray.exceptions.RayError as error:
                raise MemberLost("the first member is gone") from error
            connections = [links.call(place, seat, placement.device)]
        membership = Membership(seat.rank, placement, connections, seat.address, seat.apart)
        return spec.task.framework.join(membership)

    def _serve(self, worker: Worker) -> None:
        """Carry out orders until told to stop."""
        while True:
            order, fetch = self._inbox.get()
            if fetch is not None:
                fetch.result()
            if not carry_out(worker, order, self._outbox.put):
                return

    def _prefetch(self, order: Execute, node: str) -> Future[None]:
        """Begin to fetch the model of a command from another node, beside the current work."""
        ref = model_of(order.command)
        assert ref.attempt is not None
        return self._fetching.submit(self._fetch, node, self._agents.get(node), ref)

    def _fetch(self, node: str, agent: Any, ref: VersionRef) -> None:
        """Fetch a version from another node. If the version does not come, the worker reports it as lost.

        Ray keeps the bytes for the process that asked for them, so the worker asks itself.
        """
        import ray

        if agent is None:
            return
        content = agent.content.options(concurrency_group="files").remote(self._setup.location, ref)
        while not ray.wait([content], timeout=CHECK_SECONDS)[0]:
            if self._agents.get(node) is not agent:
                return
        try:
            receive(self._versions.local, ref, ray.get(content))
        except (ray.exceptions.RayError, OSError) as error:
            messages().warning("version %d of %s could not be fetched: %s", ref.version, ref.trial, describe(error))
        else:
            self._notes.put(Fetched(ref))

    @contextlib.contextmanager
    def _captured(self, *paths: Path) -> Iterator[Turn]:
        """Keep output in files on this node, and send it to the run folder when the work is over."""
        for path in paths:
            remove_file(path)
        try:
            with captured(*paths) as turn:
                yield turn
        finally:
            for path in paths:
                with contextlib.suppress(OSError):
                    printed = path.read_bytes()[-OUTPUT_BYTES:]
                    if printed:
                        self._outbox.put(Printed(path.name, printed))


def model_of(command: object) -> VersionRef:
    """Return the version that a command needs."""
    assert isinstance(command, RunUnit | SaveVersion)
    return command.model if isinstance(command, RunUnit) else command.ref._replace(attempt=command.saved)


def _rest(reports: queue.SimpleQueue[Report]) -> Iterator[Report]:
    """Yield all reports that are in a queue now."""
    with contextlib.suppress(queue.Empty):
        while True:
            yield reports.get_nowait()


def _listen(seat: Seat) -> tuple[socket.socket | None, UsageError | None]:
    """Return a listener for a team; if there is none, the reason, for the driver to hear as from any worker."""
    try:
        return meeting.listen(seat.address), None
    except UsageError as error:
        return None, error


def _preload(spec: WorkerSpec) -> None:
    """Import modules before the worker is ready, or its first unit would take seconds longer."""
    for module in preload(spec):
        # A module that fails here fails again, with a good message, when the task needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def _device(device: str, spec: WorkerSpec) -> str:
    """Return the device of a worker. Ray shows a worker only its own GPUs, but a worker without GPUs may see all."""
    import ray

    if device == "auto":
        device = spec.task.framework.devices()[0]
        if device == "cuda" and not ray.get_gpu_ids():
            device = "cpu"
    return "cuda:0" if device == "cuda" else device
