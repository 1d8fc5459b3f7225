"""The replacement of a run by another one in the same folder: the earlier run is kept until the new one has begun.

The earlier run is moved into a folder inside the run folder. A refused run puts it back, and so does the next process
that locks the run folder after a crash. Each step is one rename, so that a crash at any time loses nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from hopfleet.store.folder import LOCK, MARKER, RunFolder

MOVING = ".moving"
"""Holds some parts of the earlier run; the others are in the run folder."""

REPLACED = ".replaced"
"""Holds the whole earlier run; what else is in the run folder belongs to the new run."""

OUTDATED = ".outdated"
"""Holds what can be deleted."""

KEPT = (LOCK, MARKER, MOVING, REPLACED, OUTDATED)


def set_aside(folder: RunFolder) -> None:
    """Keep the run in a folder, if there is one, for ``put_back`` or ``drop``. The caller holds the folder's lock."""
    moving = folder.path / MOVING
    if parts := _parts(folder):
        moving.mkdir(mode=0o700)
        for part in parts:
            part.rename(moving / part.name)
        moving.rename(folder.path / REPLACED)
    folder.clear(keep=KEPT)


def put_back(folder: RunFolder) -> bool:
    """Put a run back that was set aside, in place of anything written since; return whether there was one."""
    moving, replaced = folder.path / MOVING, folder.path / REPLACED
    if replaced.is_dir():
        folder.clear(keep=KEPT)
        replaced.rename(moving)
    if found := moving.is_dir():
        for part in list(moving.iterdir()):
            part.rename(folder.path / part.name)
        moving.rmdir()
    _delete(folder.path / OUTDATED)
    return found


def drop(folder: RunFolder) -> None:
    """Delete a run that was set aside: another one has taken its place."""
    replaced, outdated = folder.path / REPLACED, folder.path / OUTDATED
    if replaced.is_dir():
        replaced.rename(outdated)
        _delete(outdated)


def _parts(folder: RunFolder) -> list[Path]:
    return [entry for entry in folder.path.iterdir() if entry.name not in KEPT]


def _delete(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
