"""Processes that transform batches for one worker.

A transform server forks them. It is itself forked from the worker before the worker has threads or a device, so
transform workers hold the task and the data and nothing else. A transform worker receives the number of a batch, puts
the batch into the shared batch cache, and reports it. If a transform worker dies, or the transform raises, the worker
makes that batch itself. When the worker is gone, the sockets close and the kernel ends the transform workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from hopfleet.support.files import open_nowhere, open_to_append

Make = Callable[[Any, int], float]
"""Puts a batch of a unit, by its number, into the shared batch cache; returns the seconds it took to make."""

AHEAD = 2
"""Batches assigned to each transform worker: one in progress, and one so that it does not wait for the next."""

READY = 4
"""Finished batches that may wait for use, besides the assigned ones."""

PR_SET_PDEATHSIG = 1


class TransformServer:
    """A fork server for transform workers. Create it while the process has one thread.

    ``private`` descriptors are closed in transform workers; their output goes to ``log``.
    """

    def __init__(self, make: Make, private: Sequence[int] = (), log: str = os.devnull) -> None:
        self._control, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            _bounded(partial(_nurse, theirs, make, [*private, self._control.fileno()], log))
        theirs.close()

    def fork(self) -> Connection:
        """Fork a transform worker; return the worker's end of its connection. Raise OSError if forking fails."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(self._control, [b"."], [theirs.fileno()])
            return Connection(ours.detach())

    def close(self) -> None:
        self._control.close()


class TransformWorkers:
    """The transform workers of one worker; their number follows demand."""

    def __init__(self, hire: Callable[[], Connection]) -> None:
        self._hire = hire
        self._hands: list[Connection] = []
        #: Number of batches that a transform worker failed to make.
        self.refused = 0

    def __len__(self) -> int:
        return len(self._hands)

    def staff(self, count: int) -> int:
        """Adjust the number of transform workers to ``count`` if possible; return their number."""
        with contextlib.suppress(OSError):
            while len(self._hands) < count:
                self._hands.append(self._hire())
        while len(self._hands) > count:
            self._hands.pop().close()
        return len(self._hands)

    def make(self, unit: Any, numbers: range) -> Iterator[tuple[int, float | None]]:
        """Yield each number in order once its batch is made, with its seconds; None if no transform worker made it.

        A caller that stops early loses the transform workers: they are busy with batches that are no longer needed.
        """
        rota = _Rota(self._hands, unit, numbers)
        try:
            for number in numbers:
                yield number, rota.made(number)
                self.refused += rota.refused
                rota.refused = 0
        except GeneratorExit:
            self.staff(0)
            raise


class _Rota:
    """The assignment of one unit's batches to transform workers."""

    def __init__(self, hands: list[Connection], unit: Any, numbers: range) -> None:
        self._hands = hands
        self._unit = unit
        self._left = iter(numbers)
        self._next = next(self._left, None)
        self._tasks: dict[Connection, deque[int]] = {hand: deque() for hand in hands}
        self._made: dict[int, float | None] = {}
        self.refused = 0

    def made(self, number: int) -> float | None:
        """Wait until a batch is made, and assign further batches meanwhile."""
        limit = number + AHEAD * len(self._tasks) + READY
        self._hand_out(limit)
        while number not in self._made and self._tasks:
            for hand in wait(list(self._tasks)):
                self._hear(hand)  # type: ignore[arg-type]
            self._hand_out(limit)
        return self._made.pop(number, None)

    def _hand_out(self, limit: int) -> None:
        while self._next is not None and self._next < limit and self._tasks:
            hand = min(self._tasks, key=lambda each: len(self._tasks[each]))
            tasks = self._tasks[hand]
            if len(tasks) == AHEAD:
                return
            tasks.append(self._next)
            self._next = next(self._left, None)
            try:
                hand.send_bytes(json.dumps([self._unit, tasks[-1]]).encode())
            except OSError:
                self._gone(hand)

    def _hear(self, hand: Connection) -> None:
        try:
            seconds = json.loads(hand.recv_bytes())
        except (OSError, EOFError):
            self._gone(hand)
        else:
            self.refused += seconds is None
            self._made[self._tasks[hand].popleft()] = seconds

    def _gone(self, hand: Connection) -> None:
        """Record the batches of a dead transform worker as not made."""
        self._made.update(dict.fromkeys(self._tasks.pop(hand)))
        self._hands.remove(hand)
        hand.close()


# ------------------------------------------------------------------------------------------- in other processes


def _nurse(control: socket.socket, make: Make, private: Sequence[int], log: str) -> None:
    for descriptor in private:
        os.close(descriptor)
    output = open_nowhere() if log == os.devnull else open_to_append(log)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            _bounded(partial(_feed, Connection(descriptors[0]), make))
        os.close(descriptors[0])


def _feed(connection: Connection, make: Make) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the transform may start its own processes
    while True:
        try:
            unit, number = json.loads(connection.recv_bytes())
        except (OSError, EOFError):
            return
        seconds: float | None = None
        try:
            seconds = make(unit, number)
        except Exception:
            # The worker raises the error again when it makes the batch itself.
            sys.stderr.write(f"hopfleet: batch {number} of {unit}\n{traceback.format_exc()}")
            sys.stderr.flush()
        try:
            connection.send_bytes(json.dumps(seconds).encode())
        except OSError:
            return  # the worker left the unit, and this batch is no longer needed


def _bounded(work: Callable[[], None]) -> None:
    """Run ``work`` in a process that ends with its parent and cleans up nothing that it has inherited."""
    code = 1
    try:
        with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere the closed socket ends the process
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
