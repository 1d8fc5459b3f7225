"""The replacement of a run by another one in the same folder: the earlier run is kept until the new one has begun.

The earlier run is moved into a folder inside the run folder. A refused run puts it back, and so does the next process
that locks the run folder after a crash. Each step is one rename, so that a crash at any time loses nothing.
"""

from __future__ import annotations

from pathlib import Path

from hopfleet.store.folder import RunFolder
from hopfleet.store.proof import ASIDE, LOCK, is_part
from hopfleet.support.files import MARKER, create_folder, move, remove_empty_folder, remove_folder

MOVING, REPLACED, OUTDATED = ASIDE
"""Folders with some parts of the earlier run, while the others are in the run folder; with the whole earlier run, while
all else in the run folder belongs to the new run; and with what can be deleted."""

KEPT = (LOCK, MARKER, *ASIDE)


def set_aside(folder: RunFolder) -> None:
    """Keep the run in a folder, if there is one, for ``put_back`` or ``drop``. The caller holds the folder's lock."""
    moving = folder.path / MOVING
    if parts := _parts(folder):
        create_folder(moving, private=True)
        for part in parts:
            move(part, moving / part.name)
        move(moving, folder.path / REPLACED)
    folder.new = True


def put_back(folder: RunFolder) -> bool:
    """Put a run back that was set aside, in place of anything written since; return whether there was one."""
    moving, replaced = folder.path / MOVING, folder.path / REPLACED
    if replaced.is_dir():
        folder.clear(keep=KEPT)
        move(replaced, moving)
    if found := moving.is_dir():
        for part in list(moving.iterdir()):
            move(part, folder.path / part.name)
        remove_empty_folder(moving)
        folder.new = False
    _delete(folder.path / OUTDATED)
    return found


def drop(folder: RunFolder) -> None:
    """Delete a run that was set aside: another one has taken its place."""
    replaced, outdated = folder.path / REPLACED, folder.path / OUTDATED
    if replaced.is_dir():
        move(replaced, outdated)
        _delete(outdated)


def _parts(folder: RunFolder) -> list[Path]:
    return [entry for entry in folder.path.iterdir() if is_part(entry.name) and entry.name not in KEPT]


def _delete(path: Path) -> None:
    remove_folder(path, ignore_errors=True)
