"""Hidden folders in which something is built before it gets its name; those of killed processes are removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def workspace(parent: Path, prefix: str) -> Iterator[Path]:
    """Create a folder whose name begins with ``prefix``, for this user alone, and remove it on exit."""
    path = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    handle = os.open(path, os.O_RDONLY)
    try:
        # The lock ends with the process and so distinguishes a folder in use from one left behind.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def sweep(parent: Path, prefix: str) -> None:
    """Remove folders whose names begin with ``prefix`` and that killed processes left behind."""
    for path in parent.iterdir():
        if not path.name.startswith(prefix):
            continue
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


def hidden(path: Path) -> str:
    """Return how the names of hidden folders beside a path begin, in which its content is built."""
    return f".{path.name}.partial-"


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Create a hidden folder beside a path, after those that killed processes have left there are removed."""
    sweep(path.parent, hidden(path))
    with workspace(path.parent, hidden(path)) as folder:
        yield folder
