"""Model versions on disk and in shared memory.

A version that is only handed over to the next worker lies on tmpfs where there is one with room, which makes a hop
as fast as memory. A durable version lies in the run folder, written atomically, synced and hashed. Both are plain
safetensors files; what is in them is the business of the framework that writes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hopfleet.errors import CheckpointError
from hopfleet.files import digest, sync, write_atomically

TMPFS = Path("/dev/shm")

SPARE = "spare"
SPARES = 4
SPARE_BYTES = 1 << 20
"""A folder of shared memory with at most so many dropped versions, of at least so many bytes, to be written over."""

OWNER = "owner"
"""A file in a folder of shared memory that names the checkpoints folder it belongs to."""


class Versions:
    """The saved model versions of one experiment."""

    def __init__(self, checkpoints: Path, tmpfs: Path = TMPFS) -> None:
        self.durable_folder = checkpoints
        key = hashlib.sha256(str(checkpoints.resolve()).encode()).hexdigest()[:16]
        base = tmpfs if tmpfs.is_dir() and os.access(tmpfs, os.W_OK) else Path(tempfile.gettempdir())
        self.shared_folder = base / f"hopfleet-{os.getuid()}-{key}"

    def path(self, trial: str, version: int, *, durable: bool) -> Path:
        folder = self.durable_folder if durable else self.shared_folder
        return folder / trial / f"v{version:05d}.safetensors"

    def write(
        self, trial: str, version: int, write: Callable[[Path], None], *, durable: bool, size: int
    ) -> tuple[str, int]:
        """Save a version of about ``size`` bytes; returns its SHA-256 (durable ones only) and its size."""
        path = self.path(trial, version, durable=durable)
        if not durable and not self._has_room(size):
            path = self._spilled(trial, version)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, write if durable else self._over_spare(write), durable=durable)
        return digest(path) if durable else "", path.stat().st_size

    def find(self, trial: str, version: int) -> Path:
        """The file of a saved version."""
        candidates = [
            self.path(trial, version, durable=False),
            self.path(trial, version, durable=True),
            self._spilled(trial, version),
        ]
        for path in candidates:
            if path.is_file():
                return path
        raise CheckpointError(f"version {version} of {trial} is not saved anywhere; looked for {candidates[1]}")

    def keep(self, trial: str, version: int) -> tuple[str, int]:
        """Make a version durable that is saved for others; returns its SHA-256 and its size."""
        source, target = self.find(trial, version), self.path(trial, version, durable=True)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if source != target:
            write_atomically(target, lambda path: _copied(source, path), durable=True)
        return digest(target), target.stat().st_size

    def copy(self, parent: str, version: int, trial: str) -> tuple[str, int]:
        """Give ``trial`` a durable version of ``parent``: a second name of one file, that lives as long as either.

        Where a file cannot have two names, it is a copy. Doing it again, after a crash in between, does no harm.
        """
        source, target = (self.path(name, version, durable=True) for name in (parent, trial))
        if not source.is_file():
            raise CheckpointError(f"version {version} of {parent} is not saved; looked for {source}")
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = target.with_suffix(".tmp")
        beside.unlink(missing_ok=True)
        try:
            os.link(source, beside)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            shutil.copyfile(source, beside)
            sync(beside)
        beside.replace(target)
        beside.unlink(missing_ok=True)  # renaming one name of a file to another of its names leaves both
        sync(target.parent)
        return digest(target), target.stat().st_size

    def drop(self, trial: str, version: int) -> None:
        """Forget a version. Dropping what is not there does nothing."""
        with contextlib.suppress(FileNotFoundError):
            self._spare(self.path(trial, version, durable=False))
        for path in (self.path(trial, version, durable=True), self._spilled(trial, version)):
            path.unlink(missing_ok=True)

    def forget(self, trial: str) -> None:
        """Remove all that is left of a trial."""
        for folder in (self.durable_folder, self.shared_folder):
            shutil.rmtree(folder / trial, ignore_errors=True)

    def _spare(self, path: Path) -> None:
        """Keep a few dropped files: memory that was used before is written twice as fast."""
        spares = self.shared_folder / SPARE
        spares.mkdir(exist_ok=True, mode=0o700)
        if path.stat().st_size >= SPARE_BYTES and sum(1 for _ in spares.iterdir()) < SPARES:
            path.rename(spares / f"{path.parent.name}-{path.name}")
        else:
            path.unlink()

    def _over_spare(self, write: Callable[[Path], None]) -> Callable[[Path], None]:
        """Let ``write`` begin with a spare file in place of a new one, if there is any."""

        def reuse(path: Path) -> None:
            with contextlib.suppress(StopIteration, FileNotFoundError):
                next((self.shared_folder / SPARE).iterdir()).rename(path)
            write(path)

        return reuse

    def release(self) -> None:
        """Give back all shared memory: the experiment is over."""
        shutil.rmtree(self.shared_folder, ignore_errors=True)
        for path in self.durable_folder.glob("*/hop-*.safetensors"):
            path.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Give back the shared memory of experiments whose folders are gone: nobody will resume them."""
        for folder in self.shared_folder.parent.glob(f"hopfleet-{os.getuid()}-*"):
            with contextlib.suppress(OSError):
                if not Path((folder / OWNER).read_text()).exists():
                    shutil.rmtree(folder)

    def _spilled(self, trial: str, version: int) -> Path:
        """Where a hand-over goes when shared memory is short."""
        return self.durable_folder / trial / f"hop-{version:05d}.safetensors"

    def _has_room(self, size: int) -> bool:
        with contextlib.suppress(OSError):
            if not (self.shared_folder / OWNER).exists():
                self.shared_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                (self.shared_folder / OWNER).write_text(str(self.durable_folder.resolve()))
            return shutil.disk_usage(self.shared_folder).free > 4 * size + (16 << 20)
        return False


def _copied(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError as error:
        raise CheckpointError(f"{source}: is gone") from error
