"""The folder that a preparation fills: what it holds already, and how the finished data sets get there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from hopfleet.data import manifest
from hopfleet.data.dataset import open_dataset
from hopfleet.data.etl.recipe import RECIPE
from hopfleet.data.folders import Folder, LocalFolder, RemoteFolder, why
from hopfleet.errors import DataChanged, DataError
from hopfleet.support.files import (
    digest,
    exchange,
    has_folders,
    make_folder,
    move,
    parsed_json,
    read_bytes,
    sync,
    write_bytes,
)

PREPARED = "prepared.json"
"""The description of a preparation."""

PREPARING = "preparing.json"
"""A file in a remote folder that is being filled; without it, a folder with strange files is not touched."""


def find_existing(target: Folder, job: Mapping[str, Any], overwrite: bool) -> Any:
    """Return what the target holds if the same call has made it; None if it is empty or may be replaced."""
    if not target.has_entries():
        return None
    before = _description(target, checked=not overwrite)
    if before is None and isinstance(target, RemoteFolder) and _is_unfinished(target):
        return None
    if before is None and not _is_dataset(target):
        raise DataError(
            f"{target.url}: is not empty and is not a Hopfleet data set, so it is not overwritten; give another folder"
        )
    if overwrite:
        if isinstance(target, LocalFolder):
            target.check_replaceable()
        return None
    changes = ["another preparation"] if before is None else _changes(before, job)
    if changes:
        _refuse_change(target, changes)
    return open_prepared(target)


def is_touched(target: Folder, job: Mapping[str, Any]) -> bool:
    """Whether a folder holds what the same call has made of files that were written since, as large as before."""
    if not isinstance(target, LocalFolder) or not target.has_entries():
        return False
    before = _description(target, checked=False)
    if before is None or _changes(before, job) != ["source"]:
        return False
    one, other = (dict(content["source"]) for content in (before, json.loads(json.dumps(job, default=str))))
    if "files" not in one or "files" not in other:
        return False
    sizes = [[file[:2] for file in content.pop("files")] for content in (one, other)]
    return one == other and sizes[0] == sizes[1]


def keep_same(built: Path, target: Folder) -> None:
    """Keep what the target holds, if the same was made of touched files; raise DataChanged otherwise."""
    assert isinstance(target, LocalFolder)
    names = parsed_json(read_bytes(built / PREPARED))["splits"] or ["."]
    # A recipe belongs to all splits of a preparation or to none.
    parts = [name for name in (manifest.FILE, RECIPE) if (built / names[0] / name).exists()]
    files = [Path(name) / part for name in names for part in parts]
    if any(digest(built / file) != digest(target.path / file) for file in files):
        _refuse_change(target, ["source"])
    write_bytes(target.path / PREPARED, read_bytes(built / PREPARED), durable=True)


def _changes(before: Mapping[str, Any], job: Mapping[str, Any]) -> list[str]:
    now = json.loads(json.dumps(job, default=str))
    return [name for name, value in now.items() if before.get(name) != value]


def _refuse_change(target: Folder, changes: list[str]) -> NoReturn:
    raise DataChanged(
        f"{target.url}: already holds a data set that differs ({', '.join(changes)}); pass overwrite=True to replace "
        "it, or give another folder",
        changes,
    )


def _description(target: Folder, *, checked: bool = True) -> dict[str, Any] | None:
    """Return the description of a preparation; None if there is none. Unless ``checked``, None if it is damaged, too.

    Raise DataError if it is damaged.
    """
    try:
        if isinstance(target, LocalFolder):
            text = read_bytes(target.path / PREPARED)
        else:
            files, path = target.filesystem()
            text = files.cat_file(f"{path}/{PREPARED}")
        content = parsed_json(text, checked=checked)
        if not isinstance(content, dict) or content.get("format") != "hopfleet-prepared":
            raise ValueError("it does not describe a preparation")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if not checked:
            return None
        raise DataError(
            f"{target.url}/{PREPARED}: is damaged ({error}); pass overwrite=True to prepare the data again"
        ) from error
    return content


def _is_unfinished(target: RemoteFolder) -> bool:
    files, path = target.filesystem()
    return bool(files.exists(f"{path}/{PREPARING}"))


def _is_dataset(target: Folder) -> bool:
    try:
        return manifest.is_ours(target.manifest())
    except DataError:
        return False


def open_prepared(target: Folder) -> Any:
    content = _description(target)
    assert content is not None
    if content["splits"] is None:
        return open_dataset(target.url)
    return {name: open_dataset(f"{target.url}/{name}") for name in content["splits"]}


def put_in_place(built: Path, target: Folder, overwrite: bool) -> None:
    """Move the finished folder into place, or upload it."""
    if isinstance(target, RemoteFolder):
        _upload(built, target)
        return
    place = target.path.resolve()
    make_folder(place.parent)
    if place.exists() and any(place.iterdir()):
        if not overwrite:
            raise DataError(f"{place}: was filled by another process in the meantime; give another folder")
        exchange(built, place)  # the workspace, and with it what was replaced, is removed
    else:
        move(built, place)
    sync(place.parent)


def clear(target: RemoteFolder) -> None:
    """Delete the files of a remote folder, and mark it as being filled."""
    files, path = target.filesystem()
    try:
        if files.exists(path):
            files.rm(path, recursive=True)
        if has_folders(files):
            files.makedirs(path, exist_ok=True)
        files.pipe_file(f"{path}/{PREPARING}", b"{}\n")
    except Exception as error:
        _refuse(target, error)


def _refuse(target: RemoteFolder, error: Exception) -> NoReturn:
    if isinstance(error, FileNotFoundError):
        raise DataError(f"{target.url}: there is no such bucket; create the bucket, or correct its name") from error
    raise DataError(f"{target.url}: {why(error, 'written')}") from error


def _upload(built: Path, target: RemoteFolder) -> None:
    """Upload all files, descriptions last, after deleting old ones: no description is ever wrong.

    Partitions that nodes of a cluster have uploaded are there already.
    """
    files, path = target.filesystem()
    if any(built.rglob("*.arrow")):
        clear(target)
    names = sorted(str(each.relative_to(built)) for each in built.rglob("*") if each.is_file())
    names.sort(key=lambda name: (name == PREPARED, name.endswith(manifest.FILE)))
    try:
        for name in names:
            if has_folders(files):
                files.makedirs(f"{path}/{Path(name).parent}", exist_ok=True)
            files.put_file(str(built / name), f"{path}/{name}")
        files.rm_file(f"{path}/{PREPARING}")
    except Exception as error:
        _refuse(target, error)
