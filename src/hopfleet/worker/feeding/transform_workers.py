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

Make = Callable[[Any, int], float]
"""Put a batch of a unit, by its number, into the shared batch cache; returns the seconds that it took to make it."""

AHEAD = 2
"""Batches that each feeder has to do at once: one at work, and one so that it need not wait for the next."""

READY = 4
"""Batches that wait to be used, beside those."""

PR_SET_PDEATHSIG = 1


class TransformServer:
    """A fork server for transform workers. Create it while the process has one thread.

    ``private`` descriptors are not for them; what they print goes to ``log``.
    """

    def __init__(self, make: Make, private: Sequence[int] = (), log: str = os.devnull) -> None:
        self._control, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            _bounded(partial(_nurse, theirs, make, [*private, self._control.fileno()], log))
        theirs.close()

    def fork(self) -> Connection:
        """The worker's end of a new feeder. Raises OSError if there can be none."""
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
        #: How often one of them could not do what it was told.
        self.refused = 0

    def __len__(self) -> int:
        return len(self._hands)

    def staff(self, count: int) -> int:
        """Have so many, if they can be had; returns how many there are."""
        with contextlib.suppress(OSError):
            while len(self._hands) < count:
                self._hands.append(self._hire())
        while len(self._hands) > count:
            self._hands.pop().close()
        return len(self._hands)

    def make(self, unit: Any, numbers: range) -> Iterator[tuple[int, float | None]]:
        """Each number in its turn, when its batch was made, with its seconds; None if nobody could make it.

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
    """Who makes what of one unit."""

    def __init__(self, hands: list[Connection], unit: Any, numbers: range) -> None:
        self._hands = hands
        self._unit = unit
        self._left = iter(numbers)
        self._next = next(self._left, None)
        self._tasks: dict[Connection, deque[int]] = {hand: deque() for hand in hands}
        self._made: dict[int, float | None] = {}
        self.refused = 0

    def made(self, number: int) -> float | None:
        """Wait until a batch is made, and hand out what can be begun meanwhile."""
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
        """What it was to make, nobody makes."""
        self._made.update(dict.fromkeys(self._tasks.pop(hand)))
        self._hands.remove(hand)
        hand.close()


# ------------------------------------------------------------------------------------------- in other processes


def _nurse(control: socket.socket, make: Make, private: Sequence[int], log: str) -> None:
    for descriptor in private:
        os.close(descriptor)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the transform may have processes of its own
    while True:
        try:
            unit, number = json.loads(connection.recv_bytes())
        except (OSError, EOFError):
            return
        seconds: float | None = None
        try:
            seconds = make(unit, number)
        except Exception:
            # It is raised again where the worker makes the batch itself.
            sys.stderr.write(f"hopfleet: batch {number} of {unit}\n{traceback.format_exc()}")
            sys.stderr.flush()
        connection.send_bytes(json.dumps(seconds).encode())


def _bounded(work: Callable[[], None]) -> None:
    """Be a process that ends with its parent, does its work, and cleans up nothing that it has inherited."""
    code = 1
    try:
        with contextlib.suppress(OSError, AttributeError):  # only Linux has it; elsewhere the closed socket must do
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
