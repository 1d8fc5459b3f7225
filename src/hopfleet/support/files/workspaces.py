"""Folders with a marker of ours, and hidden folders in which something is built before it gets its name.

A marker says what a folder is, in which format, and has a random identity. It is read through a descriptor of the
folder, so that the folder cannot be exchanged in between. No folder is deleted because of its name alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hopfleet.support.files.reading import open_plain
from hopfleet.support.files.writing import (
    check_own,
    create_folder,
    new_folder,
    open_folder,
    remove_folder,
    write_once,
)

MARKER, FORMAT = "hopfleet.json", 1
"""The name and the format of markers."""

MARKER_BYTES = 4096

WORKSPACE = "workspace"
"""What the markers of hidden folders say."""


def mark(folder: Path, kind: str) -> None:
    """Give a folder a marker, unless it has one."""
    write_once(folder / MARKER, json.dumps({"hopfleet": kind, "format": FORMAT, "id": secrets.token_hex(16)}).encode())


def mark_of(place: int) -> str:
    """Return what the marker says of the folder open at a descriptor; nothing if there is no marker of ours."""
    try:
        with open_plain(MARKER, place=place) as file:
            found: Any = json.loads(file.read(MARKER_BYTES))
    except (OSError, ValueError, RecursionError):
        return ""
    return str(found.get("hopfleet", "")) if isinstance(found, dict) else ""


def claim(path: Path, kind: str) -> int:
    """Make a private folder with a marker, or take the one that an earlier process left; return a locked descriptor.

    Raise BlockingIOError if another process has the lock, and OSError if a link, a folder of another user or a folder
    without the marker is in the way.
    """
    with contextlib.suppress(FileExistsError):
        create_folder(path, private=True)
    place = open_folder(path)
    try:
        check_own(place, path)
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.listdir(place):
            mark(path, kind)
        if mark_of(place) != kind:
            raise OSError(errno.EEXIST, f"holds files and is not a {kind} that Hopfleet has made", str(path))
    except BaseException:
        os.close(place)
        raise
    return place


@contextlib.contextmanager
def workspace(parent: Path, prefix: str) -> Iterator[Path]:
    """Create a folder whose name begins with ``prefix``, for this user alone, and remove it on exit."""
    path = new_folder(prefix, parent)
    handle = open_folder(path)
    try:
        # The lock ends with the process and so distinguishes a folder in use from one left behind.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mark(path, WORKSPACE)
        yield path
    finally:
        remove_folder(path, ignore_errors=True)
        os.close(handle)


def sweep(parent: Path, prefix: str) -> None:
    """Remove folders whose names begin with ``prefix`` and that killed processes of this user left behind.

    Folders without a marker stay, whatever their names.
    """
    for path in parent.iterdir():
        if not path.name.startswith(prefix):
            continue
        with contextlib.suppress(OSError):
            handle = open_folder(path)
            try:
                if mark_of(handle) == WORKSPACE:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_folder(path, ignore_errors=True)
            finally:
                os.close(handle)


def hidden(path: Path) -> str:
    """Return how the names of hidden folders beside a path begin, in which its content is built."""
    return f".{path.name}.partial-"


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Create a folder in a hidden one beside a path, after those that killed processes have left there are removed."""
    sweep(path.parent, hidden(path))
    with workspace(path.parent, hidden(path)) as folder:
        made = folder / "made"
        create_folder(made, private=True)
        yield made
