"""Model versions on disk and in shared memory.

A version that is only handed over to the next worker lies on tmpfs where there is one with room, which makes a hop
as fast as memory. A durable version lies in the run folder, written atomically and synced. Whatever lies on a disk is
hashed. Both are plain safetensors files; what is in them is the business of the framework that writes them.

The name of a file contains the number of the save that wrote it, so no two saves ever write the same file: a late
writer, even a worker that was declared dead, does no harm. The journal records which file is the version.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError
from hopfleet.support.files import digest, write_atomically

TMPFS = Path("/dev/shm")

DAMAGED = "is damaged: another SHA-256 than in the journal"

SPARE = "spare"
SPARES = 4
SPARE_BYTES, MOST_SPARE_BYTES = 1 << 20, 1 << 28
"""Minimum bytes of a dropped version that is kept in shared memory for overwriting, and maximum bytes of all."""

OURS = re.compile(r"(t\d+|probe)/\.?(v|hop-)\d+(-\d+)?(\.safetensors(\.\d+)?|\.tmp)")
"""Names of version files, in their folders; those included that they have while they are written."""

BATCHES = "batches-"
"""What the names of folders with transformed batches begin with."""

OWNER = "owner"
"""A file in a folder of shared memory that names the checkpoints folder it belongs to."""


class Versions:
    """The saved model versions of one experiment."""

    far = False
    """Whether durable versions are kept elsewhere, and are still to be sent there when they are written."""

    def __init__(self, checkpoints: Path, tmpfs: Path = TMPFS) -> None:
        self.durable_folder = checkpoints
        key = hashlib.sha256(str(checkpoints.resolve()).encode()).hexdigest()[:16]
        self._in_memory = tmpfs.is_dir() and os.access(tmpfs, os.W_OK)
        base = tmpfs if self._in_memory else Path(tempfile.gettempdir())
        self.shared_folder = base / f"hopfleet-{os.getuid()}-{key}"

    def path(self, ref: VersionRef, *, durable: bool) -> Path:
        folder = self.durable_folder if durable else self.shared_folder
        return folder / ref.trial / f"v{ref.version:05d}{_suffix(ref)}"

    def write(self, ref: VersionRef, write: Callable[[Path], None], *, durable: bool, size: int) -> tuple[str, int]:
        """Save a version of about ``size`` bytes; returns its SHA-256, if it lies on a disk, and its size.

        Only a disk that cannot be written raises OSError: where shared memory is short, a hand-over goes there too.
        """
        if not durable and self._has_room(size):
            path = self.path(ref, durable=False)
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_atomically(path, self._over_spare(write), durable=False)
                return "" if self._in_memory else digest(path), path.stat().st_size
        path = self.path(ref, durable=True) if durable else self._spilled(ref)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, write, durable=durable)
        return digest(path), path.stat().st_size

    def find(self, ref: VersionRef, expected: str = "") -> Path:
        """Return the file of a saved version, which has the SHA-256 ``expected`` if that is known."""
        unsaved = f"version {ref.version} of {ref.trial} is not saved anywhere"
        if ref.attempt is None:
            raise CheckpointError(unsaved)
        candidates = self._names(ref)
        for path in candidates if self._is_mine() else candidates[1:]:
            if path.is_file():
                check(path, expected)
                return path
        raise CheckpointError(f"{unsaved}; looked for {candidates[1]}")

    def keep(self, ref: VersionRef, saved: int | None, expected: str = "") -> tuple[str, int]:
        """Copy the file of save ``saved`` to the durable version ``ref``; return its SHA-256 and its size."""
        return self._again(ref, self.find(ref._replace(attempt=saved)), _copied, expected)

    def copy(self, source: VersionRef, ref: VersionRef, expected: str = "") -> tuple[str, int]:
        """Give a clone its parent's version ``source`` as its own durable version ``ref``.

        Both are names of one file, which lives as long as either. A file system without links gets a copy.
        """
        return self._again(ref, self.find(source), _linked, expected)

    def _again(
        self, ref: VersionRef, source: Path, write: Callable[[Path, Path], None], expected: str
    ) -> tuple[str, int]:
        """Save durably what another file holds."""
        target = self.path(ref, durable=True)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(target, lambda path: write(source, path), durable=True)
        found = digest(target)
        if expected and found != expected:
            target.unlink()
            raise CheckpointError(f"{source}: {DAMAGED}")
        return found, target.stat().st_size

    def send(self, ref: VersionRef) -> None:
        """Bring a durable version to where it is kept, if that is ``far``."""

    def collect(self, trial: str) -> None:
        """Have what is kept of a trial that is over in the run folder, if that was ``far``."""

    def drop(self, ref: VersionRef) -> None:
        """Delete the file of a save. Dropping what is not there does nothing."""
        with contextlib.suppress(FileNotFoundError):
            self._spare(self.path(ref, durable=False))
        for path in (self.path(ref, durable=True), self._spilled(ref)):
            path.unlink(missing_ok=True)

    def tidy(self, needed: Iterable[VersionRef]) -> None:
        """Delete all version files, half-written ones included, except the ``needed`` ones.

        Files that Hopfleet did not write stay.
        """
        kept = {path for ref in needed for path in self._names(ref)}
        for base in (self.durable_folder, self.shared_folder):
            for path in base.glob("*/*"):
                if path not in kept and OURS.fullmatch(path.relative_to(base).as_posix()):
                    path.unlink(missing_ok=True)
            for folder in base.glob("*/"):
                if folder.name != SPARE:
                    with contextlib.suppress(OSError):  # it is not empty
                        folder.rmdir()

    def _names(self, ref: VersionRef) -> list[Path]:
        return [self.path(ref, durable=False), self.path(ref, durable=True), self._spilled(ref)]

    def forget(self, trial: str) -> None:
        """Remove all that is left of a trial."""
        for folder in (self.durable_folder, self.shared_folder):
            shutil.rmtree(folder / trial, ignore_errors=True)

    def _spare(self, path: Path) -> None:
        """Keep a few dropped files: memory that was used before is written twice as fast."""
        spares = self.shared_folder / SPARE
        spares.mkdir(exist_ok=True, mode=0o700)
        size, kept = path.stat().st_size, [file.stat().st_size for file in os.scandir(spares)]
        if size >= SPARE_BYTES and len(kept) < SPARES and size + sum(kept) <= MOST_SPARE_BYTES:
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

    def batches(self, run: str) -> Path | None:
        """A folder in shared memory for what the workers of one run share beside versions; None where there is none."""
        return self.shared_folder / f"{BATCHES}{run}" if self._in_memory and self._has_room(0) else None

    def clear_batches(self) -> None:
        """Give back the shared memory of such folders, also those of earlier runs."""
        for folder in self.shared_folder.glob(f"{BATCHES}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Free the shared memory of experiments whose folders are gone: they cannot be resumed."""
        for folder in self.shared_folder.parent.glob(f"hopfleet-{os.getuid()}-*"):
            with contextlib.suppress(OSError):
                if not Path((folder / OWNER).read_text()).exists():
                    shutil.rmtree(folder)

    def _spilled(self, ref: VersionRef) -> Path:
        """Return where a hand-over goes when shared memory is short."""
        return self.durable_folder / ref.trial / f"hop-{ref.version:05d}{_suffix(ref)}"

    def share(self) -> None:
        """Create a folder in shared memory that no other user can read, with a file that names its owner."""
        if not (self.shared_folder / OWNER).exists():
            self.shared_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.shared_folder / OWNER).write_text(str(self.durable_folder.resolve()))

    def _has_room(self, size: int) -> bool:
        with contextlib.suppress(OSError):
            self.share()
            return self._is_mine() and shutil.disk_usage(self.shared_folder).free > 4 * size + (16 << 20)
        return False

    def _is_mine(self) -> bool:
        """Whether no other user can write into the shared memory of that name; another user may have created it."""
        with contextlib.suppress(OSError):
            found = self.shared_folder.lstat()
            return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        return False


def check(path: Path, expected: str) -> None:
    """Raise CheckpointError unless a file has the SHA-256 ``expected``, if that is known."""
    try:
        if expected and digest(path) != expected:
            raise CheckpointError(f"{path}: {DAMAGED}")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error


def _suffix(ref: VersionRef) -> str:
    assert ref.attempt is not None, f"{ref} has no file"
    # Files of journals before format 3 bear no number.
    return f"-{ref.attempt}.safetensors" if ref.attempt else ".safetensors"


def _copied(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError as error:
        raise CheckpointError(f"{source}: is gone") from error


def _linked(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        _copied(source, target)
