"""Threads and processes that do pieces of work side by side.

Threads need no start, and serve where Arrow and numpy do the work. Python code of users runs in processes, which do not
import the user's script again. A process that dies is replaced and its piece done again. All end when the process that
started them is gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self, TypeVar

import cloudpickle

from hopfleet.data.columns import Column
from hopfleet.data.etl.chunks import Chunk
from hopfleet.data.etl.listing import SourceFile
from hopfleet.data.etl.memory import HELD_BYTES, Memory
from hopfleet.data.etl.work import Made, PartitionRows, gather
from hopfleet.domain import bounds
from hopfleet.errors import DataError, HopfleetError
from hopfleet.support.machine import this_machine
from hopfleet.support.registry import Homes

WORKER_BYTES = 8 << 20
"""Bytes of source files for which a further process is worth its start."""

ATTEMPTS = 3
"""Processes that may die over one piece of work."""

START = """
import ast, sys
sys.path[:] = ast.literal_eval(sys.argv[2])
from hopfleet.data.etl.pool import serve
serve(int(sys.argv[1]))
"""
"""What a new process runs: it finds modules where this process does."""


POOLS: Mapping[str, Any] = Homes({"ray": "hopfleet.backends.ray.preparing:RayPool"})
"""Pools on several machines by the name of the backend that has them, which is imported when it is asked for."""

Numbered = tuple[int, Any]
"""The number of a task, and the task or its result."""

TaskT = TypeVar("TaskT")


def sensible_workers(workers: int | str, size: int) -> int:
    """Return the number of workers for source files of ``size`` bytes, if the user leaves it open."""
    if workers == "auto":
        return max(1, min(this_machine().cores, size // WORKER_BYTES))
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise DataError(f"workers={workers!r}: must be 'auto' or an integer of at least 1")
    return bounds.integer("workers", workers, most=bounds.MOST_WORKERS)


class Pool:
    """Threads or processes that call functions; with ``count`` 1, the caller's thread calls them itself."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._workers: dict[Connection, subprocess.Popen[bytes]] = {}

    @property
    def nodes(self) -> int:
        """The number of machines that share the work."""
        return 1

    def memory(self, size: int) -> Memory | None:
        """Return memory for the rows of a source of ``size`` bytes, which threads share; None if files serve better."""
        return Memory(HELD_BYTES) if size <= HELD_BYTES else None

    def start(self) -> None:
        """Start all processes now, so that they are ready when there is work."""
        if self._count > 1:
            self._hire(self._count)

    def workplace(self, folder: Path) -> Path:
        """Return the folder for files between tasks, as tasks see it; ``folder`` is the workspace."""
        return folder

    def shared(self, found: Sequence[SourceFile]) -> list[SourceFile]:
        """Return files under names that all tasks know. Raise DataError if a node does not see them."""
        return list(found)

    def carried(self, table: Any) -> Any:
        """Return a table if tasks cannot read it from the workspace, and must bring it with them; else None."""
        return None

    def at_hand(self, chunks: Sequence[Chunk], columns: Sequence[str]) -> Sequence[Chunk]:
        """Return chunks that this process can read some columns of."""
        return chunks

    def gathering(
        self, makes: Sequence[tuple[Any, ...]], mades: Sequence[Made], shares: Sequence[PartitionRows],
        columns: Mapping[str, Column],
    ) -> tuple[Callable[..., Any], Iterable[tuple[Any, ...]]]:  # fmt: skip
        """Return the function that writes a partition, and the tasks for all. ``makes`` are the tasks of the chunks."""
        return gather, ((mades, share, columns) for share in shares)

    def run(
        self, function: Callable[..., Any], tasks: Iterable[Numbered], *, threads: bool, homes: Sequence[int] = ()
    ) -> Iterator[Numbered]:
        """Yield the number and the result of each task, as they end. Raise the exception of the first that fails.

        That is the one with the lowest number, not the one that fails first: the first bad row of a source is named.

        Tasks are taken one by one as threads or processes become free. ``homes`` matter on clusters only: tasks of
        equal homes run on one node, so that they find each other's files.
        """
        if self._count == 1:
            return ((number, function(*task)) for number, task in tasks)
        return self._threads(function, iter(tasks)) if threads else self._processes(function, iter(tasks))

    def _threads(self, function: Callable[..., Any], tasks: Iterator[Numbered]) -> Iterator[Numbered]:
        executor = ThreadPoolExecutor(self._count)
        try:
            running: dict[Future[Any], int] = {}
            while True:
                for number, task in islice(tasks, self._count + 1 - len(running)):  # one waits for the next free thread
                    running[executor.submit(function, *task)] = number
                if not running:
                    return
                for done in wait_for(running, return_when=FIRST_COMPLETED).done:
                    number = running.pop(done)
                    if done.exception() is not None:
                        for each in before(number, running):
                            each.result()
                    yield number, done.result()
        finally:
            executor.shutdown(cancel_futures=True)

    def _processes(self, function: Callable[..., Any], tasks: Iterator[Numbered]) -> Iterator[Numbered]:
        first = list(islice(tasks, 2))
        if len(first) <= 1:
            yield from ((number, function(*task)) for number, task in first)
            return
        waiting: deque[tuple[int, bytes]] = deque()
        left = chain(first, tasks)
        busy: dict[Connection, tuple[int, bytes]] = {}
        deaths: dict[int, int] = {}
        while True:
            for number, task in islice(left, max(0, self._count - len(busy) - len(waiting))):
                waiting.append((number, cloudpickle.dumps((function, task))))
            if not waiting and not busy:
                return
            self._hire(min(self._count, len(waiting) + len(busy)))
            for connection in self._workers:
                if connection not in busy and waiting:
                    busy[connection] = waiting.popleft()
                    with contextlib.suppress(OSError):  # a dead process is noticed below
                        connection.send_bytes(busy[connection][1])
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                number, content = busy.pop(ready)
                try:
                    done, result = cloudpickle.loads(ready.recv_bytes())
                except (EOFError, OSError):
                    code = self._dismiss(ready)
                    deaths[number] = deaths.get(number, 0) + 1
                    if deaths[number] == ATTEMPTS:
                        raise DataError(
                            f"{ATTEMPTS} processes died over the same rows (exit status {code}); if memory ran out, "
                            "use fewer workers"
                        ) from None
                    waiting.appendleft((number, content))
                    continue
                if not done:
                    raise _first_error(result, before(number, {each: task for each, (task, _) in busy.items()}))
                yield number, result

    def _hire(self, count: int) -> None:
        while len(self._workers) < count:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                command = [sys.executable, "-c", START, str(theirs.fileno()), repr(sys.path)]
                process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
                self._workers[Connection(ours.detach())] = process

    def _dismiss(self, connection: Connection) -> int | None:
        process = self._workers.pop(connection)
        connection.close()
        try:
            return process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def close(self) -> None:
        """End all processes; pieces of work in progress are given up."""
        for process in self._workers.values():
            process.kill()
        for connection in list(self._workers):
            self._dismiss(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def before(number: int, running: Mapping[TaskT, int]) -> list[TaskT]:
    """Return the tasks that are under way with lower numbers, in their order: one of them may be the first to fail."""
    return sorted((each for each in running if running[each] < number), key=lambda each: running[each])


def _first_error(error: Exception, earlier_tasks: Iterable[Connection]) -> Exception:
    """Return the exception of the first task that fails: of earlier ones, which are still at work, or ``error``."""
    for connection in earlier_tasks:
        with contextlib.suppress(EOFError, OSError):
            done, earlier = cloudpickle.loads(connection.recv_bytes())
            if not done:
                assert isinstance(earlier, Exception)
                return earlier
    return error


def serve(descriptor: int) -> None:
    """Do the work of one process, until the other end of its connection closes."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    connection = Connection(descriptor)
    while True:
        try:
            received = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        try:
            function, task = cloudpickle.loads(received)
            answer = (True, function(*task))
        except Exception as error:
            answer = (False, portable(error))
        try:
            connection.send_bytes(cloudpickle.dumps(answer))
        except OSError:
            os._exit(0)


def portable(error: Exception) -> Exception:
    """Return an exception that another process can raise; those of Hopfleet keep their type."""
    if isinstance(error, HopfleetError):
        with contextlib.suppress(Exception):
            cloudpickle.loads(cloudpickle.dumps(error))
            return error
    return DataError("".join(traceback.format_exception(error)).rstrip())
