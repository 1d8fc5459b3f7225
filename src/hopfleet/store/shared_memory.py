"""The shared memory of an experiment on one machine: a private folder on tmpfs, or in the temporary folder.

The folder holds versions that go from worker to worker, and batches that workers share. All users may create files
beside the folder, so its name cannot be guessed: it derives from the path of the checkpoints folder and from a random
key, which a file in the checkpoints folder keeps. The folder is used only if it is a real folder of this user with mode
0700. A file in it names the checkpoints folder, so that the memory of deleted experiments can be given back. A link
leads to the folder with the files that versions share, which are always durable.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from hopfleet.domain.version_ref import SHARED
from hopfleet.support.files import (
    create_folder,
    is_private,
    link_folder,
    make_folder,
    open_plain,
    remove_folder,
    temporary_place,
    write_once,
)
from hopfleet.support.processes import is_over

TMPFS = Path("/dev/shm")

BATCHES = "batches-"
"""Prefix of the names of folders with transformed batches."""

OWNER = "owner"
"""Name of the file that contains the path of the checkpoints folder."""

PROCESS = "process"
"""Name of the file that contains the identity of the process that the folder ends with, on a cluster."""

KEY = ".shared-memory"
"""Name of the file in the checkpoints folder that contains the random key."""

KEY_LENGTH, NAME_LENGTH, NODE_LENGTH = 32, 16, 12
"""Characters of the key, of what the name derives from it, and of a node in the name."""

OWNER_BYTES = 4096
"""Bytes of the longest path in a file."""

KEY_LOOKS, KEY_SECONDS = 100, 0.01
"""How often to look for a key that another process is writing, and the seconds between two looks."""

RESERVE_BYTES = 16 << 20
"""Bytes that must stay free beside four times the bytes to write."""


class SharedMemory:
    """The folder in shared memory that belongs to a checkpoints folder; on a cluster, one per node."""

    def __init__(self, checkpoints: Path, tmpfs: Path = TMPFS, *, node: str = "") -> None:
        self._checkpoints = checkpoints
        self._node = node
        #: Whether the folder is on tmpfs rather than on a disk.
        self.in_memory = tmpfs.is_dir() and os.access(tmpfs, os.W_OK)
        self._base = tmpfs if self.in_memory else Path(temporary_place())

    @functools.cached_property
    def folder(self) -> Path:
        """Return the folder, which may not exist yet."""
        return self._base / f"{self._name}{self._node and f'-{self._node[:NODE_LENGTH]}'}"

    @functools.cached_property
    def _name(self) -> str:
        where = f"{_key(self._checkpoints)} {self._checkpoints.resolve()}"
        return f"hopfleet-{os.getuid()}-{hashlib.sha256(os.fsencode(where)).hexdigest()[:NAME_LENGTH]}"

    def create(self, process: str = "") -> None:
        """Create the folder, accessible to this user only. Raise OSError if another user's folder is in its place.

        If the identity of a ``process`` is given, the folder ends with that process: see ``sweep_lost``.
        """
        if not self.is_private():
            create_folder(self.folder, private=True)
        write_once(self.folder / OWNER, os.fsencode(self._checkpoints.resolve()))
        if process:
            write_once(self.folder / PROCESS, process.encode())
        if (shared := self._checkpoints / SHARED).is_dir():
            with contextlib.suppress(FileExistsError):
                link_folder(self.folder / SHARED, shared.resolve())

    def has_room(self, size: int) -> bool:
        """Whether the folder is private and has room for a file of ``size`` bytes. Create the folder if needed."""
        with contextlib.suppress(OSError):
            self.create()
            return self.is_private() and shutil.disk_usage(self.folder).free > 4 * size + RESERVE_BYTES
        return False

    def is_private(self) -> bool:
        """Whether only this user can write into the folder. Other users may have created one of the same name."""
        return is_private(self.folder)

    def release(self) -> None:
        """Delete the folder."""
        if self.is_private():
            remove_folder(self.folder, ignore_errors=True)

    def batches(self, run: str) -> Path | None:
        """Return the folder for batches that the workers of one run share; None if there is no tmpfs with room."""
        return self.folder / f"{BATCHES}{run}" if self.in_memory and self.has_room(0) else None

    def clear_batches(self) -> None:
        """Delete the batches of this run and of earlier runs."""
        if self.is_private():
            for folder in self.folder.glob(f"{BATCHES}*"):
                remove_folder(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Delete the folders of this user that no experiment needs: those whose checkpoints folder is gone.

        So are folders of these checkpoints with a name that an earlier release gave them.
        """
        here = str(self._checkpoints.resolve())
        for folder, owner in _owned(self._base):
            if not Path(owner).exists() or (owner == here and not folder.name.startswith(self._name)):
                remove_folder(folder, ignore_errors=True)

    def sweep_lost(self) -> None:
        """Delete the folders of this user whose process has ended: those of lost nodes of a cluster."""
        for folder, _ in _owned(self._base):
            with contextlib.suppress(OSError):
                if is_over(_read(folder / PROCESS)):
                    remove_folder(folder, ignore_errors=True)


def _key(checkpoints: Path) -> str:
    """Return the random key of a checkpoints folder, creating the key if there is none.

    Of several processes that create the key at once, one succeeds, and the others read what it wrote.
    """
    path = checkpoints / KEY
    with contextlib.suppress(OSError):
        make_folder(checkpoints, private=True)
        write_once(path, secrets.token_hex(KEY_LENGTH // 2).encode())
        for _ in range(KEY_LOOKS):
            if len(key := _read(path)) == KEY_LENGTH:
                return key
            time.sleep(KEY_SECONDS)
    return ""  # a disk that takes no file: the name can be guessed, and is still used only if the folder is private


def _read(path: Path) -> str:
    with open_plain(path) as file:
        return os.fsdecode(file.read(OWNER_BYTES))


def _owned(base: Path) -> Iterator[tuple[Path, str]]:
    """Yield the private folders of this user, and the checkpoints folder that each belongs to."""
    for folder in base.glob(f"hopfleet-{os.getuid()}-*"):
        if is_private(folder):
            with contextlib.suppress(OSError):
                yield folder, _read(folder / OWNER)
