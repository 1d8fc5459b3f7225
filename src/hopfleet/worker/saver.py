"""Saves model versions beside the work: a thread that writes what the main thread no longer changes.

A disk that is full, or fails, loses nothing: the model stays in memory, the controller hears that the save is delayed,
and the saver tries until it succeeds. Others wait behind it in the order in which they were asked for.

What is kept far away is written here first, and brought there by another thread: nobody waits for the network, neither
the model that trains on nor the next save. A version counts as saved when it has arrived.
"""

from __future__ import annotations

import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable

from hopfleet.domain.messages import Event, SaveDelayed, SaveFailed, SaveVersion, VersionLost, VersionSaved
from hopfleet.errors import CheckpointError, describe
from hopfleet.files import back_off, trouble
from hopfleet.frameworks.base import Session
from hopfleet.store.versions import Versions

SMALL = 1 << 18
"""Bytes up to which a hand-over is written sooner than a thread could be woken."""

Item = tuple[SaveVersion, Session | None]


class Saver:
    """Writes versions in order, in the background or, without a thread, at once.

    ``emit`` hears of each version that was saved, of a state that cannot be, and of a disk that makes it wait.
    """

    def __init__(self, versions: Versions, emit: Callable[[Event], None], *, worker: str, background: bool) -> None:
        self._versions = versions
        self._emit = emit
        self._worker = worker
        self._pending: dict[str, int] = {}
        self._changed = threading.Condition()
        self._closing = threading.Event()
        #: Without a thread: saves that the disk has not taken yet.
        self._delayed: deque[Item] = deque()
        self._queue: queue.SimpleQueue[Item | None] | None = None
        self._journeys: queue.SimpleQueue[VersionSaved | None] = queue.SimpleQueue()
        if background:
            self._queue = queue.SimpleQueue()
            self._thread = threading.Thread(target=self._work, name="saver", daemon=True)
            self._thread.start()
            self._porter = threading.Thread(target=self._carry, name="porter", daemon=True)
            self._porter.start()

    def save(self, command: SaveVersion, session: Session | None) -> None:
        """Save what ``session`` holds now. It must not train again before ``wait`` returns.

        Without a session, save durably what somebody else has saved for others, and tell of a loss if nobody has.
        """
        small = session is not None and not command.durable and session.size < SMALL
        if self._queue is None:
            if self._delayed or not self._done(command, session):
                self._delayed.append((command, session))
        elif not small or not self._done(command, session, quietly=True):
            with self._changed:
                self._pending[command.trial] = self._pending.get(command.trial, 0) + 1
            self._queue.put((command, session))

    def retry(self) -> None:
        """Without a thread: try again what the disk has not taken yet."""
        while self._delayed and self._done(*self._delayed[0], quietly=True):
            self._delayed.popleft()

    def wait(self, trial: str) -> None:
        """Return when nothing of this trial is being saved."""
        pauses = back_off()
        while any(command.trial == trial for command, _ in self._delayed):
            self._closing.wait(next(pauses))
            self.retry()
        with self._changed:
            self._changed.wait_for(lambda: trial not in self._pending)

    def close(self) -> None:
        """Finish what was asked for; what the disk does not take now is lost with the process."""
        self._closing.set()
        if self._queue is not None:
            self._queue.put(None)
            self._thread.join()
            self._journeys.put(None)
            self._porter.join()
        self.retry()

    def _work(self) -> None:
        assert self._queue is not None
        while (item := self._queue.get()) is not None:
            try:
                self._persist(*item)
            finally:
                trial = item[0].trial
                with self._changed:
                    self._pending[trial] -= 1
                    if not self._pending[trial]:
                        del self._pending[trial]
                    self._changed.notify_all()
            del item

    def _persist(self, command: SaveVersion, session: Session | None) -> None:
        if self._done(command, session):
            return
        for seconds in back_off():
            closing = self._closing.wait(seconds)
            if self._done(command, session, quietly=True) or closing:
                return

    def _done(self, command: SaveVersion, session: Session | None, *, quietly: bool = False) -> bool:
        """Whether a save has come to an end, good or bad. If the disk does not take it, tell so unless ``quietly``."""
        trial, version, durable, attempt = command.trial, command.version, command.durable, command.attempt
        event: Event
        try:
            if session is None:
                digest, size = self._versions.keep(trial, version, attempt, command.saved, command.digest)
                durable = True
            else:
                where = (trial, version, attempt)
                digest, size = self._versions.write(*where, session.save, durable=durable, size=session.size)
        except OSError as error:
            if not quietly:
                path = self._versions.path(trial, version, attempt, durable=True)
                self._emit(SaveDelayed(self._worker, trial, version, attempt, trouble(path, error)))
            return False
        except Exception as error:
            if session is None and isinstance(error, CheckpointError):
                reason = f"{self._worker} does not hold it any more: {error}"
                event = VersionLost(trial, version, reason, self._worker, attempt, command.saved)
            else:
                event = SaveFailed(trial, version, describe(error), traceback.format_exc(), attempt)
        else:
            event = VersionSaved(trial, version, durable, digest, size, attempt)
            if durable and self._versions.far:
                self._journeys.put(event)
                return True
        self._emit(event)
        return True

    def _carry(self) -> None:
        while (event := self._journeys.get()) is not None:
            self._brought(event)

    def _brought(self, saved: VersionSaved) -> None:
        """Bring a version to where it is kept, however often it takes; it lies on the own disk until then."""
        where = (saved.trial, saved.version, saved.attempt)
        told = False
        for seconds in back_off():
            try:
                self._versions.send(*where)
            except OSError as error:
                if not told:
                    self._emit(SaveDelayed(self._worker, *where, str(error)))
                told = True
                if self._closing.wait(seconds):
                    return
            else:
                self._emit(saved)
                return
