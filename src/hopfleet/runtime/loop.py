"""The loop of a real run: the driver, with a journal, saved versions, timeouts, requests and Ctrl-C.

Every message is journaled before it has an effect. All decisions are the controller's.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Self, TypeVar

from hopfleet.backends.base import Backend, Cluster, FormsTeams
from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import (
    CopyVersion,
    DropVersion,
    Event,
    Finish,
    FormTeams,
    Message,
    RequestMade,
    RunUnit,
    TrialDeleted,
    TrialEnded,
    UnitFailed,
    UnitFinished,
    UnitStopped,
    VersionLost,
    VersionSaved,
)
from hopfleet.errors import CheckpointError, Interrupted
from hopfleet.monitor.observer import Observer
from hopfleet.runtime.driver import Driver, Effects
from hopfleet.store.base import JournalStore, VersionStore
from hopfleet.support.background import Chores
from hopfleet.support.files import back_off, trouble

T = TypeVar("T")

WAIT_SECONDS = 0.1
"""Longest wait in seconds for an event, after which requests, signals and observers get their turn."""

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
        self._versions = versions
        self._observers = observers
        self._request = threading.Event()
        self._chores = Chores()
        #: Events that effects led to, to be taken next.
        self._own: list[Event] = []
        self._complete = False
        #: Why the run ended, unless a person asked for the end.
        self.reason = ""
        self._cluster = backend if isinstance(backend, Cluster) else None
        #: Whether the cluster is in trouble, which observers were told.
        self._troubled = False
        self._stopwatch = Stopwatch()
        #: When each worker began its current unit, on a monotonic clock.
        self._began: dict[str, float] = {}
        self._driver = Driver(
            controller, backend, observers, journal=self._write, effects=self._effects(), refused=self._refuse
        )

    def run(self, first: list[Event]) -> bool:
        """Start with the events ``first``; return True when all is finished, False when the run was drained."""
        try:
            return self._run(first)
        finally:
            self._chores.finish(wait=False)

    def _run(self, first: list[Event]) -> bool:
        driver, controller = self._driver, self._controller
        driver.step(first)
        asked = False
        while not controller.finished:
            if self._request.is_set() and not asked:
                asked = True
                driver.step([RequestMade("drain")])
                continue
            own, self._own = self._own, []
            waits = min(WAIT_SECONDS, controller.next_look(self._ages))
            driver.step([*own, *self._journal.requests.pending()] or self._backend.receive(waits))
            driver.follow(controller.look_ahead(self._ages))
            self._look_at_cluster()
            if self._stopwatch.look(stands=controller.stands or self._troubled):
                driver.step(controller.overdue(self._stopwatch.ages))
            self._refresh()
        return self._complete

    @property
    def stuck(self) -> bool:
        """Whether a worker still waits for its disk, and so will not end by itself."""
        return bool(self._controller.schedule.delayed)

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
        """Return the effects beside the calls of the backend."""
        return {
            RunUnit: self._run_unit,
            # A worker with a lookahead unit begins that unit when it reports.
            UnitFinished: lambda event: self._begin(event.worker),
            UnitFailed: lambda event: self._begin(event.worker),
            UnitStopped: lambda event: self._begin(event.worker),
            # Deleting a large file takes a while; the end of the run tidies up what is left.
            DropVersion: lambda command: self._chores.add(partial(self._versions.drop, command.ref)),
            TrialEnded: lambda decision: self._chores.add(partial(self._versions.collect, decision.trial)),
            TrialDeleted: lambda decision: self._chores.add(partial(self._versions.forget, decision.trial)),
            CopyVersion: lambda command: self._own.append(self._copied(command)),
            FormTeams: self._form_teams,
            Finish: self._finish,
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

    def _finish(self, command: Finish) -> None:
        self._complete, self.reason = command.complete, command.reason
        self._chores.finish()
        self._retry(None, self._versions.release)

    def _refuse(self, event: Event) -> None:
        """Delete the file of a late save, unless the file is the current version: a report may come twice."""
        if isinstance(event, VersionSaved) and not self._controller.schedule.refers(event.ref):
            self._versions.drop(event.ref)

    def _copied(self, copy: CopyVersion) -> Event:
        source, ref = copy.source, copy.ref
        path = self._versions.path(ref, durable=True)
        try:
            digest, size = self._retry(path, lambda: self._versions.copy(source, ref, copy.digest))
        except CheckpointError as error:
            return VersionLost(ref._replace(attempt=None), str(error), None, ref.attempt or 0)
        return VersionSaved(ref, True, digest, size)

    # ------------------------------------------------------------------------------------------ a disk that is full

    def _write(self, now: float, messages: Sequence[Message]) -> None:
        self._retry(self._journal.path, lambda: self._journal.append(now, messages))

    def _retry(self, path: Path | None, write: Callable[[], T]) -> T:
        """Write a file, or fetch files from a storage, trying again until that succeeds, and do nothing else."""
        told = ""
        for seconds in back_off():
            try:
                done = write()
            except OSError as error:
                if not told:
                    told = str(error) if path is None else trouble(path, error)
                    self._tell_waiting(told)
                self._idle(seconds, told)
                continue
            if told:
                self._tell_waiting("")
            return done
        raise AssertionError("there is always another attempt")

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
