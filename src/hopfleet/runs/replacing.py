"""Folders that are written again: one that Hopfleet wrote, and that nothing has changed since, may be replaced.

A new folder is made beside the old one and takes its place at once. A bundle describes its own files. The record of a
folder of predictions lies beside it, because some programs read every file in a folder of Parquet files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from hopfleet.errors import UsageError
from hopfleet.support.files import (
    digest,
    exchange,
    json_text,
    move,
    open_plain,
    parsed_json,
    set_mode,
    write_text,
)

FORMAT = "hopfleet-predictions"


def check_place(path: Path, given: str, objection: Callable[[Path], str]) -> None:
    """Raise UsageError unless a folder may be written: to a new name, or instead of an empty or replaceable folder.

    ``objection`` says why a folder with files may not be replaced, and returns nothing if it may; ``given`` is the path
    as the user gave it.
    """
    if not path.name:
        raise UsageError(f"{given}: is a folder that cannot be replaced; give the name of a new folder")
    if path.is_symlink():
        why = "is a link"
    elif not path.exists():
        return
    elif not path.is_dir():
        why = "is a file"
    else:
        why = objection(path) if any(path.iterdir()) else ""
    if why:
        raise UsageError(f"{given}: exists already and {why}; remove it, or give the name of a new folder")


def put_in_place(made: Path, path: Path, mask: int = 0o777) -> None:
    """Give a finished folder its name. A folder with files that had the name is at ``made`` then.

    The new folder gets the permissions of the old one, as far as ``mask`` allows.
    """
    if path.is_dir():
        set_mode(made, path.stat().st_mode & mask)
    if path.is_dir() and any(path.iterdir()):
        exchange(made, path)
    else:
        move(made, path)


def difference(folder: Path, files: Mapping[str, str], besides: Collection[str] = ()) -> str:
    """Return how a folder differs from what was written, given the digests of its files; nothing if it does not."""
    found = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    there = {path.relative_to(folder).as_posix() for path in found} - set(besides)
    if added := sorted(there - set(files)):
        return f"has the file {added[0]}, which Hopfleet did not write"
    if removed := sorted(set(files) - there):
        return f"lacks the file {removed[0]}, which Hopfleet wrote"
    for name, wanted in files.items():
        path = folder / name
        if path.is_symlink() or not path.is_file() or digest(path) != wanted:
            return f"has the file {name}, which has changed since Hopfleet wrote it"
    return ""


# --------------------------------------------------------------------------------------------------------- predictions


def put_predictions(made: Path, path: Path, given: str) -> None:
    """Put a finished folder of predictions into place, and record it. Raise UsageError if the place is not free."""
    check_predictions(path, given)
    files = {each.name: digest(each) for each in sorted(made.iterdir())}
    # A process that is killed in between leaves a record that is true of the old folder and of the new one.
    _record(path, [*_recorded(path), files])
    put_in_place(made, path)
    _record(path, [files])


def check_predictions(path: Path, given: str) -> None:
    """Raise UsageError unless predictions may be written to a folder."""
    check_place(path, given, _changed)


def _changed(folder: Path) -> str:
    found = [difference(folder, files) for files in _recorded(folder)]
    if not found:
        return "is no folder of predictions that Hopfleet wrote"
    return "" if "" in found else found[-1]


def _record_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.written")


def _record(path: Path, written: list[dict[str, str]]) -> None:
    write_text(_record_file(path), json_text({"format": FORMAT, "written": written}), durable=False)


def _recorded(path: Path) -> list[dict[str, str]]:
    """Return the digests of the files of a folder, by name, for each state in which Hopfleet may have left it."""
    try:
        with open_plain(_record_file(path), own=True) as file:  # others could name files that they want replaced
            content = parsed_json(file.read())
        if content["format"] != FORMAT:
            return []
        return [{str(name): str(value) for name, value in files.items()} for files in content["written"]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
