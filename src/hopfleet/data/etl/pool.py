"""Processes that do pieces of work side by side, without importing the user's script again.

A process that dies is replaced and its piece done again. All end when the process that started them is gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Self

import cloudpickle

from hopfleet.errors import DataError, HopfleetError

ATTEMPTS = 3
"""Processes that may die over one piece of work."""

START = """
import ast, sys
sys.path[:] = ast.literal_eval(sys.argv[2])
from hopfleet.data.etl.pool import serve
serve(int(sys.argv[1]))
"""
"""What a new process runs: it finds modules where this process does."""


class Pool:
    """Processes that call functions; with ``count`` 1, this process calls them itself."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._workers: dict[Connection, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all processes now, so that they are ready when there is work."""
        if self._count > 1:
            self._hire(self._count)

    def run(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each task, as they end. Raise the exception of the first that fails."""
        if self._count == 1 or len(tasks) <= 1:
            for number, task in enumerate(tasks):
                yield number, function(*task)
            return
        waiting = deque(enumerate(cloudpickle.dumps((function, task)) for task in tasks))
        busy: dict[Connection, tuple[int, bytes]] = {}
        deaths: dict[int, int] = {}
        while waiting or busy:
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
                    raise result
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
            answer = (False, _portable(error))
        try:
            connection.send_bytes(cloudpickle.dumps(answer))
        except OSError:
            os._exit(0)


def _portable(error: Exception) -> Exception:
    """Return an exception that another process can raise; those of Hopfleet keep their type."""
    if isinstance(error, HopfleetError):
        with contextlib.suppress(Exception):
            cloudpickle.loads(cloudpickle.dumps(error))
            return error
    return DataError("".join(traceback.format_exception(error)).rstrip())
