"""Model versions of an experiment on several machines.

Each node passes versions between its workers in shared memory of its own, so a hop within a node is as fast as on one
machine; ``content`` and ``receive`` move a version between nodes. Durable versions go to a folder that all nodes share,
as ``Versions`` does, or behind an fsspec URL: a node writes them to its own disk, uploads them in the background and
keeps its copy for other nodes until the version is dropped; the driver, the process that runs the experiment, downloads
what is left at the end.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hopfleet.domain.version_ref import SHARED, VersionRef
from hopfleet.errors import CheckpointError
from hopfleet.store.versions.forwarding import ForwardingVersions
from hopfleet.store.versions.local import OURS, OURS_SHARED, Versions, check, named_in, references
from hopfleet.store.versions.remote import Remote
from hopfleet.support.files import (
    back_off,
    link_folder,
    make_folder,
    move_across,
    overwrite,
    remove_empty_folder,
    remove_folder,
)
from hopfleet.support.logging import STORAGE, messages

DRIVER = "driver"
"""Stands for the driver in names of shared memory."""

Content = npt.NDArray[np.uint8]


def local_versions(checkpoints: Path, node: str = "") -> Versions:
    """Return the versions on the disk and in the shared memory of a node, or of the driver."""
    return Versions(checkpoints, node=node or DRIVER)


class RemoteVersions(ForwardingVersions):
    """Versions behind a URL, as the driver sees them: downloaded versions stay in the run folder."""

    def __init__(self, local: Versions, url: str) -> None:
        super().__init__(local)
        self.local = local
        self._url = url

    @property
    def sends(self) -> bool:
        return True

    @functools.cached_property
    def _remote(self) -> Remote:
        """Open the URL on first use, since the libraries of some file systems load slowly."""
        return Remote(self._url)

    def write(self, ref: VersionRef, write: Callable[[Path], None], *, durable: bool, size: int) -> tuple[str, int]:
        if not durable:
            return self.local.write(ref, write, durable=False, size=size)
        # The file only waits to be uploaded, so it is not synced.
        return self.local.write_file(self.path(ref, durable=True), write, durable=False)

    def send(self, ref: VersionRef) -> None:
        """Upload a durable version and the files that it shares, unless its file was dropped meanwhile."""
        path = self.path(ref, durable=True)
        if path.is_file():
            if names := references(path):
                there = set(self._remote.names(SHARED))
                for name in map(_shared_name, names):
                    if name not in there:
                        self._remote.upload(self.local.durable_folder / name, name)
            self._remote.upload(path, self._name(ref))

    def find(self, ref: VersionRef, expected: str = "") -> Path:
        try:
            return self.local.find(ref, expected)
        except CheckpointError:
            if ref.attempt is None:
                raise
        target = self._download_path(ref)
        self._remote.download(self._name(ref), target)
        check(target, expected)
        for name in references(target):
            if not (path := self.local.shared_path(name)).is_file():
                self._remote.download(_shared_name(name), path)
        return target

    def keep(self, ref: VersionRef, saved: int | None, expected: str = "") -> tuple[str, int]:
        return self.local.save_copy(ref, self.find(ref._replace(attempt=saved)), expected)

    def copy(self, source: VersionRef, ref: VersionRef, expected: str = "") -> tuple[str, int]:
        copied = self.local.save_link(ref, self.find(source), expected)
        self.send(ref)
        return copied

    def collect(self, trial: str = "") -> None:
        """Download the durable versions of a trial, or of all trials, into the run folder."""
        for name in self._remote.names(trial) + (self._remote.names(SHARED) if trial else []):
            target = self.local.durable_folder / name
            if not target.is_file():
                self._remote.download(name, target)

    def drop(self, ref: VersionRef) -> None:
        self.local.drop(ref)
        self._remote.remove_file(self._name(ref))

    def tidy(self, needed: Iterable[VersionRef]) -> None:
        needed = list(needed)
        self.local.tidy(needed)
        kept = {self._name(ref) for ref in needed}
        names = self._remote.names()
        if shared := [name for name in names if OURS_SHARED.fullmatch(name.removeprefix(f"{SHARED}/"))]:
            for version in kept.intersection(names):
                kept |= {_shared_name(one) for one in named_in(functools.partial(self._remote.read, version))}
        for name in names:
            if name not in kept and (OURS.fullmatch(name) or name in shared):
                self._remote.remove_file(name)

    def forget(self, trial: str) -> None:
        self.local.forget(trial)
        self._remote.remove(trial)

    def _download_path(self, ref: VersionRef) -> Path:
        return self.path(ref, durable=True)

    def _name(self, ref: VersionRef) -> str:
        return self.path(ref, durable=True).relative_to(self.local.durable_folder).as_posix()


def _shared_name(name: str) -> str:
    return f"{SHARED}/{name}.safetensors"


class NodeVersions(RemoteVersions):
    """Versions behind a URL, as a node sees them: durable files stay on the node that wrote them.

    Downloaded versions go to shared memory, for one use. Only the driver deletes versions behind the URL. While the
    storage does not answer, a version is not lost: the node waits for it.
    """

    def find(self, ref: VersionRef, expected: str = "") -> Path:
        told = False
        for seconds in back_off():
            try:
                return super().find(ref, expected)
            except OSError as error:
                if not told:
                    messages(STORAGE).warning("%s; waiting for the storage", error)
                told = True
                time.sleep(seconds)
        raise AssertionError("there is always another attempt")

    def drop(self, ref: VersionRef) -> None:
        self.local.drop(ref)

    def forget(self, trial: str) -> None:
        self.local.forget(trial)

    def release(self) -> None:
        self.local.release()
        remove_folder(self.local.durable_folder, ignore_errors=True)

    def _download_path(self, ref: VersionRef) -> Path:
        return self.path(ref, durable=False)


def content(versions: Versions, ref: VersionRef) -> Content:
    """Return the bytes of a version on this node, for another node."""
    path = versions.find(ref)
    try:
        return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error


def receive(versions: Versions, ref: VersionRef, found: Content) -> None:
    """Write the bytes of a version from another node to shared memory."""
    pieces = [memoryview(found)]  # type: ignore[arg-type]
    versions.write(ref, lambda path: overwrite(path, pieces), durable=False, size=found.nbytes)


def link_storage(checkpoints: Path, storage: Path) -> None:
    """Link the checkpoints of a run folder to a shared folder, where all nodes find them."""
    make_folder(storage, private=True)
    if checkpoints.is_symlink() or checkpoints.resolve() == storage.resolve():
        return
    if checkpoints.is_dir():
        for entry in checkpoints.iterdir():
            move_across(entry, storage / entry.name)
        remove_empty_folder(checkpoints)
    link_folder(checkpoints, storage)
