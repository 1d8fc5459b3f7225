"""Model versions on disk and in shared memory.

A version that only goes to the next worker is written to shared memory if there is room, which makes a hop as fast as
memory. A durable version is written to the run folder, atomically and synced. Every file on a disk is hashed. All files
are safetensors files; the framework decides about their content.

Versions can refer to files that they share, e.g. the frozen weights of a model. Frameworks write these files to the
folder ``shared``, named by their SHA-256. A file that no version refers to any more is deleted by ``tidy``.

The name of a file contains the number of the save, so no two saves write the same file, and a late worker does no harm.
The journal tells which file is the version.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from hopfleet.domain.version_ref import SHARED, VersionRef
from hopfleet.errors import CheckpointError
from hopfleet.store.shared_memory import TMPFS, SharedMemory
from hopfleet.support.files import (
    copy_file,
    digest,
    link_or_copy,
    make_folder,
    move,
    open_plain,
    remove_empty_folder,
    remove_file,
    remove_folder,
    write_atomically,
)

DAMAGED = "is damaged: another SHA-256 than in the journal"

SPARE = "spare"
"""Name of the folder in shared memory with dropped files that the next versions overwrite."""

SPARES = 4
"""Maximum number of spare files."""

SPARE_BYTES, MOST_SPARE_BYTES = 1 << 20, 1 << 28
"""Minimum bytes of one spare file, and maximum bytes of all spare files."""

OURS = re.compile(r"(t\d+|probe)/\.?(v|hop-)\d+(-\d+)?(\.safetensors(\.[0-9a-f]+)?|\.tmp)")
"""Names of version files with their folders, including the temporary names of half-written files."""

LONGEST_HEADER = 100_000_000
"""Bytes. The library for safetensors files refuses a longer header, too."""

OURS_SHARED = re.compile(r"\.?([0-9a-f]{64})\.safetensors(\.[0-9a-f]+)?")
"""Names of files that versions share, including temporary names."""


class Versions:
    """The versions in a run folder and in the shared memory of this machine. ``node`` names a node of a cluster."""

    sends = False

    def __init__(self, checkpoints: Path, tmpfs: Path = TMPFS, *, node: str = "") -> None:
        self.durable_folder = checkpoints
        self.memory = SharedMemory(checkpoints, tmpfs, node=node)

    @property
    def shared_folder(self) -> Path:
        return self.memory.folder

    def path(self, ref: VersionRef, *, durable: bool) -> Path:
        """Return the file of a version."""
        folder = self.durable_folder if durable else self.shared_folder
        return folder / ref.trial / f"v{ref.version:05d}{_suffix(ref)}"

    def write(self, ref: VersionRef, write: Callable[[Path], None], *, durable: bool, size: int) -> tuple[str, int]:
        """Save a version of about ``size`` bytes; return its SHA-256, if the file is on a disk, and its size.

        A version that is not durable goes to the disk if shared memory is short, so only a disk raises OSError.
        """
        if not durable and self.memory.has_room(size):
            path = self.path(ref, durable=False)
            with contextlib.suppress(OSError):
                make_folder(path.parent, private=True)
                write_atomically(path, self._over_spare(write), durable=False, private=True)
                return "" if self.memory.in_memory else digest(path), path.stat().st_size
        path = self.path(ref, durable=True) if durable else self._spilled(ref)
        return self.write_file(path, write, durable=durable)

    def write_file(self, path: Path, write: Callable[[Path], None], *, durable: bool) -> tuple[str, int]:
        """Write a file atomically, and its folder if needed; return its SHA-256 and its size."""
        make_folder(path.parent, private=True)
        write_atomically(path, write, durable=durable, private=True)
        return digest(path), path.stat().st_size

    def find(self, ref: VersionRef, expected: str = "") -> Path:
        """Return the file of a saved version. Its SHA-256 must be the ``expected`` one, if that is known."""
        unsaved = f"version {ref.version} of {ref.trial} is not saved anywhere"
        if ref.attempt is None:
            raise CheckpointError(unsaved)
        candidates = self._names(ref)
        for path in candidates if self.memory.is_private() else candidates[1:]:
            if path.is_file():
                check(path, expected)
                return path
        raise CheckpointError(f"{unsaved}; looked for {candidates[1]}")

    def keep(self, ref: VersionRef, saved: int | None, expected: str = "") -> tuple[str, int]:
        """Copy the file of save ``saved`` to the durable version ``ref``; return its SHA-256 and its size."""
        return self.save_copy(ref, self.find(ref._replace(attempt=saved)), expected)

    def copy(self, source: VersionRef, ref: VersionRef, expected: str = "") -> tuple[str, int]:
        """Give a clone its parent's version ``source`` as its own durable version ``ref``.

        The two are hard links to one file; a file system without hard links gets a copy.
        """
        return self.save_link(ref, self.find(source), expected)

    def save_copy(self, ref: VersionRef, source: Path, expected: str) -> tuple[str, int]:
        """Save a copy of a file as a durable version."""
        return self._save_again(ref, source, _copy, expected)

    def save_link(self, ref: VersionRef, source: Path, expected: str) -> tuple[str, int]:
        """Save a file as a durable version, under a second name if possible."""
        return self._save_again(ref, source, _link, expected)

    def _save_again(
        self, ref: VersionRef, source: Path, write: Callable[[Path, Path], None], expected: str
    ) -> tuple[str, int]:
        target = self.path(ref, durable=True)
        found, size = self.write_file(target, lambda path: write(source, path), durable=True)
        if expected and found != expected:
            remove_file(target)
            raise CheckpointError(f"{source}: {DAMAGED}")
        return found, size

    def send(self, ref: VersionRef) -> None:
        """Do nothing: durable versions stay in the run folder."""

    def collect(self, trial: str = "") -> None:
        """Do nothing: durable versions are in the run folder."""

    def drop(self, ref: VersionRef) -> None:
        """Delete the file of a save, if there is one."""
        if self.memory.is_private():
            with contextlib.suppress(FileNotFoundError):
                self._spare(self.path(ref, durable=False))
        for path in (self.path(ref, durable=True), self._spilled(ref)):
            _remove(path)

    def tidy(self, needed: Iterable[VersionRef]) -> None:
        """Delete all version files, half-written files included, except the ``needed`` ones.

        Files that Hopfleet did not write stay.
        """
        kept = {path for ref in needed for path in self._names(ref)}
        for base in self._bases:
            for path in base.glob("*/*"):
                if path not in kept and OURS.fullmatch(path.relative_to(base).as_posix()):
                    _remove(path)
            for folder in base.glob("*/"):
                if folder.name not in (SPARE, SHARED):
                    with contextlib.suppress(OSError):  # the folder is not empty
                        remove_empty_folder(folder)
        self._tidy_shared()

    def shared_path(self, name: str) -> Path:
        """Return the file of a name that versions share."""
        return self.durable_folder / SHARED / f"{name}.safetensors"

    def _tidy_shared(self) -> None:
        """Delete shared files, half-written ones included, that no version refers to."""
        if found := [path for path in (self.durable_folder / SHARED).glob("*") if OURS_SHARED.fullmatch(path.name)]:
            versions = [path for base in self._bases for path in base.glob("*/*.safetensors")]
            kept = {self.shared_path(name) for version in versions for name in references(version)}
            for path in found:
                if path not in kept:
                    _remove(path)

    def forget(self, trial: str) -> None:
        """Delete everything that belongs to a trial."""
        for folder in self._bases:
            remove_folder(folder / trial, ignore_errors=True)

    def release(self) -> None:
        """Give back all shared memory: the experiment is over."""
        self.memory.release()
        for path in self.durable_folder.glob("*/hop-*.safetensors"):
            remove_file(path)

    @property
    def _bases(self) -> list[Path]:
        """Return the folders with versions; shared memory only if no other user can put files or links there."""
        return [self.durable_folder, *([self.shared_folder] if self.memory.is_private() else [])]

    def _names(self, ref: VersionRef) -> list[Path]:
        return [self.path(ref, durable=False), self.path(ref, durable=True), self._spilled(ref)]

    def _spilled(self, ref: VersionRef) -> Path:
        """Return the file of a version that is not durable, for when shared memory is short."""
        return self.durable_folder / ref.trial / f"hop-{ref.version:05d}{_suffix(ref)}"

    def _spare(self, path: Path) -> None:
        """Keep a few dropped files: writing to memory that was used before is twice as fast."""
        spares = self.shared_folder / SPARE
        make_folder(spares, private=True)
        size, kept = path.stat().st_size, [file.stat().st_size for file in os.scandir(spares)]
        if size >= SPARE_BYTES and len(kept) < SPARES and size + sum(kept) <= MOST_SPARE_BYTES:
            move(path, spares / f"{path.parent.name}-{path.name}")
        else:
            remove_file(path)

    def _over_spare(self, write: Callable[[Path], None]) -> Callable[[Path], None]:
        """Let ``write`` overwrite a spare file, if there is any."""

        def reuse(path: Path) -> None:
            with contextlib.suppress(StopIteration, FileNotFoundError):
                move(next((self.shared_folder / SPARE).iterdir()), path)
            write(path)

        return reuse


def references(path: Path) -> list[str]:
    """Return the names of the shared files that a version refers to; none if its file cannot be read."""
    with contextlib.suppress(OSError), open_plain(path, links=True) as file:
        return named_in(lambda start, end: file.read(end - start))
    return []


def named_in(read: Callable[[int, int], bytes]) -> list[str]:
    """Return the names of shared files in the header of a version; ``read`` returns bytes from start to end of it."""
    with contextlib.suppress(ValueError, AttributeError):
        length = int.from_bytes(read(0, 8), "little")
        if length <= LONGEST_HEADER:
            names: str = json.loads(read(8, 8 + length)).get("__metadata__", {}).get(SHARED, "")
            return names.split()
    return []


def check(path: Path, expected: str) -> None:
    """Raise CheckpointError unless a file has the SHA-256 ``expected``, if that is known."""
    try:
        if expected and digest(path) != expected:
            raise CheckpointError(f"{path}: {DAMAGED}")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error


def _remove(path: Path) -> None:
    """Delete a file, if there is one. A folder that someone has put in its place stays; ``verify`` names it."""
    with contextlib.suppress(IsADirectoryError):
        remove_file(path)


def _suffix(ref: VersionRef) -> str:
    assert ref.attempt is not None, f"{ref} has no file"
    # The names of files from before format 3 of the journal contain no number.
    return f"-{ref.attempt}.safetensors" if ref.attempt else ".safetensors"


def _copy(source: Path, target: Path) -> None:
    try:
        copy_file(source, target)
    except FileNotFoundError as error:
        raise CheckpointError(f"{source}: is gone") from error


def _link(source: Path, target: Path) -> None:
    try:
        link_or_copy(source, target)
    except FileNotFoundError as error:
        raise CheckpointError(f"{source}: is gone") from error
