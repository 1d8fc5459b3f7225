"""Files that this process has open, and files that it has waited for until they were on the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest


def opened(path: Path) -> list[str]:
    """Return the open files of this process below a folder. Only Linux tells."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return [target for target in targets if target.startswith(str(path))]


@pytest.fixture
def synced() -> Iterator[list[str]]:
    """Return a list of the names of files and folders that are synced."""
    names, fsync = list[str](), os.fsync

    def noted(descriptor: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    with patch.object(os, "fsync", noted):
        yield names
