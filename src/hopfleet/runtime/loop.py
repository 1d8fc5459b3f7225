"""The shell around the controller: events in from the backend, messages into the journal, commands out.

Everything is journaled before it takes effect. The loop is responsible for order and effects; the controller makes all
decisions.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol, Self, TypeVar

from hopfleet.backends.base import Backend
from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import (
    AddWorkers,
    CopyVersion,
    DropVersion,
    Event,
    Finish,
    Message,
    PlacePartition,
    ReleaseWorker,
    RequestMade,
    RunUnit,
    SaveVersion,
    StopUnit,
    TrialDeleted,
    TrialEnded,
    UnitFailed,
    UnitFinished,
    VersionLost,
    VersionSaved,
    WorkerRetired,
)
from hopfleet.errors import CheckpointError, Interrupted
from hopfleet.store.base import JournalStore, VersionStore
from hopfleet.support.background import Chores
from hopfleet.support.files import back_off, trouble

T = TypeVar("T")

WAIT_SECONDS = 0.25
"""How long to wait for an event before looking at the keyboard and the view again."""

AWAY_SECONDS = 1.0
"""Of a longer time between two looks, say because of a Ctrl-Z, no more counts as time that units have run."""


class Observer(Protocol):
    """A watcher of a run."""

    def update(self, time: float, message: Message) -> None:
        """Hear of a message right after it was journaled."""

    def refresh(self) -> None:
        """Called a few times a second, also when nothing happens."""

    def waiting(self, text: str) -> None:
        """Hear that the run itself waits for a disk, and for which; without a text, that it goes on."""


class Loop:
    """One run of an experiment, from its first event to ``Finish``."""

    def __init__(
        self,
        controller: Controller,
        backend: Backend,
        journal: JournalStore,
        versions: VersionStore,
        observer: Observer,
    ) -> None:
        self._controller = controller
        self._backend = backend
        self._journal = journal
        self._versions = versions
        self._observer = observer
        self._request = threading.Event()
        self._chores = Chores()
        #: What happened while acting on messages, to be taken in next.
        self._own: list[Event] = []
        self._complete = False
        #: Why the run ended, unless by a request.
        self.reason = ""
        self._patience = Stopwatch()
        #: When workers began what they do, as far as is known here, by a clock that cannot be set.
        self._began: dict[str, float] = {}

    def run(self, first: list[Event]) -> bool:
        """Continue, after the events ``first``, until all is finished (True) or drained by a request (False)."""
        self._take(first)
        asked = False
        while not self._controller.finished:
            if self._request.is_set() and not asked:
                asked = True
                self._take([RequestMade("drain")])
                continue
            own, self._own = self._own, []
            waits = min(WAIT_SECONDS, self._controller.next_look(self._ages))
            self._take([*own, *self._journal.requests.pending()] or self._backend.receive(waits))
            self._follow(self._controller.look_ahead(self._ages))
            if self._patience.look(stands=self._controller.stands):
                self._take(self._controller.overdue(self._patience.ages))
            self._observer.refresh()
        return self._complete

    @property
    def stuck(self) -> bool:
        """Whether some worker still waits for its disk, and will not end by itself."""
        return bool(self._controller.schedule.delayed)

    def drain(self) -> None:
        """Ask for a resumable end as soon as all running units are done. Safe from a signal handler."""
        self._request.set()

    def _take(self, events: list[Event]) -> None:
        """Take in events, and follow what the controller makes of them."""
        messages = self._controller.take(events)
        counted = {id(message) for message in messages}
        for event in events:
            if id(event) not in counted:
                self._tidy(event)
        self._follow(messages)

    @property
    def _ages(self) -> dict[str, float]:
        """For how many seconds workers have been at what they do; also of those that are done or gone."""
        now = time.monotonic()
        return {worker: now - began for worker, began in self._began.items()}

    def _follow(self, messages: list[Message]) -> None:
        """Journal messages, then act."""
        if not messages:
            return
        now = self._backend.now()
        self._patiently(self._journal.path, lambda: self._journal.append(now, messages))
        for message in messages:
            self._act(message)
        for message in messages:
            self._observer.update(now, message)

    def _begins(self, worker: str) -> None:
        self._patience.start(worker)
        self._began[worker] = time.monotonic()

    def _act(self, message: Message) -> None:
        match message:
            case UnitFinished() | UnitFailed():
                self._begins(message.worker)  # if it was told ahead what to do
            case RunUnit() | SaveVersion():
                progress = self._controller.schedule.find(message.trial)
                assert progress is not None, f"{message.trial} is unknown"
                if isinstance(message, RunUnit) and not message.lookahead:
                    self._begins(message.worker)
                self._backend.send(message, progress.trial)
            case DropVersion():
                # Deleting a large file takes a while, so do it in the background. Leftovers are removed at the end.
                self._chores.add(partial(self._versions.drop, message.ref))
            case CopyVersion():
                self._own.append(self._copied(message))
            case TrialEnded(trial=trial):
                self._chores.add(partial(self._versions.collect, trial))
            case TrialDeleted(trial=trial):
                self._chores.add(partial(self._versions.forget, trial))
            case StopUnit(worker=worker):
                self._backend.stop(worker)
            case AddWorkers(count=count):
                self._backend.add(count)
            case WorkerRetired(worker=worker):
                self._backend.retire(worker)
            case ReleaseWorker(worker=worker):
                self._backend.release(worker)
            case PlacePartition(worker=worker, partition=partition):
                self._backend.place(worker, partition)
            case Finish():
                self._complete, self.reason = message.complete, message.reason
                self._chores.finish()
                self._versions.release()
            case _:
                pass

    def _tidy(self, refused: Event) -> None:
        """The file of a save that comes too late goes, unless it is the version: a report may come twice."""
        if isinstance(refused, VersionSaved) and not self._controller.schedule.refers(refused.ref):
            self._versions.drop(refused.ref)

    def _copied(self, copy: CopyVersion) -> Event:
        source, ref = copy.source, copy.ref
        path = self._versions.path(ref, durable=True)
        try:
            digest, size = self._patiently(path, lambda: self._versions.copy(source, ref, copy.digest))
        except CheckpointError as error:
            return VersionLost(ref._replace(attempt=None), str(error), None, ref.attempt or 0)
        return VersionSaved(ref, True, digest, size)

    def _patiently(self, path: Path, write: Callable[[], T]) -> T:
        """Write a file, as often as it takes. While the disk does not take it, nothing else happens here."""
        told = ""
        for seconds in back_off():
            try:
                done = write()
            except OSError as error:
                if not told:
                    told = trouble(path, error)
                    self._observer.waiting(told)
                self._idle(seconds, told)
                continue
            if told:
                self._observer.waiting("")
            return done
        raise AssertionError("there is always another attempt")

    def _idle(self, seconds: float, why: str) -> None:
        """Wait, and give up on Ctrl-C: what is journaled so far can be resumed."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._request.is_set():
                raise Interrupted(f"{why}, then resume: all that was journaled is kept")
            self._observer.refresh()
            time.sleep(min(left, WAIT_SECONDS))


class Stopwatch:
    """The seconds that workers have spent on their last command, as far as they were sampled.

    It takes no notice of the date, and time in which this process or the whole machine stood still does not count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked = clock()
        self._counted = 0.0
        self._started: dict[str, float] = {}

    def start(self, worker: str) -> None:
        self._started[worker] = self._counted

    def look(self, *, stands: bool = False) -> bool:
        """Count the time since the last look, unless time ``stands``; False if that was only a moment ago."""
        passed = self._clock() - self._looked
        if passed < WAIT_SECONDS:
            return False
        self._looked += passed
        self._counted += 0.0 if stands else min(passed, AWAY_SECONDS)
        return True

    @property
    def ages(self) -> dict[str, float]:
        """Seconds by worker; also of those that are done or gone."""
        return {worker: self._counted - started for worker, started in self._started.items()}


class Interrupts:
    """Ctrl-C during a run: the first one calls ``first``, the second raises KeyboardInterrupt at once."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._first = first
        self._count = 0

    def __enter__(self) -> Self:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
        self._first()
