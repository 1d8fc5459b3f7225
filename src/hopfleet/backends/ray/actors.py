"""What runs on the nodes: one host per node, and the workers.

A host does for its node what no worker should wait for: it fetches partitions, hands versions to other nodes through
Ray's object store, sends durable ones to where they are kept, and looks after the workers' processes. Its beat tells
that the node lives.

A worker executes commands in its own thread, one after another; the actor around it only passes commands in and
events out. Ray restarts nothing and repeats nothing here: that is the controller's business.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import queue
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle

from hopfleet.backends.ray.versions import StorageLocation, WorkerVersions
from hopfleet.backends.vitals import Vitals, vitals
from hopfleet.data import Dataset
from hopfleet.data.folders import cache_folder
from hopfleet.domain.messages import Command, Event, RunUnit, SaveVersion
from hopfleet.domain.placement import Placement
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import HopfleetError, describe
from hopfleet.store.versions import cluster as transfers
from hopfleet.store.versions.cluster import Content
from hopfleet.store.versions.remote import Remote
from hopfleet.version import __version__
from hopfleet.worker.logs import Turn, captured
from hopfleet.worker.spec import WorkerSpec
from hopfleet.worker.unit_runner import Broken
from hopfleet.worker.worker import Worker

Told = tuple[str, Any, Any, Any]
"""A word to a worker: its kind, what it is about, the trial, and the node that has the version that it needs."""


Parcel = Future[None]
"""A version that is under way from another node; done when it is here, or will not come."""

PARCELS = 4
"""Versions that a worker fetches at once."""

LOGS = "logs"
LOG_BYTES = 1 << 20
"""At most so much of what a unit printed, its end, travels to the run folder."""

TAIL_LINES, TAIL_BYTES = 20, 4096
"""How much of the end of a trial's log is told with the loss of its worker."""

PATIENCE_SECONDS = 0.25
"""How often to look whether the node is gone from which a version is being fetched."""

PACKAGES = ("hopfleet", "ray", "numpy", "pyarrow", "safetensors", "cloudpickle", "torch")
"""What must be the same everywhere, if it is installed at all."""


@dataclass(frozen=True, slots=True)
class About:
    """A machine, as seen from a process on it."""

    host: str
    python: str
    packages: Mapping[str, str]
    home: tuple[str, str]  #: see ``home``
    cores: int


def about() -> About:
    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    packages["hopfleet"] = __version__
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return About(socket.gethostname(), platform.python_version(), packages, home(), cores)


def home() -> tuple[str, str]:
    """The machine, and where it keeps partitions that it fetched. Processes with the same home share files."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = socket.gethostname()
    return boot, str(cache_folder().absolute())


def skew(mine: About, theirs: About) -> list[str]:
    """What differs on another machine and must not."""
    found = []
    if theirs.python != mine.python:
        found.append(f"Python {theirs.python} instead of {mine.python}")
    for name, version in mine.packages.items():
        other = theirs.packages.get(name)
        if other != version:
            found.append(f"{name} {other or 'is missing'} instead of {version}")
    return found


class Host:
    """One per node."""

    def __init__(self, node: str) -> None:
        self._node = node

    def about(self) -> About:
        return about()

    def beat(self, seconds: float) -> None:
        """Return after a while: a node that answers lives."""
        time.sleep(seconds)

    def problems(self, mine: About, datasets: Sequence[Dataset], location: StorageLocation, token: str) -> list[str]:
        """What would go wrong on this node, in words. The token lies in the storage, as a file of that name."""
        found = skew(mine, about())
        for dataset in datasets:
            with _noted(found):
                dataset.probe()
        with _noted(found):
            self._check_storage(location, token)
        return found

    def _check_storage(self, location: StorageLocation, token: str) -> None:
        """See what the driver wrote, and write what it can see."""
        answer = f"{token}-{self._node[:12]}"
        try:
            if location.url:
                remote = Remote(location.url)
                remote.read_text(token)
                remote.write_text(answer, token)
            else:
                (location.checkpoints / token).read_text()
                (location.checkpoints / answer).write_text(token)
        except Exception as error:
            where = location.name
            raise HopfleetError(f"storage {where} is not shared with it ({describe(error)})") from error

    def fetch(self, dataset: Dataset, partitions: Sequence[int], driver: tuple[str, str]) -> None:
        """Have partitions on this node's disk, whole and as they were made."""
        here = at_home(dataset, driver)
        for partition in partitions:
            here.fetch(partition)

    def content(self, location: StorageLocation, ref: VersionRef) -> Content:
        """Return the bytes of a version, for another node."""
        return transfers.content(location.local(self._node), ref)

    def send(self, location: StorageLocation, ref: VersionRef) -> None:
        """Send a durable version from this node's disk to the storage."""
        location.versions(self._node).send(ref)

    def drop(self, location: StorageLocation, refs: Sequence[VersionRef]) -> None:
        versions = location.local(self._node)
        for ref in refs:
            versions.drop(ref)

    def forget(self, location: StorageLocation, trial: str) -> None:
        location.local(self._node).forget(trial)

    def release(self, location: StorageLocation) -> None:
        location.versions(self._node).release()

    def vitals(self, pid: int) -> Vitals | None:
        return vitals(pid)

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def last_words(self, location: StorageLocation, worker: str, trial: str) -> str:
        """The end of what a trial's code printed on a worker that is lost."""
        try:
            with (location.local(self._node).shared_folder / LOGS / worker / f"{trial}.log").open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                return "\n".join(log.read().decode(errors="replace").splitlines()[-TAIL_LINES:])
        except OSError:
            return ""


def at_home(dataset: Dataset, driver: tuple[str, str]) -> Dataset:
    """A data set as a node reads it: where it lies if that is on the same machine as the driver, else from copies."""
    return dataset if home() == driver else dataset.copied()


@contextlib.contextmanager
def _noted(found: list[str]) -> Iterator[None]:
    try:
        yield
    except (HopfleetError, OSError) as error:
        found.append(str(error))


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker is told first."""

    name: str
    node: str
    host: Any
    device: str
    location: StorageLocation
    path: tuple[str, ...]
    #: The home of the driver.
    home: tuple[str, str]


class WorkerActor:
    """One worker. All of its own work is done in one thread."""

    def __init__(self, setup: Setup, payload: bytes) -> None:
        self._setup = setup
        self._payload = payload
        self._inbox: queue.SimpleQueue[tuple[str, Any, Any, Parcel | None]] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        #: Messages without urgency: they are sent along with the next one.
        self._notes: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._fetching = ThreadPoolExecutor(PARCELS, "fetch")
        #: The hosts of nodes. Of those that are not there, what is being fetched will not come.
        self._hosts: dict[str, Any] = {}
        #: Letters that have overtaken another, by number; the number of the one that comes next.
        self._early: dict[int, Sequence[Told]] = {}
        self._next = 0
        self._order = threading.Lock()
        self._versions = WorkerVersions(setup.location, setup.node, setup.host)
        threading.Thread(target=self._work, name="worker", daemon=True).start()

    def tell(self, number: int, words: Sequence[Told], drops: Sequence[VersionRef]) -> None:
        """Take commands, and drop unneeded versions of this node. Letters are numbered: calls overtake each other.

        What lies on other nodes is ordered at once.
        """
        with self._order:
            self._early[number] = words
            while self._next in self._early:
                for word in self._early.pop(self._next):
                    if word[0] == "Host":
                        self._hosts[word[1]] = word[2]
                    elif word[0] == "Gone":
                        self._hosts.pop(word[1], None)
                    else:
                        kind, body, trial, node = word
                        self._inbox.put((kind, body, trial, self._ordered(body, node) if node else None))
                self._next += 1
        for ref in drops:
            self._versions.drop(ref)

    def exchange(
        self, number: int, words: Sequence[Told], drops: Sequence[VersionRef], seconds: float
    ) -> list[tuple[str, Any]]:
        """The same, and tell what there is to tell, waiting up to ``seconds`` for the first."""
        self.tell(number, words, drops)
        told = []
        with contextlib.suppress(queue.Empty):
            told = [self._outbox.get(timeout=seconds), *_rest(self._outbox)]
        return [*_rest(self._notes), *told]

    def _say(self, kind: str, body: Any = None) -> None:
        self._outbox.put((kind, body))

    def _emit(self, events: Sequence[Event]) -> None:
        self._say("Events", events)

    def _work(self) -> None:
        setup = self._setup
        sys.path.extend(entry for entry in setup.path if entry not in sys.path)
        versions = self._versions
        logs = versions.local.shared_folder / LOGS / setup.name
        try:
            setup.location.prepare(setup.node)
            logs.mkdir(parents=True, exist_ok=True, mode=0o700)
            spec: WorkerSpec = cloudpickle.loads(self._payload)
            _preload(spec)
            valid = spec.valid and at_home(spec.valid, setup.home)
            spec = replace(spec, train=at_home(spec.train, setup.home), valid=valid)
            device = _device(setup.device, spec)
            worker = Worker(
                setup.name,
                replace(spec, logs=logs),
                Placement.on(device),
                self._emit,
                capture=self._captured,
                guest=False,
                versions=versions,
            )
        except Exception as error:
            self._say("Unable", describe(error))
            return
        del self._payload
        self._say("Ready", (os.getpid(), device))
        try:
            self._serve(worker)
            shutil.rmtree(logs, ignore_errors=True)
            self._say("Stopped")
        except Exception as error:
            # Broken, or an unknown failure: another process must continue, once all messages are delivered.
            if not isinstance(error, Broken):
                traceback.print_exc()
            while not self._outbox.empty():
                time.sleep(PATIENCE_SECONDS)
            time.sleep(PATIENCE_SECONDS)
            os._exit(1)

    def _serve(self, worker: Worker) -> None:
        """Execute commands until told to stop."""
        while True:
            kind, body, trial, parcel = self._inbox.get()
            if kind == "Stop":
                worker.close()
                return
            if kind == "Probe":
                self._say("Profile", worker.probe(trial, *body))
            else:
                if parcel is not None:
                    parcel.result()
                worker.execute(body, trial)

    def _ordered(self, command: Command, node: str) -> Parcel:
        """Begin to fetch a version from another node, whatever else is under way."""
        assert isinstance(command, RunUnit | SaveVersion)
        ref = command.model if isinstance(command, RunUnit) else command.ref._replace(attempt=command.saved)
        assert ref.attempt is not None
        return self._fetching.submit(self._fetch, node, self._hosts.get(node), ref)

    def _fetch(self, node: str, host: Any, ref: VersionRef) -> None:
        """Have a version from another node. If it does not come, the worker will not find it, and says so.

        A version that a worker fetches for itself belongs to it alone.
        """
        import ray

        if host is None:
            return
        content = host.content.options(concurrency_group="files").remote(self._setup.location, ref)
        while not ray.wait([content], timeout=PATIENCE_SECONDS)[0]:
            if self._hosts.get(node) is not host:
                return
        try:
            transfers.receive(self._versions.local, ref, ray.get(content))
        except (ray.exceptions.RayError, OSError) as error:
            sys.stderr.write(f"version {ref.version} of {ref.trial} could not be fetched: {describe(error)}\n")
        else:
            self._notes.put(("Fetched", ref))

    @contextlib.contextmanager
    def _captured(self, *paths: Path) -> Iterator[Turn]:
        """Keep output in files on this node, and send it to the run folder when the work is over."""
        for path in paths:
            path.unlink(missing_ok=True)
        try:
            with captured(*paths) as turn:
                yield turn
        finally:
            for path in paths:
                with contextlib.suppress(OSError):
                    printed = path.read_bytes()[-LOG_BYTES:]
                    if printed:
                        self._say("Printed", (path.name, printed))


def _rest(box: queue.SimpleQueue[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """All that is in a box now."""
    with contextlib.suppress(queue.Empty):
        while True:
            yield box.get_nowait()


def _preload(spec: WorkerSpec) -> None:
    """Import what a worker needs before it is ready, or its first unit would take seconds longer."""
    for module in spec.task.preload:
        # A module that fails here fails again, with a good message, when the task needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def _device(device: str, spec: WorkerSpec) -> str:
    """Ray shows a worker its own GPUs only. One that was given none may see them all, and must leave them to others."""
    import ray

    if device == "auto":
        device = spec.task.framework.devices()[0]
        if device == "cuda" and not ray.get_gpu_ids():
            device = "cpu"
    return "cuda:0" if device == "cuda" else device
