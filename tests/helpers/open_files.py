"""Files that this process has open, and files that it has waited for until they were on the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

DESCRIPTORS = Path("/proc/self/fd")
"""Where Linux tells which files a process has open."""


def opened(path: Path) -> list[str]:
    """Return the open files of this process below a folder."""
    targets = [str(link.readlink()) for link in DESCRIPTORS.iterdir() if link.is_symlink()]
    return [target for target in targets if target.startswith(str(path))]


@contextlib.contextmanager
def synced() -> Iterator[list[str]]:
    """Yield a list of the names of files and folders that are synced from now on."""
    names, fsync = list[str](), os.fsync

    def noted(descriptor: int) -> None:
        names.append((DESCRIPTORS / str(descriptor)).readlink().name)
        fsync(descriptor)

    with patch.object(os, "fsync", noted):
        yield names
