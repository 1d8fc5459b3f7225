"""The fork server of a run, as the backend sees it: a process that has the framework loaded and forks workers.

If the fork server dies or stops, another one is started. The workers of the old one go on; only their exit status stays
unknown.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired

from hopfleet.backends.local.bytecode import bytecode_folder
from hopfleet.backends.supervision import MAX_STARTS, START_SECONDS, StartLimit
from hopfleet.backends.vitals import vitals
from hopfleet.errors import WorkersLost
from hopfleet.support.files import make_folder, open_to_append

STOPPED_SECONDS = 1.5
"""Seconds without an answer after which the fork server is checked, and at its end killed."""


class ForkServer:
    """A running fork server, which is replaced when needed."""

    def __init__(self, *, log: Path, threads: int, preload: Sequence[str]) -> None:
        self._log, self._threads, self._preload = log, threads, preload
        #: Seconds without progress after which the process counts as hung.
        self.start_timeout = START_SECONDS
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has(self, modules: Sequence[str], threads: int) -> bool:
        """Whether the process loads these modules for workers with this number of threads."""
        return (list(self._preload), self._threads) == (list(modules), threads)

    def fork(self, name: str, links: Sequence[int] = ()) -> tuple[Connection, int]:
        """Fork a worker process; return the socket to it and its id.

        ``links`` are descriptors of sockets to other members of its team, which the process inherits.
        """
        for _ in range(MAX_STARTS):
            mine, theirs = socket.socketpair()
            with theirs:
                answer = self._ask(name, [theirs.fileno(), *links])
            if answer:
                return Connection(mine.detach()), int(answer)
            mine.close()
        raise WorkersLost(f"workers could not be started, tried {MAX_STARTS} times; {self._log} says why")

    def exit_code(self, pid: int, parent: int) -> int | None:
        """Wait for the end of a worker that ``parent`` forked; return its exit code, None if that is unknown."""
        if parent == self.pid:
            with contextlib.suppress(ValueError):
                return int(self._ask(str(pid)))
        return None

    def revive(self) -> None:
        """Start another fork server if this one has died, so that it may be ready when it is needed."""
        if self._awake and self._process.poll() is not None:
            self._renew()

    def dismiss(self) -> None:
        """Let the process end by itself."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def close(self, *, kill: bool = False) -> None:
        """End the process, by force if it does not end by itself or if told to ``kill`` it."""
        if kill:
            self._process.kill()
        self.dismiss()
        ended = False
        with contextlib.suppress(OSError):
            # The other end of the socket tells at once when the process is about to be gone.
            self._control.settimeout(STOPPED_SECONDS)
            while self._control.recv(4096):
                pass
            ended = True
        self._control.close()
        try:
            self._process.wait(STOPPED_SECONDS if ended else 0)
        except TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        make_folder(self._log.parent)
        with os.fdopen(open_to_append(self._log), "ab") as log:
            self._process = Popen(
                [sys.executable, "-m", "hopfleet.worker.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self._threads),
            )
        theirs.close()
        #: Whether the process has reported that it is ready.
        self._awake = False
        hello = {"path": sys.path, "preload": list(self._preload), "bytecode": bytecode_folder(self._preload)}
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(hello).encode() + b"\n")

    def _renew(self) -> None:
        """Replace a fork server that is dead or does not answer. The new one needs a while to be ready."""
        self.close(kill=True)
        self._start()

    def _ask(self, question: str, descriptors: Sequence[int] = ()) -> str:
        """Return the answer to a question; empty if there is none, and then another fork server is started."""
        with contextlib.suppress(OSError):
            self._awake = self._awake or self._read_line() == "ready"
            if self._awake:
                socket.send_fds(self._control, [question.encode()], list(descriptors))
                answer = self._read_line()
                if answer:
                    return answer
        # A late answer would be taken for the answer to another question.
        self._renew()
        return ""

    def _read_line(self) -> str:
        """Return a line from the fork server, empty if it is gone. Raise OSError if it is stopped."""
        line, limit = b"", StartLimit(self.start_timeout)
        self._control.settimeout(STOPPED_SECONDS)
        while not line.endswith(b"\n"):
            try:
                piece = self._control.recv(4096)
            except TimeoutError:
                found = vitals(self._process.pid)
                if (found is not None and found.stopped) or limit.passed(found):
                    raise
                continue
            if not piece:
                return ""
            line += piece
        return line.decode().strip()


def environment(threads: int) -> dict[str, str]:
    """Return the variables of worker processes. Some libraries take their number of threads from these alone."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONPATH": path}
