"""Model versions of an experiment on several machines.

Each node hands versions over in shared memory of its own, so a hop within a node is what it is on one machine. Durable
versions lie in a folder that all nodes see, or behind an fsspec URL: then a node writes them to its own disk, sends
them in the background, and keeps no copy; the process that runs the experiment fetches what is left when all is over.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError, MissingExtra, UsageError, describe
from hopfleet.store.versions.local import OURS, Versions, check
from hopfleet.support.files import digest, retried, write_atomically

Content = npt.NDArray[np.uint8]


class ClusterVersions(Versions):
    """The versions as one node sees them, or with ``node=""`` the process that runs the experiment."""

    def __init__(self, checkpoints: Path, *, node: str = "", url: str = "") -> None:
        super().__init__(checkpoints)
        self.shared_folder = self.shared_folder.with_name(f"{self.shared_folder.name}-{node[:12] or 'driver'}")
        self._node = node
        self._url = url
        self.far = bool(url)

    @functools.cached_property
    def _remote(self) -> Remote:
        """Made when it is needed, and where they are ``far``: what it takes to talk to some places loads slowly."""
        return Remote(self._url)

    def write(self, ref: VersionRef, write: Callable[[Path], None], *, durable: bool, size: int) -> tuple[str, int]:
        if not (durable and self.far):
            return super().write(ref, write, durable=durable, size=size)
        path = self.path(ref, durable=True)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, write, durable=False)  # what lies here only waits to be sent
        return digest(path), path.stat().st_size

    def send(self, ref: VersionRef) -> None:
        path = self.path(ref, durable=True)
        if self.far and path.is_file():  # otherwise it is not needed any more
            self._remote.upload(path, self._name(path))
            if self._node:
                path.unlink(missing_ok=True)

    def find(self, ref: VersionRef, expected: str = "") -> Path:
        try:
            return super().find(ref, expected)
        except CheckpointError:
            if ref.attempt is None or not self.far:
                raise
            durable = self.path(ref, durable=True)
            # A node needs it now and not again; the run folder is where it is to stay.
            target = self.path(ref, durable=not self._node)
            self._remote.download(self._name(durable), target)
            check(target, expected)
            return target

    def copy(self, source: VersionRef, ref: VersionRef, expected: str = "") -> tuple[str, int]:
        copied = super().copy(source, ref, expected)
        self.send(ref)
        return copied

    def drop(self, ref: VersionRef) -> None:
        super().drop(ref)
        if self.far and not self._node:
            self._remote.remove_file(self._name(self.path(ref, durable=True)))

    def tidy(self, needed: Iterable[VersionRef]) -> None:
        needed = list(needed)
        super().tidy(needed)
        if self.far:
            kept = {self._name(self.path(ref, durable=True)) for ref in needed}
            for name in self._remote.names():
                if name not in kept and OURS.fullmatch(name):
                    self._remote.remove_file(name)

    def forget(self, trial: str) -> None:
        super().forget(trial)
        if self.far and not self._node:
            self._remote.remove(trial)

    def share(self) -> None:
        if self.far:
            # Shared memory whose owner is gone may be swept away.
            self.durable_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        super().share()

    def release(self) -> None:
        super().release()
        if self.far and self._node:
            shutil.rmtree(self.durable_folder, ignore_errors=True)

    def collect(self, trial: str = "") -> None:
        """Fetch durable versions that are behind a URL, all or those of one trial, into the run folder."""
        if self.far:
            for name in self._remote.names(trial):
                if not (self.durable_folder / name).is_file():
                    self._remote.download(name, self.durable_folder / name)

    def content(self, ref: VersionRef) -> Content:
        """The bytes of a version that lies in this node's shared memory."""
        path = super().find(ref)
        try:
            return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read ({error})") from error

    def receive(self, ref: VersionRef, content: Content) -> None:
        """Put a version that came from another node into shared memory."""
        size = content.nbytes
        super().write(ref, lambda path: _fill(path, content), durable=False, size=size)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.durable_folder).as_posix()


class Remote:
    """A folder of files behind an fsspec URL."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url.rstrip("/")
        try:
            self._files, path = fsspec.core.url_to_fs(self.url)
        except ImportError as error:
            if url.startswith(("s3://", "s3a://")):
                raise MissingExtra("s3fs", "s3") from error
            raise UsageError(f"storage={url!r}: needs a package that is not installed ({error})") from error
        except ValueError as error:
            raise UsageError(f"storage={url!r}: cannot be opened ({error})") from error
        self._path = str(path).rstrip("/")

    def upload(self, path: Path, name: str) -> None:
        """An object appears whole; where a file could be seen half written, it is written beside and moved."""
        target = f"{self._path}/{name}"

        def put() -> None:
            if _renames(self._files):
                self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
                beside = f"{target}.{os.uname().nodename}.{os.getpid()}"
                self._files.put_file(str(path), beside)
                self._files.mv(beside, target)
            else:
                self._files.put_file(str(path), target)

        try:
            retried(put)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{self.url}/{name}: {describe(error)}") from error

    def download(self, name: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            retried(lambda: self._files.get_file(f"{self._path}/{name}", str(beside)))
            beside.replace(target)
        except FileNotFoundError:
            raise CheckpointError(f"{self.url}/{name}: is not there") from None
        except Exception as error:
            raise CheckpointError(f"{self.url}/{name}: cannot be fetched ({describe(error)})") from error
        finally:
            beside.unlink(missing_ok=True)

    def remove_file(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(f"{self._path}/{name}")

    def remove(self, name: str) -> None:
        """A file, or a folder with all that is in it."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(f"{self._path}/{name}", recursive=True)

    def names(self, folder: str = "") -> list[str]:
        """All files, or those in a folder below it, by their paths below the folder."""
        self._files.invalidate_cache()
        found: list[str] = self._files.find(f"{self._path}/{folder}".rstrip("/"))
        return [path.removeprefix(self._path).lstrip("/") for path in found if path.endswith(".safetensors")]

    def write_text(self, name: str, text: str) -> None:
        self._files.makedirs(self._path, exist_ok=True)
        retried(lambda: self._files.pipe_file(f"{self._path}/{name}", text.encode()))

    def read_text(self, name: str) -> str:
        return bytes(retried(lambda: self._files.cat_file(f"{self._path}/{name}"))).decode()


def _renames(files: Any) -> bool:
    protocols = [files.protocol] if isinstance(files.protocol, str) else files.protocol
    return bool({"file", "local", "hdfs", "sftp", "smb"} & set(protocols))


def _fill(path: Path, content: Content) -> None:
    """Write over what is there, which is quicker than new memory, and cut off the rest."""
    piece = memoryview(content)  # type: ignore[arg-type]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while piece:
            piece = piece[os.write(descriptor, piece) :]
        os.ftruncate(descriptor, content.nbytes)
    finally:
        os.close(descriptor)


def link_storage(checkpoints: Path, storage: Path) -> None:
    """Link the checkpoints of a run folder to a shared folder, where all nodes find them."""
    storage.mkdir(parents=True, exist_ok=True, mode=0o700)
    if checkpoints.is_symlink() or checkpoints.resolve() == storage.resolve():
        return
    if checkpoints.is_dir():
        for entry in checkpoints.iterdir():
            shutil.move(entry, storage / entry.name)
        checkpoints.rmdir()
    checkpoints.symlink_to(storage, target_is_directory=True)
