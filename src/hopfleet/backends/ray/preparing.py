"""Preparing data on a Ray cluster: each partition is written on the node where it lives.

Files between tasks are on the disks of the nodes. Tasks of one piece of the source run on one node, which finds them
there; on any other node, as after a loss, they are made again. The rows of a partition travel once, through Ray's
object store, to the node of the partition. That node writes the file, keeps it among its fetched partitions, and puts
it into the data set.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.backends.ray import cluster
from hopfleet.backends.ray.node_agent import home
from hopfleet.backends.ray.nodes import explain
from hopfleet.backends.ray.placement import spread
from hopfleet.data.cells import Builder, Cells
from hopfleet.data.columns import Column
from hopfleet.data.etl.chunks import Chunk
from hopfleet.data.etl.listing import SourceFile
from hopfleet.data.etl.pool import Numbered, Pool, before, portable
from hopfleet.data.etl.target import clear
from hopfleet.data.etl.work import Made, PartitionRows, make_chunk
from hopfleet.data.files import as_batch, from_batch, write_cells
from hopfleet.data.folders import Folder, RemoteFolder
from hopfleet.data.manifest import PartitionFile
from hopfleet.errors import DataError
from hopfleet.planner.partitions import place_partitions
from hopfleet.support.cache import cache_folder
from hopfleet.support.files import (
    copy_file,
    digest,
    has_folders,
    make_folder,
    move,
    remove_file,
    remove_folder,
    retried,
    sync,
)

CLEANING_SECONDS = 30.0
"""Seconds to wait for nodes that remove files."""

REMADE = 3
"""How often rows that a node has lost are made again at most."""

GROUP_BYTES = 32 << 20
"""Bytes of prepared rows that a task takes apart into the parts of partitions."""

WAITING = 2
"""Tasks for each CPU of the cluster that are handed to Ray at once."""


class RayPool(Pool):
    """The nodes of a Ray cluster, which run tasks with one CPU each."""

    def __init__(self, count: int | None, target: Folder, space: Path) -> None:
        super().__init__(2)
        self._ours = cluster.connect(None)
        self._ray = cluster.require_ray()
        self._target, self._space = target, space
        self._key = hashlib.sha256(os.fsencode(space)).hexdigest()[:16]
        nodes = [node for node in cluster.living() if node.cpus >= 1]
        if not nodes:
            raise DataError("backend='ray': no node of the cluster has a CPU; start one with `ray start`")
        self._names = {node.id: node.name for node in nodes}
        self._nodes = list(self._names)
        cpus = {node.id: int(node.cpus) for node in nodes}
        self._power = Counter(spread(cpus, sum(cpus.values())))  # as workers are placed for training
        self._limit = count or WAITING * sum(cpus.values())

    def start(self) -> None:
        """Do nothing: Ray starts its processes when there are tasks."""

    @property
    def nodes(self) -> int:
        return len(self._nodes)

    def memory(self, size: int) -> None:
        return None

    def workplace(self, folder: Path) -> Path:
        return Path()  # each node has a folder of its own, in which its tasks run

    def shared(self, found: Sequence[SourceFile]) -> list[SourceFile]:
        """Return files by absolute paths. Raise DataError if a node does not see them or the folder to fill."""
        files = [
            file if file.is_remote else dataclasses.replace(file, path=str(Path(file.path).absolute()))
            for file in found
        ]
        paths = [file.path for file in files[:1] if not file.is_remote]
        if not isinstance(self._target, RemoteFolder):
            paths.append(str(self._space))
        asked = {node: self._call(_missing, (paths,), node) for node in self._nodes}
        for node, answer in asked.items():
            if missing := self._got(answer):
                where = str(self._target.url) if missing[0] == str(self._space) else missing[0]
                raise DataError(
                    f"{where}: node {self._names[node]} does not see it; give a folder that all nodes share, or a URL"
                )
        return files

    def carried(self, table: pa.Table) -> pa.Table:
        return table

    def at_hand(self, chunks: Sequence[Chunk], columns: Sequence[str]) -> Sequence[Chunk]:
        """Return chunks with those columns alone, which are fetched from the nodes."""
        if not columns or not chunks or chunks[0].dataset is not None:
            return chunks
        tasks = ((number, (chunk, columns)) for number, chunk in enumerate(chunks))
        found = dict(self.run(_columns, tasks, threads=False, homes=[chunk.home for chunk in chunks]))
        return [dataclasses.replace(chunk, table=found[number], start=0) for number, chunk in enumerate(chunks)]

    def gathering(
        self, makes: Sequence[tuple[Any, ...]], mades: Sequence[Made], shares: Sequence[PartitionRows],
        columns: Mapping[str, Column],
    ) -> tuple[Callable[..., Any], Iterable[tuple[Any, ...]]]:  # fmt: skip
        if isinstance(self._target, RemoteFolder) and not any((self._space / "parts").glob("*.pickle")):
            clear(self._target)
        groups = self._groups([make[0].home for make in makes], mades)
        parts = []
        for node, numbers in groups:
            tasks = []
            for number in numbers:
                chunk, prepared, path, *rest = makes[number]
                splits = None if not path.name else np.load(path)
                rows = [share.deals[number].rows(share.index) + mades[number].bounds[share.split] for share in shares]
                tasks.append(((chunk, prepared, splits, *rest), mades[number], rows))
            parts.append(self._call(_parts, (tasks,), node, returns=len(shares)))
        forms = [{number: mades[number].columns for number in numbers} for _, numbers in groups]
        remote = self._target.url if isinstance(self._target, RemoteFolder) else ""
        built = self._space / "built"
        return _assemble, (
            (
                columns,
                forms,
                share.path,
                str(share.path.relative_to(built)),
                remote,
                home(),
                *(one[place] for one in parts),
            )
            for place, share in enumerate(shares)
        )

    def _groups(self, homes: Sequence[int], mades: Sequence[Made]) -> list[tuple[str, list[int]]]:
        """Return the chunks with rows in groups of one node: small parts would pass through the driver."""
        groups: list[tuple[str, list[int]]] = []
        for place, node in enumerate(self._nodes):
            left = 0
            for number, made in enumerate(mades):
                if not made.rows or homes[number] % len(self._nodes) != place:
                    continue
                if made.size > left:
                    groups.append((node, []))
                    left = GROUP_BYTES
                groups[-1][1].append(number)
                left -= made.size
        return groups

    def run(
        self, function: Callable[..., Any], tasks: Iterable[Numbered], *, threads: bool, homes: Sequence[int] = ()
    ) -> Iterator[Numbered]:
        left = iter(tasks)
        running: dict[Any, int] = {}
        places = self._places(max(homes, default=0) + 1) if function is _assemble else self._nodes
        while True:
            for number, task in islice(left, self._limit - len(running)):
                node = places[(homes[number] if homes else number) % len(places)]
                running[self._call(function, task, node)] = number
            if not running:
                return
            done, _ = self._ray.wait(list(running), num_returns=1)
            for answer in done:
                number = running.pop(answer)
                try:
                    result = self._got(answer)
                except DataError:
                    for each in before(number, running):
                        self._got(each)  # raises if an earlier task fails, too
                    raise
                yield number, result

    def _places(self, partitions: int) -> list[str]:
        """Return the node of each partition: that to which training brings it, if it uses all nodes."""
        placed = place_partitions([1] * partitions, self._power, 1)
        return [next(node for node in placed if index in placed[node]) for index in range(partitions)]

    def _call(self, function: Callable[..., Any], task: Sequence[Any], node: str, *, returns: int = 1) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        near = NodeAffinitySchedulingStrategy(node, soft=True)
        options = {"num_cpus": 1, "max_retries": 3, "scheduling_strategy": near, "num_returns": returns}
        called = self._ray.remote(_work).options(**options).remote(self._key, function, *task)
        return [called] if returns == 1 and function is _parts else called

    def _got(self, answer: Any) -> Any:
        try:
            return self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DataError):
                raise error.cause from None
            raise DataError(f"a task on the cluster failed: {explain(error)}") from error
        except self._ray.exceptions.RayError as error:
            raise DataError(
                f"a task on the cluster failed: {explain(error)}; look at the nodes, and try again"
            ) from error

    def __exit__(self, *raised: object) -> None:
        """Remove the files of this preparation from all nodes, unless it was interrupted, and leave the cluster."""
        if raised[1] is None or isinstance(raised[1], DataError):
            with contextlib.suppress(Exception):
                self._ray.get([self._call(_clean, (), node) for node in self._nodes], timeout=CLEANING_SECONDS)
        if self._ours:
            self._ray.shutdown()


# -------------------------------------------------------------------------------------------------- what runs on nodes


def _work(key: str, function: Callable[..., Any], *task: Any) -> Any:
    """Do a task in the folder that this node has for the preparation."""
    pa.set_cpu_count(1)
    folder = cache_folder("prepare").absolute() / key
    make_folder(folder, private=True)
    with contextlib.chdir(folder):
        try:
            return function(*task)
        except Exception as error:
            raise portable(error) from None


def _missing(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if not Path(path).exists()]


def _columns(chunk: Chunk, names: Sequence[str]) -> pa.Table:
    return chunk.read(names)


def _parts(tasks: Sequence[tuple[tuple[Any, ...], Made, Sequence[Any]]]) -> Any:
    """Return the rows of some chunks for each partition: a list with the rows of each chunk."""
    parts: list[list[pa.RecordBatch]] = [[] for _ in tasks[0][2]]
    for make, made, rows in tasks:
        cells = _cells(make, made)
        for part, some in zip(parts, rows, strict=True):
            part.append(as_batch(made.columns, {name: cells[name].take(some) for name in cells}))
    return parts if len(parts) > 1 else parts[0]


def _cells(make: tuple[Any, ...], made: Made) -> Mapping[str, Cells]:
    """Return the rows of a chunk. They are made again if this node has lost them, which may happen at any time."""
    for _ in range(REMADE):
        if not made.path.exists():
            make_chunk(*make)
        try:
            return made.cells()
        except DataError:
            if made.path.exists():
                raise
    return made.cells()


def _assemble(
    columns: Mapping[str, Column], forms: Sequence[Mapping[int, Mapping[str, Column]]], path: Path, name: str,
    remote: str, driver: tuple[str, str], *parts: Sequence[pa.RecordBatch],
) -> PartitionFile:  # fmt: skip
    """Write a partition, keep it on this node, and put it into the data set.

    ``parts`` are the rows of chunks, in the groups of ``forms``, which have the number and the columns of each chunk.
    """
    chunks = {
        number: (form, part)
        for group, some in zip(forms, parts, strict=True)
        for (number, form), part in zip(group.items(), some, strict=True)
    }
    rows = sum(part.num_rows for _, part in chunks.values())
    builders = {column: Builder(about, rows) for column, about in columns.items()}
    for number in sorted(chunks):
        form, part = chunks[number]
        if part.num_rows:
            for column, cells in from_batch(form, part).items():
                builders[column].append(cells)
    own = Path(f"{name.replace('/', '-')}.{os.getpid()}")
    write_cells(own, columns, {column: builder.cells() for column, builder in builders.items()})
    made = PartitionFile(path.name, rows, own.stat().st_size, digest(own))
    if remote:
        files, place = RemoteFolder(remote).filesystem()
        if has_folders(files):
            files.makedirs(str(Path(f"{place}/{name}").parent), exist_ok=True)
        retried(lambda: files.put_file(str(own), f"{place}/{name}"))
    else:
        # In the workspace, not in the data set: a task that is killed leaves it there.
        beside = path.parents[len(Path(name).parts)] / f"{own.name}.{secrets.token_hex(4)}"
        copy_file(own, beside)
        sync(beside)
        move(beside, path)
    if remote or home() != driver:
        make_folder(cache_folder("data"))
        move(own, cache_folder("data") / made.sha256)
    else:
        remove_file(own)
    return made


def _clean() -> None:
    remove_folder(Path.cwd(), ignore_errors=True)
