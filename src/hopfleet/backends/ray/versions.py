"""The versions of a run on a Ray cluster, as the driver and as a worker see them, and where durable ones are kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopfleet.domain.version_ref import SHARED, VersionRef
from hopfleet.errors import describe
from hopfleet.store.base import VersionStore
from hopfleet.store.versions.cluster import NodeVersions, RemoteVersions, local_versions
from hopfleet.store.versions.forwarding import ForwardingVersions
from hopfleet.store.versions.local import Versions
from hopfleet.support.cache import cache_folder
from hopfleet.support.files import make_folder
from hopfleet.support.processes import identity


@dataclass(frozen=True, slots=True)
class StorageLocation:
    """Where an experiment keeps durable versions: in a folder that all nodes share, or behind a URL."""

    checkpoints: Path
    url: str = ""

    @property
    def name(self) -> str:
        """Return the location for messages to users."""
        return self.url or str(self.checkpoints)

    @property
    def folder(self) -> Path:
        """Return the folder to which a node writes durable versions; with a URL, a folder of files to upload."""
        uploads = cache_folder("uploads") / hashlib.sha256(self.url.encode()).hexdigest()[:16]
        return uploads if self.url else self.checkpoints

    def local(self, node: str) -> Versions:
        """Return the versions on a node."""
        return local_versions(self.folder, node)

    def versions(self, node: str) -> VersionStore:
        """Return all versions that a node can read."""
        return NodeVersions(self.local(node), self.url) if self.url else self.local(node)

    def prepare(self, node: str) -> None:
        """Create the node's folder in shared memory, and the folder that owns it: memory without owner is swept.

        The parent of each process of Ray is the raylet of its node; the memory is swept when the raylet is gone.
        """
        if self.url:
            make_folder(self.folder / SHARED, private=True)
        self.local(node).memory.create(identity(os.getppid()))

    def sweep(self, node: str) -> None:
        """Give back the shared memory of nodes on this machine that were lost."""
        self.local(node).memory.sweep_lost()


def storage_location(storage: str | None, checkpoints: Path) -> StorageLocation:
    """Return where a run keeps durable versions. A hash of the run folder's path tells runs of one name apart."""
    if storage is None:
        return StorageLocation(checkpoints)
    folder = checkpoints.parent
    name = f"{folder.name}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"
    if "://" in storage and not storage.startswith("file://"):
        return StorageLocation(checkpoints, f"{storage.rstrip('/')}/{name}")
    return StorageLocation(Path(storage.removeprefix("file://")).expanduser().absolute() / name)


class WorkerVersions(ForwardingVersions):
    """The versions as a worker sees them: the agent of its node uploads durable versions.

    One process per node talks to the remote storage, and no worker loads the libraries for it.
    """

    def __init__(self, location: StorageLocation, node: str, agent: Any) -> None:
        super().__init__(location.versions(node))
        self._location, self._agent = location, agent
        self.local = location.local(node)

    def send(self, ref: VersionRef) -> None:
        import ray

        sent = self._agent.send.options(concurrency_group="sends").remote(self._location, ref)
        try:
            ray.get(sent)
        except ray.exceptions.RayTaskError as error:  # raised by the node agent
            raise OSError(str(error.cause)) from error
        except ray.exceptions.RayError as error:
            raise OSError(f"version {ref.version} of {ref.trial} could not be sent: {describe(error)}") from error


class DriverVersions(ForwardingVersions):
    """The versions as the driver sees them. Versions that the driver drops are dropped on the nodes as well.

    ``drop`` asks the nodes that hold a version to drop it, and returns whether the version was on nodes alone.
    """

    def __init__(
        self,
        checkpoints: Path,
        url: str,
        *,
        drop: Callable[[VersionRef], bool],
        forget: Callable[[str], None],
        release: Callable[[], None],
    ) -> None:
        local = local_versions(checkpoints)
        super().__init__(RemoteVersions(local, url) if url else local)
        self._drop_on_nodes, self._forget_on_nodes, self._release_nodes = drop, forget, release
        #: Deletes and downloads in the background.
        self._transfers = ThreadPoolExecutor(1)

    def drop(self, ref: VersionRef) -> None:
        if not self._drop_on_nodes(ref):
            self._transfers.submit(self._inner.drop, ref)

    def collect(self, trial: str = "") -> None:
        self._transfers.submit(self._inner.collect, trial)  # ``release`` repeats failed downloads

    def forget(self, trial: str) -> None:
        self._inner.forget(trial)
        self._forget_on_nodes(trial)

    def release(self) -> None:
        self._transfers.shutdown()
        self._transfers = ThreadPoolExecutor(1)
        self._inner.release()
        self._release_nodes()
        self._inner.collect()
