"""The loop of a real run: the driver, with a journal, saved versions, timeouts, requests and Ctrl-C.

Every message is journaled before it has an effect. All decisions are the controller's.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Self

from hopfleet.backends.base import Backend, Cluster, FormsTeams
from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import (
    Event,
    Finish,
    FormTeams,
    Message,
    RequestMade,
    RunUnit,
    UnitFailed,
    UnitFinished,
    UnitStopped,
)
from hopfleet.errors import Interrupted
from hopfleet.monitor.observer import Observer
from hopfleet.runtime.driver import Driver, Effects
from hopfleet.runtime.effects import VersionEffects
from hopfleet.store.base import JournalStore, VersionStore
from hopfleet.support.background import Chores
from hopfleet.support.files import back_off, trouble

WAIT_SECONDS = 0.1
"""Longest wait in seconds for an event, after which requests, signals and observers get their turn."""

COPY_SECONDS = 0.005
"""The same while a version is copied for a clone, which may be done at any moment."""

AWAY_SECONDS = 1.0
"""Most seconds between two looks at the stopwatch that count as running time; the process may have been suspended."""


class Loop:
    """One run of an experiment, from its first event to ``Finish``."""

    def __init__(
        self,
        controller: Controller,
        backend: Backend,
        journal: JournalStore,
        versions: VersionStore,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._controller = controller
        self._backend = backend
        self._journal = journal
        self._observers = observers
        self._request = threading.Event()
        self._chores = Chores()
        self._copies = Copies()
        #: Events that effects led to, to be taken next; copies end in a thread of their own.
        self._own: queue.SimpleQueue[Event] = queue.SimpleQueue()
        #: The command that ended the run.
        self._finish = Finish(complete=False)
        self._cluster = backend if isinstance(backend, Cluster) else None
        #: Whether the cluster is in trouble, which observers were told.
        self._troubled = False
        self._stopwatch = Stopwatch()
        #: When each worker began its current unit, on a monotonic clock.
        self._began: dict[str, float] = {}
        saved = VersionEffects(
            controller.schedule,
            versions,
            chores=self._chores,
            copies=self._copies,
            report=self._own.put,
            retry=self._retry,
        )
        effects = {**saved.effects(), **self._effects()}
        self._driver = Driver(
            controller, backend, observers, journal=self._write, effects=effects, refused=saved.refuse
        )

    def run(self, first: list[Event]) -> bool:
        """Start with the events ``first``; return True when all is finished, False when the run was drained."""
        try:
            return self._run(first)
        finally:
            self._chores.finish(wait=False)
            self._copies.finish()

    def _run(self, first: list[Event]) -> bool:
        driver, controller = self._driver, self._controller
        driver.step(first)
        asked = False
        while not controller.finished:
            if self._request.is_set() and not asked:
                asked = True
                driver.step([RequestMade("drain")])
                continue
            own = [self._own.get() for _ in range(self._own.qsize())]
            waits = min(COPY_SECONDS if self._copies.busy else WAIT_SECONDS, controller.next_look(self._ages))
            driver.step([*own, *self._journal.requests.pending()] or self._backend.receive(waits))
            driver.follow(controller.look_ahead(self._ages))
            self._look_at_cluster()
            if self._stopwatch.look(stands=controller.stands or self._troubled):
                driver.step(controller.overdue(self._stopwatch.ages))
            self._refresh()
        return self._finish.complete

    @property
    def reason(self) -> str:
        """Why the run ended; empty if a person asked for the end."""
        return self._finish.reason

    @property
    def stuck(self) -> bool:
        """Whether a worker still waits for its disk or a storage, and so will not end by itself."""
        return bool(self._controller.schedule.stuck - {None})

    def drain(self) -> None:
        """Ask for a resumable end as soon as all running units are done. Safe in a signal handler."""
        self._request.set()

    @property
    def _ages(self) -> dict[str, float]:
        """Seconds since each worker began its current unit, also for workers that are idle or gone."""
        now = time.monotonic()
        return {worker: now - began for worker, began in self._began.items()}

    def _refresh(self) -> None:
        for observer in self._observers:
            observer.refresh()

    # ----------------------------------------------------------------------------------------------- effects

    def _effects(self) -> Effects:
        """Return the effects of messages beside the calls of the backend and those on saved versions."""
        return {
            RunUnit: self._run_unit,
            # A worker with a lookahead unit begins that unit when it reports.
            UnitFinished: lambda event: self._begin(event.worker),
            UnitFailed: lambda event: self._begin(event.worker),
            UnitStopped: lambda event: self._begin(event.worker),
            FormTeams: self._form_teams,
        }

    def _run_unit(self, command: RunUnit) -> None:
        if not command.lookahead:
            self._begin(command.worker)
        self._driver.send(command)

    def _form_teams(self, command: FormTeams) -> None:
        assert isinstance(self._backend, FormsTeams), f"backend={self._backend.name!r} cannot form teams"
        self._backend.form_teams(command.shapes)

    def _begin(self, worker: str) -> None:
        self._stopwatch.start(worker)
        self._began[worker] = time.monotonic()

    # ------------------------------------------------------------------------------------------ a disk that is full

    def _write(self, now: float, messages: Sequence[Message]) -> None:
        self._retry(self._journal.path, lambda: self._journal.append(now, messages))
        self._finish = next((message for message in messages if isinstance(message, Finish)), self._finish)

    def _retry(self, path: Path | None, write: Callable[[], object]) -> None:
        """Write a file, or fetch files from a storage, trying again until that succeeds, and do nothing else."""
        told = ""
        for seconds in back_off():
            try:
                write()
            except OSError as error:
                if not told:
                    told = str(error) if path is None else trouble(path, error)
                    self._tell_waiting(told)
                self._idle(seconds, told)
                continue
            if told:
                self._tell_waiting("")
            return

    def _look_at_cluster(self) -> None:
        """Tell observers that the run waits for the cluster, and that it continues."""
        if self._cluster is not None and bool(trouble := self._cluster.trouble()) != self._troubled:
            self._troubled = not self._troubled
            self._tell_waiting(trouble)

    def _tell_waiting(self, text: str) -> None:
        for observer in self._observers:
            observer.waiting(text)

    def _idle(self, seconds: float, why: str) -> None:
        """Wait. Raise Interrupted after Ctrl-C: the journal so far can be resumed."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._request.is_set():
                raise Interrupted(f"{why}, then resume: all that was journaled is kept")
            self._refresh()
            time.sleep(min(left, WAIT_SECONDS))


class Copies:
    """Copies of versions for clones, one after another in a thread. Those that wait for a disk end with ``finish``."""

    def __init__(self) -> None:
        self._chores = Chores()
        #: Copies that were asked for, counted by the run's thread, and those that ended, counted by the other one.
        self._asked = self._done = 0
        self._waits = False
        self._ended = threading.Event()

    @property
    def busy(self) -> bool:
        """Whether a copy is under way, and does not wait for a disk."""
        return self._asked > self._done and not self._waits

    def add(self, copy: Callable[[], object]) -> None:
        """Queue a copy."""
        self._asked += 1
        self._chores.add(lambda: self._make(copy))

    def pause(self, seconds: float) -> bool:
        """Wait before another attempt at a copy; return whether the run still wants it."""
        self._waits = True
        return not self._ended.wait(seconds)

    def finish(self) -> None:
        """Give up copies that wait, without waiting for the one that is being made."""
        self._ended.set()
        self._chores.finish(wait=False)

    def _make(self, copy: Callable[[], object]) -> None:
        try:
            if not self._ended.is_set():
                copy()
        finally:
            self._done, self._waits = self._done + 1, False


class Stopwatch:
    """The running time of each worker's current unit, as far as ``look`` was called.

    Changes of the system clock have no effect. Time in which this process or the machine was suspended does not count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked = clock()
        self._counted = 0.0
        self._started: dict[str, float] = {}

    def start(self, worker: str) -> None:
        self._started[worker] = self._counted

    def look(self, *, stands: bool = False) -> bool:
        """Count the time since the last look, unless the run ``stands``. Return False if that was only a moment ago."""
        passed = self._clock() - self._looked
        if passed < WAIT_SECONDS:
            return False
        self._looked += passed
        self._counted += 0.0 if stands else min(passed, AWAY_SECONDS)
        return True

    @property
    def ages(self) -> dict[str, float]:
        """Seconds by worker, also for workers that are idle or gone."""
        return {worker: self._counted - started for worker, started in self._started.items()}


class Interrupts:
    """Ctrl-C during a run: the first one calls ``first``, the second raises KeyboardInterrupt at once."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._first = first
        self._count = 0

    def __enter__(self) -> Self:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
        self._first()
