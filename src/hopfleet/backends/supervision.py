"""The workers that a backend has started: what is known of each, when to start another one, and the common methods.

A backend with worker processes derives from ``SupervisedBackend`` and adds how workers start, how messages reach them
and how their deaths are noticed.
"""

from __future__ import annotations

import itertools
import math
import os
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from hopfleet.backends.base import WorkerHealth
from hopfleet.domain.messages import RELEASED, Event
from hopfleet.errors import TaskError, WorkersLost
from hopfleet.support import clock
from hopfleet.worker.protocol import Beat, Events, GiveUp, Order, Probe, Profiled, Report, Stop, Unable
from hopfleet.worker.spec import Profile, WorkerSpec

AWAY_SECONDS = 1.0
"""Seconds without listening, e.g. after a Ctrl-Z, after which the silence of workers means nothing."""

START_SECONDS = 120.0
"""Seconds without progress after which a worker that has not started counts as failed, unless the spec says another."""

START_FACTOR = 10
"""Multiple of these seconds after which a start that still makes progress counts as failed, too."""

MAX_STARTS = 5
"""Number of workers in a row that may end before they are ready; then the run ends."""

RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 5.0
"""Seconds before a worker that achieved nothing is replaced: the first time, doubling each time, and the maximum."""

LOG_LINES, LOG_BYTES = 25, 4096
"""Maximum lines and bytes of a trial's log that are reported with the loss of its worker."""

GIVE_UP_SECONDS = 10.0
"""Seconds that a worker has to give up a unit; it hears of that between two batches. Then the worker is ended."""

STOPPED = "it was told to give up what it did"


@dataclass(slots=True, kw_only=True)
class WorkerHandle:
    """A started worker, as its backend sees it."""

    name: str
    device: str = ""
    pid: int = 0
    #: When the worker was last heard from, on the monotonic clock.
    heard: float = field(default_factory=time.monotonic)
    #: Number of predecessors in a row that achieved nothing.
    failures: int = 0
    ready: bool = False
    #: Whether the worker is not replaced if it is lost.
    retired: bool = False
    #: Whether the worker was told to end.
    released: bool = False
    #: Why this backend killed the worker; empty if it did not.
    killed: str = ""
    #: The trial of the last unit that was sent.
    trial: str = ""
    #: Attempts that the worker was told to give up, and when it is ended if it has not reacted.
    giving_up: dict[int, float] = field(default_factory=dict)
    #: Orders buffered until the next send, so that the worker wakes once.
    outbox: list[Order] = field(default_factory=list)
    #: The last beat: the memory and the load of the process.
    beat: Beat = field(default_factory=Beat)

    @property
    def beats(self) -> list[Beat]:
        """The last beats of all processes of the worker, its own first."""
        return [self.beat]

    def end_reason(self, found: str) -> str:
        """Return why the worker ended; ``found`` is the reason unless the backend itself ended the worker."""
        return RELEASED if self.released else self.killed or found


Handle = TypeVar("Handle", bound=WorkerHandle)


class StartLimit:
    """Tells when to give up processes that start: not while they make progress, however busy the machine is."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._began = self._moved = clock()
        self._seen: object = None

    def passed(self, progress: object) -> bool:
        """Whether a value that changes with each bit of progress has been the same for too long."""
        now = self._clock()
        if progress != self._seen:
            self._seen, self._moved = progress, now
        return now - self._moved > self._seconds or now - self._began > START_FACTOR * self._seconds


class SupervisedBackend(ABC, Generic[Handle]):
    """What backends with worker processes have in common. All methods are called by the thread that drives the run."""

    #: How a module with the task must be importable, for messages to users.
    importable = ""
    _spec: WorkerSpec

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        """Forget an earlier run."""
        #: Workers that are not lost, by name, whether they are ready or not.
        self._workers: dict[str, Handle] = {}
        self._events: deque[Event] = deque()
        self._profiles: deque[Profile] = deque()
        self._numbers = itertools.count(1)
        self._closing = False
        #: When the workers were last checked.
        self._looked = time.monotonic()

    @abstractmethod
    def _pump(self, timeout: float) -> None:
        """Send all orders and handle all reports, waiting up to ``timeout`` seconds for the first report."""

    @abstractmethod
    def _kill(self, handle: Handle) -> None:
        """End the process of a worker, whatever it does."""

    def _note(self, handle: Handle, event: Event) -> None:
        """Draw conclusions from an event before it is passed on."""

    def unready(self) -> str:
        """Return why no worker is ready, as the rest of a sentence, if that is known."""
        return ""

    def retire(self, worker: str) -> None:
        if handle := self._workers.get(worker):
            handle.retired = True

    def release(self, worker: str) -> None:
        if handle := self._workers.get(worker):
            handle.retired = handle.released = True
            handle.outbox.append(Stop())

    def stop(self, worker: str) -> None:
        if handle := self._workers.get(worker):
            handle.killed = STOPPED
            self._kill(handle)

    def give_up(self, worker: str, attempt: int) -> None:
        if handle := self._workers.get(worker):
            handle.outbox.append(GiveUp(attempt))
            handle.giving_up[attempt] = time.monotonic() + GIVE_UP_SECONDS

    def _stop_unresponsive(self) -> None:
        """End workers that have not given up a unit in time."""
        now = time.monotonic()
        for handle in list(self._workers.values()):
            if handle.giving_up and now > min(handle.giving_up.values()):
                handle.giving_up.clear()
                self.stop(handle.name)

    def receive(self, timeout: float) -> list[Event]:
        deadline = time.monotonic() + timeout
        while not self._events:
            self._stop_unresponsive()
            left = deadline - time.monotonic()
            self._pump(max(0.0, left))
            if left <= 0:
                break
        events = list(self._events)
        self._events.clear()
        return events

    def now(self) -> float:
        return clock.now()

    def health(self) -> list[WorkerHealth]:
        """Return what is known of the workers that are ready."""
        behind = self.now() - time.monotonic()
        return [
            health_of(handle.name, self._host(handle), handle.pid, handle.heard + behind, handle.beats)
            for handle in self._workers.values()
            if handle.ready
        ]

    def _host(self, handle: Handle) -> str:
        """Return the machine of a worker."""
        return socket.gethostname()

    def _next_name(self) -> str:
        return f"w{next(self._numbers)}"

    def _is_current(self, handle: Handle) -> bool:
        """Whether a worker is not lost. Reports of lost workers are ignored."""
        return self._workers.get(handle.name) is handle

    def _first_worker(self, suits: Callable[[Handle], bool]) -> Handle:
        """Return the first worker that suits, waiting until there is one."""
        began, limit = time.monotonic(), StartLimit(self._spec.start_timeout)
        while True:
            for handle in self._workers.values():
                if suits(handle):
                    return handle
            if limit.passed(self.start_progress()):
                raise WorkersLost(f"no worker was ready after {time.monotonic() - began:.0f} s{self.unready()}")
            self._pump(AWAY_SECONDS / 4)

    def start_progress(self) -> object:
        """Return a value that changes while workers that are not ready make progress."""
        return [(handle.name, handle.ready, handle.heard) for handle in self._workers.values()]

    def _probe(self, handle: Handle, probe: Probe) -> Profile:
        """Let a worker profile a trial, and wait for its answer."""
        handle.outbox.append(probe)
        most = math.inf if probe.batches else self._spec.check_seconds
        deadline = time.monotonic() + most
        while not self._profiles:
            self._pump(AWAY_SECONDS / 4)
            if not self._is_current(handle):
                return Profile(error=handle.killed or "the worker died while it tried the configuration")
            if time.monotonic() > deadline:
                handle.killed = f"the check before the run was given up after {most:.3g} s"
                self._kill(handle)
        return self._profiles.popleft()

    def _hear(self, handle: Handle, report: Report) -> None:
        """Handle a report that all backends handle alike."""
        match report:
            case Beat():
                handle.beat = report
            case Events(events):
                self._pass_on(handle, events)
            case Profiled(profile):
                self._profiles.append(profile)
            case Unable(reason, complete=True):
                raise TaskError(reason)
            case Unable(reason):
                raise TaskError(
                    f"workers cannot load the task ({reason}): put it into a module that {self.importable}, or define "
                    "it in your script itself"
                )
            case _:
                raise AssertionError(f"unexpected report of {handle.name}: {report}")

    def _pass_on(self, handle: Handle, events: Sequence[Event]) -> None:
        for event in events:
            self._note(handle, event)
            handle.giving_up.pop(getattr(event, "attempt", 0), None)
        self._events.extend(events)


def health_of(worker: str, host: str, pid: int, heard: float, beats: Sequence[Beat]) -> WorkerHealth:
    """Return what is known of a worker by the last beats of its processes, its own first."""
    loads = [beat.device_load for beat in beats if beat.device_load is not None]
    return WorkerHealth(
        *(worker, host, pid, sum(beat.memory for beat in beats), sum(beat.device_memory for beat in beats), heard),
        processor=sum(beat.processor for beat in beats),
        clock=beats[0].clock,
        device_load=sum(loads) / len(loads) if loads else None,
    )


def restart_pause(failures: int) -> float:
    """Return the seconds to wait before another worker takes the place of ``failures`` that achieved nothing."""
    return min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** (failures - 1))


def check_starts(worker: str, failures: int, reason: str, advice: str) -> None:
    """Raise WorkersLost if too many workers in a row, ``worker`` the last of them, ended before they were ready."""
    if failures >= MAX_STARTS:
        raise WorkersLost(
            f"worker {worker} ended before it was ready, as {failures - 1} before it did: {reason}; {advice}"
        )


def excused(heard: float, now: float, away: float) -> float:
    """Return the last sign of life, corrected for the ``away`` seconds before ``now`` without listening.

    A process that was just started has a last sign of life in the future, because its start takes a while.
    """
    return heard if away <= AWAY_SECONDS or heard >= now else min(now, heard + away)


def last_lines(log: Path) -> str:
    """Return the end of a log; empty if the log cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-LOG_LINES:])
    except OSError:
        return ""
