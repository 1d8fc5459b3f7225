"""The shared memory of an experiment on one machine: a private folder on tmpfs, or in the temporary folder.

The folder holds versions that go from worker to worker, and batches that workers share. The folder's name derives from
the checkpoints folder, and a file in it names that folder, so that the memory of deleted experiments can be given back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

TMPFS = Path("/dev/shm")

BATCHES = "batches-"
"""Prefix of the names of folders with transformed batches."""

OWNER = "owner"
"""Name of the file that contains the path of the checkpoints folder."""

RESERVE_BYTES = 16 << 20
"""Bytes that must stay free beside four times the bytes to write."""


class SharedMemory:
    """The folder in shared memory that belongs to a checkpoints folder; on a cluster, one per node."""

    def __init__(self, checkpoints: Path, tmpfs: Path = TMPFS, *, node: str = "") -> None:
        self._checkpoints = checkpoints
        key = hashlib.sha256(str(checkpoints.resolve()).encode()).hexdigest()[:16]
        #: Whether the folder is on tmpfs rather than on a disk.
        self.in_memory = tmpfs.is_dir() and os.access(tmpfs, os.W_OK)
        base = tmpfs if self.in_memory else Path(tempfile.gettempdir())
        self.folder = base / f"hopfleet-{os.getuid()}-{key}{node and f'-{node[:12]}'}"

    def create(self) -> None:
        """Create the folder, readable for this user only."""
        if not (self.folder / OWNER).exists():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.folder / OWNER).write_text(str(self._checkpoints.resolve()))

    def has_room(self, size: int) -> bool:
        """Whether the folder is private and has room for a file of ``size`` bytes. Create the folder if needed."""
        with contextlib.suppress(OSError):
            self.create()
            return self.is_private() and shutil.disk_usage(self.folder).free > 4 * size + RESERVE_BYTES
        return False

    def is_private(self) -> bool:
        """Whether only this user can write into the folder. Other users may have created one of the same name."""
        with contextlib.suppress(OSError):
            found = self.folder.lstat()
            return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        return False

    def release(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def batches(self, run: str) -> Path | None:
        """Return the folder for batches that the workers of one run share; None if there is no tmpfs with room."""
        return self.folder / f"{BATCHES}{run}" if self.in_memory and self.has_room(0) else None

    def clear_batches(self) -> None:
        """Delete the batches of this run and of earlier runs."""
        for folder in self.folder.glob(f"{BATCHES}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Delete the folders of all experiments of this user whose checkpoints folder is gone."""
        for folder in self.folder.parent.glob(f"hopfleet-{os.getuid()}-*"):
            with contextlib.suppress(OSError):
                if not Path((folder / OWNER).read_text()).exists():
                    shutil.rmtree(folder)
