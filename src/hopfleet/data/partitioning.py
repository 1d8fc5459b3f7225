"""Creating a data set: rows are read once, dealt to partitions, and moved into place atomically.

The data set is built in a hidden folder beside the target, which is renamed at the end, so that the target is either
complete or absent. A hidden folder left behind by a killed process is removed by the next call for the same target.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from hopfleet.data import manifest
from hopfleet.data.cells import Cells
from hopfleet.data.columns import NoRows
from hopfleet.data.dataset import Dataset
from hopfleet.data.files import write_partition
from hopfleet.data.folders import Folder, LocalFolder, RemoteFolder, open_folder, why
from hopfleet.data.live import ROW, Live
from hopfleet.data.manifest import LiveItems, Manifest, partition_name, read_manifest
from hopfleet.data.schema import Chunk, Schema
from hopfleet.data.sources import open_source
from hopfleet.data.spill import Evenly, Sized, Spill
from hopfleet.domain.signatures import checked_but
from hopfleet.errors import DataChanged, DataError
from hopfleet.planner.nodes import capacity_rows
from hopfleet.support.files import (
    copy_file,
    create_folder,
    has_folders,
    hidden,
    link_file,
    make_folder,
    move,
    remove_folder,
    sweep,
    sync,
    temporary_place,
    trouble,
    workspace,
    write_text,
)
from hopfleet.support.machine import release_memory


@checked_but("partitions", "capacities", "seed")
def partition(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    partitions: int | None = None,
    capacities: Sequence[float] | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Dataset:
    """Shuffle the rows of ``source`` into the partitions of a new data set in ``folder``.

    ``source`` is a dict of arrays, tensors or lists; a tuple of arrays such as (X, y); a pandas DataFrame; an Arrow
    table; the path of a Parquet file or of a folder of Parquet files; a data set with ``__len__`` and ``__getitem__``;
    or an iterable of rows, which may be larger than memory. A row is a dict, a pair (columns "x" and "y"), a longer
    tuple (columns "0", "1", ...) or a single value ("x"); a tuple of arrays is named likewise. Of
    ``hop.live(dataset)``, only the numbers of the rows are stored. ``folder`` is a local path or an fsspec URL.

    By default there are 8 partitions, whose sizes differ by at most one row. ``capacities`` holds a number for each
    partition, such as the speed of the worker that will read it; sizes are proportional to these numbers, and every
    partition has at least one row. A stream then passes through temporary files twice, because the number of rows is
    known only at its end.

    The result depends only on the rows and these numbers, not on the kind of source. An interrupted call leaves nothing
    in ``folder``. ``progress`` is called with the number of rows read so far.

    If ``folder`` already holds the result of the same call with the same rows, nothing changes. The rows are read again
    to find that out. If anything differs, DataChanged says what; ``overwrite=True`` then replaces the data set. Only a
    Hopfleet data set is ever replaced.
    """
    partitions, capacities = _shares(partitions, capacities)
    if not isinstance(seed, Integral):
        raise DataError(f"seed={seed!r}: must be an integer")
    seed = operator.index(seed)
    target = open_folder(folder)
    before = _existing(target, overwrite)
    items = source if isinstance(source, Live) else None
    rows = open_source(source if items is None else {ROW: np.arange(len(items))})
    if rows.rows is not None:
        _check_rows(rows.rows, partitions)
        if before is not None:
            _refuse_changes(target, before.outline_changes(rows.rows, partitions, seed))
    live = None if items is None else items.describe()

    with _workspace(target) as workspace:
        schema = Schema()
        chunks, total = _accepted(rows.chunks, schema, progress), rows.rows
        if capacities is not None and total is None:
            waiting = Spill(workspace / "waiting", Evenly(1, seed))
            for cells in chunks:
                waiting.add(cells)
            chunks, total = waiting.chunks(), schema.rows
            _check_rows(total, partitions)
        dealer = Evenly(partitions, seed) if capacities is None else Sized(capacity_rows(total or 0, capacities), seed)
        spill = Spill(workspace / "spill", dealer)
        for cells in chunks:
            spill.add(cells)
        _check_rows(schema.rows, partitions)
        built = workspace / "built"
        create_folder(built)
        try:
            made = _write(built, spill, schema, seed, live)
        except OSError as error:
            raise DataError(trouble(workspace.parent, error)) from error
        del spill
        release_memory()
        remove_folder(workspace / "spill", ignore_errors=True)
        before = _existing(target, overwrite)
        if before is not None:
            _refuse_changes(target, before.changes(made))
            if _intact(existing := Dataset(target, before, items)):
                return existing
        if isinstance(target, LocalFolder):
            _move(built, target.path.resolve(), workspace)
        else:
            _upload(built, made, target)
    return Dataset(target, made, items)


def join(sets: Sequence[Dataset], folder: Path) -> Dataset:
    """Make a data set in ``folder`` that has all partitions of several data sets, in order. No row is copied.

    Partition files are links to those of the data sets. The seed and the recipe are those of the first data set.
    Raise DataChanged if ``folder`` already holds another data set.
    """
    first, target = sets[0], LocalFolder(folder)
    for data in sets:
        _check_columns(first, data)
    files = [(data.file(index), part) for data in sets for index, part in enumerate(data.manifest.partitions)]
    parts = [replace(part, name=partition_name(index)) for index, (_, part) in enumerate(files)]
    made = Manifest(first.columns, tuple(parts), first.seed)
    before = _existing(target, overwrite=False)
    if before is not None:
        _refuse_changes(target, before.changes(made))
        if _intact(existing := Dataset(target, before)):
            return existing
    with _workspace(target) as workspace:
        built = workspace / "built"
        create_folder(built)
        try:
            for part, (file, _) in zip(parts, files, strict=True):
                link_file(file.resolve(), built / part.name)
            for file in sorted(Path(first.url).glob("recipe.*")):
                copy_file(file, built / file.name)
            _write_manifest(built, made)
        except OSError as error:
            raise DataError(trouble(folder, error)) from error
        _move(built, folder.resolve(), workspace)
    return Dataset(target, made)


def _check_columns(first: Dataset, other: Dataset) -> None:
    """Raise DataError unless the partitions of two data sets can be those of one."""
    for data in (first, other):
        if data.is_live:
            raise DataError(f"{data.url}: is a live data set, which cannot be joined with another one")
    mine, theirs = first.columns, other.columns
    differ = [
        f"{name}: {mine.get(name, 'missing')} and {theirs.get(name, 'missing')}"
        for name in dict.fromkeys([*mine, *theirs])
        if mine.get(name) != theirs.get(name)
    ]
    if not differ and list(mine) != list(theirs):
        differ = [f"the order is {', '.join(mine)} and {', '.join(theirs)}"]
    if differ:
        raise DataError(
            f"{first.url} and {other.url}: cannot be joined, because their columns differ ({'; '.join(differ)}); "
            "make both with the same columns and types"
        )


def _shares(partitions: int | None, capacities: Sequence[float] | None) -> tuple[int, list[float] | None]:
    """Return the number of partitions and their capacities, or None for equal sizes."""
    if partitions is None:
        partitions = 8 if capacities is None else len(_sized(capacities))
    if not isinstance(partitions, Integral) or operator.index(partitions) < 1:
        raise DataError(f"partitions={partitions!r}: must be an integer of at least 1")
    partitions = operator.index(partitions)
    if capacities is None:
        return partitions, None
    if len(_sized(capacities)) != partitions:
        raise DataError(
            f"capacities={list(capacities)}: must have one number for each of partitions={partitions}; "
            "leave out partitions"
        )
    for index, capacity in enumerate(capacities):
        if not (isinstance(capacity, (int, float, np.number)) and 0 < capacity < math.inf):
            raise DataError(
                f"capacities[{index}]={capacity!r}: must be a finite number above 0; leave out idle workers"
            )
    return partitions, [float(capacity) for capacity in capacities]


def _sized(capacities: Any) -> Sequence[float]:
    if isinstance(capacities, str) or not hasattr(capacities, "__len__"):
        raise DataError(f"capacities={capacities!r}: must be a list with one number above 0 for each partition")
    return capacities  # type: ignore[no-any-return]


def _accepted(
    chunks: Iterator[Chunk], schema: Schema, progress: Callable[[int], None] | None
) -> Iterator[dict[str, Cells]]:
    for chunk in chunks:
        yield schema.accept(chunk)
        if progress is not None:
            progress(schema.rows)


def _check_rows(rows: int, partitions: int) -> None:
    if not rows:
        raise NoRows("the source is empty; it must have at least one row per partition")
    if rows < partitions:
        raise DataError(f"partitions={partitions}: must be at most the number of rows, {rows}")


def _existing(target: Folder, overwrite: bool) -> Manifest | None:
    """Return the manifest of the data set in ``target``, or None if the folder is empty or may be overwritten.

    Raise DataError if the folder holds anything else.
    """
    if not target.has_entries():
        return None
    try:
        text = target.manifest()
    except DataError:
        text = b""
    if not manifest.is_ours(text):
        raise DataError(
            f"{target.url}: is not empty and is not a Hopfleet data set, so it is not overwritten; give another folder"
        )
    if overwrite:
        if isinstance(target, LocalFolder):
            target.check_replaceable()
        return None
    try:
        return read_manifest(text, f"{target.url}/{manifest.FILE}")
    except DataError as error:
        raise DataError(f"{error}: pass overwrite=True to replace the data set, or give another folder") from error


def _refuse_changes(target: Folder, changes: list[str]) -> None:
    if changes:
        raise DataChanged(
            f"{target.url}: already holds a data set that differs ({', '.join(changes)}); pass overwrite=True to "
            "replace it, or give another folder",
            changes,
        )


def _intact(dataset: Dataset) -> bool:
    """Whether the files of a data set are complete; those on this host are compared with their checksums."""
    try:
        dataset.probe() if "://" in dataset.url else dataset.check(checksums=True)
    except DataError:
        return False
    return True


def _write(built: Path, spill: Spill, schema: Schema, seed: int, live: LiveItems | None) -> Manifest:
    """Write the partition files and, last, the manifest."""
    files = []
    for index in range(len(spill.counts)):
        path = built / partition_name(index)
        files.append(write_partition(path, schema.columns, spill.partition(index, schema.columns), sync=True))
    made = Manifest(schema.columns, tuple(files), seed, live)
    _write_manifest(built, made)
    return made


def _write_manifest(built: Path, made: Manifest) -> None:
    write_text(built / manifest.FILE, made.to_json(), durable=True)


def _move(built: Path, target: Path, workspace: Path) -> None:
    """Move the finished folder into place. An existing target is empty or a Hopfleet data set."""
    replaced = workspace / "replaced"
    if target.exists() and any(target.iterdir()):
        move(target, replaced)
    try:
        move(built, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            move(replaced, target)
        raise DataError(
            f"{target}: was filled by another process in the meantime ({error}); give another folder"
        ) from error
    sync(target.parent)


def _upload(built: Path, made: Manifest, target: RemoteFolder) -> None:
    """Upload the partitions and, last, the manifest, after deleting old files: no manifest is ever wrong."""
    files, path = target.filesystem()
    if target.has_entries():
        files.rm(path, recursive=True)
    try:
        if has_folders(files):  # elsewhere a mistyped bucket would be created
            files.makedirs(path, exist_ok=True)
        for name in [*(part.name for part in made.partitions), manifest.FILE]:
            files.put_file(str(built / name), f"{path}/{name}")
    except FileNotFoundError as error:
        raise DataError(f"{target.url}: there is no such bucket; create the bucket, or correct its name") from error
    except BaseException as error:
        with contextlib.suppress(Exception):
            files.rm(path, recursive=True)
        if isinstance(error, Exception):
            raise DataError(f"{target.url}: {why(error, 'written')}") from error
        raise


@contextlib.contextmanager
def _workspace(target: Folder) -> Iterator[Path]:
    """Create a hidden folder to build in, beside a local target so that it can be renamed, and remove it on exit."""
    if isinstance(target, LocalFolder):
        path = target.path.resolve()
        parent, prefix = path.parent, hidden(path)
        try:
            make_folder(parent)
            sweep(parent, prefix)
        except OSError as error:
            raise DataError(f"{path}: cannot be created ({error.strerror}); give another folder") from error
    else:
        parent, prefix = Path(temporary_place()), "hopfleet-partial-"
    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(workspace(parent, prefix))
        except OSError as error:
            raise DataError(
                f"{parent}: cannot be written to ({error.strerror}); change its permissions, or give another folder"
            ) from error
        yield place
