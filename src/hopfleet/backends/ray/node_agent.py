"""The agent of a node: an actor that does for its node what no worker should wait for.

A node agent fetches partitions, hands versions to other nodes through Ray's object store, uploads durable versions, and
looks after the processes of workers. Its answers show that the node is alive.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopfleet.backends.ray.versions import StorageLocation
from hopfleet.backends.supervision import last_lines
from hopfleet.backends.vitals import Vitals, vitals
from hopfleet.data import Dataset
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import HopfleetError, describe
from hopfleet.store.versions import cluster as transfers
from hopfleet.store.versions.cluster import Content
from hopfleet.store.versions.remote import Remote
from hopfleet.support.cache import cache_folder
from hopfleet.support.files import write_text
from hopfleet.version import __version__

LOGS = "logs"
"""Folder in shared memory with the output of trials, by worker."""

PACKAGES = ("hopfleet", "ray", "numpy", "pyarrow", "safetensors", "cloudpickle", "torch")
"""Packages whose versions must be the same on all nodes, if they are installed."""


@dataclass(frozen=True, slots=True)
class About:
    """A machine, as seen from a process on it."""

    host: str
    python: str
    packages: Mapping[str, str]
    home: tuple[str, str]  #: see ``home``
    cores: int


def about() -> About:
    """Return a description of this machine."""
    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    packages["hopfleet"] = f"{__version__} with code {code_digest()}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return About(socket.gethostname(), platform.python_version(), packages, home(), cores)


def code_digest() -> str:
    """Return a short hash of the package's sources: two machines may have different code of one version."""
    package = Path(__file__).parents[2]
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:8]


def home() -> tuple[str, str]:
    """Return an id of the machine and its folder of fetched partitions. Processes with the same home share files."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        boot = socket.gethostname()
    return boot, str(cache_folder("data").absolute())


def skew(mine: About, theirs: About) -> list[str]:
    """Return the differences of another machine that must not be."""
    found = []
    if theirs.python != mine.python:
        found.append(f"Python {theirs.python} instead of {mine.python}")
    for name, version in mine.packages.items():
        other = theirs.packages.get(name)
        if other != version:
            found.append(f"{name} {other or 'is missing'} instead of {version}")
    return found


class NodeAgent:
    """The actor that serves all experiments of a driver on one node."""

    def __init__(self, node: str) -> None:
        self._node = node

    def about(self) -> About:
        return about()

    def beat(self, seconds: float) -> None:
        """Return after ``seconds``: an answer shows that the node is alive."""
        time.sleep(seconds)

    def problems(self, mine: About, datasets: Sequence[Dataset], location: StorageLocation, token: str) -> list[str]:
        """Return what would go wrong on this node. ``token`` names a file that the driver wrote to the storage."""
        location.sweep(self._node)
        found = skew(mine, about())
        for dataset in datasets:
            with _noted(found):
                dataset.probe()
        with _noted(found):
            self._check_storage(location, token)
        return found

    def _check_storage(self, location: StorageLocation, token: str) -> None:
        """Read the file that the driver wrote, and write an answer beside it."""
        answer = f"{token}-{self._node[:12]}"
        try:
            if location.url:
                remote = Remote(location.url)
                remote.read_text(token)
                remote.put_text(answer, token)
            else:
                (location.checkpoints / token).read_text(encoding="utf-8")
                write_text(location.checkpoints / answer, token, durable=False)
        except Exception as error:
            where = location.name
            raise HopfleetError(f"storage {where} is not shared with it ({describe(error)})") from error

    def fetch(self, dataset: Dataset, partitions: Sequence[int], driver: tuple[str, str]) -> None:
        """Bring partitions to this node's disk, and check them."""
        here = at_home(dataset, driver)
        for partition in partitions:
            here.fetch(partition)

    def content(self, location: StorageLocation, ref: VersionRef) -> Content:
        """Return the bytes of a version, for another node."""
        return transfers.content(location.local(self._node), ref)

    def send(self, location: StorageLocation, ref: VersionRef) -> None:
        """Upload a durable version from this node's disk to the storage."""
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
        """Return the end of the output of a trial on a lost worker."""
        return last_lines(location.local(self._node).shared_folder / LOGS / worker / f"{trial}.log")


def at_home(dataset: Dataset, driver: tuple[str, str]) -> Dataset:
    """Return a data set as a node reads it: in place on the machine of the driver, elsewhere from copies."""
    return dataset if home() == driver else dataset.copied()


@contextlib.contextmanager
def _noted(found: list[str]) -> Iterator[None]:
    try:
        yield
    except (HopfleetError, OSError) as error:
        found.append(str(error))
