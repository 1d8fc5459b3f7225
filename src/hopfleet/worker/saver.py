"""Saves model versions beside the work: threads that write what the main thread no longer changes.

Where there is room, a save begins with a copy in memory, and its model trains on at once. Where there is not, the model
waits until it is saved.

A disk that is full, or fails, loses nothing: the model stays in memory, the controller hears that the save is delayed,
and the saver tries until it succeeds. Others wait behind it in the order in which they were asked for.

A thread that writes many small files takes the interpreter away from the main thread, which has the next unit to begin.
So copies of small models are written when the main thread says that it is under way, or after a moment.

A remote version is written locally first, and uploaded by another thread: neither the model that trains on nor the next
save waits for the network. A version counts as saved when it has arrived.
"""

from __future__ import annotations

import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hopfleet.domain.messages import Event, SaveDelayed, SaveFailed, SaveVersion, VersionLost, VersionSaved
from hopfleet.errors import CheckpointError, describe
from hopfleet.frameworks.base import Session
from hopfleet.store.base import VersionStore
from hopfleet.support.files import back_off, trouble

SMALL = 1 << 18
"""Bytes up to which a hand-over is written sooner than a thread could be woken, and up to which copies can wait."""

PARTS = 4
"""One copy may take such a part of the room for all: a large model takes long to be written anyway."""

MOMENT = 0.02
"""Seconds that copies of small models wait for the main thread, at most."""


@dataclass(frozen=True, slots=True)
class Order:
    """A requested save. Without ``write``, the version is in a file that another worker has saved."""

    command: SaveVersion
    write: Callable[[Path], None] | None
    size: int = 0
    #: What is written is a copy: the model may train on.
    copied: bool = False


class Saver:
    """Writes versions in order, in the background or, without a thread, at once.

    ``emit`` hears of each version that was saved, of a state that cannot be, and of a disk that makes it wait.
    ``room`` tells how many bytes of copies may wait to be written, ``hopeless`` which exceptions mean that the whole
    process is lost: then nothing is told.
    """

    def __init__(
        self,
        versions: VersionStore,
        emit: Callable[[Event], None],
        *,
        worker: str,
        threads: int,
        room: Callable[[], int] = lambda: 0,
        hopeless: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        self._versions = versions
        self._emit = emit
        self._worker = worker
        self._room = room
        self._hopeless = hopeless
        #: By trial, saves that its model waits for; bytes of copies.
        self._pending: dict[str, int] = {}
        self._copies = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        #: Whether the main thread has nothing to do in a hurry.
        self._under_way = threading.Event()
        #: Without a thread: saves that the disk has not taken yet.
        self._delayed: deque[Order] = deque()
        self._queue: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._journeys: queue.SimpleQueue[VersionSaved | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name="saver", daemon=True) for _ in range(threads)]
        self._porter = threading.Thread(target=self._carry, name="porter", daemon=True)
        if threads:
            for thread in (*self._threads, self._porter):
                thread.start()

    def save(self, command: SaveVersion, session: Session | None) -> None:
        """Save what ``session`` holds now. It must not train again before ``wait`` returns.

        Without a session, make durable what another worker has saved; report a loss if there is no such file.
        """
        order = Order(command, None) if session is None else Order(command, session.save, session.size)
        small = session is not None and not command.durable and order.size < SMALL
        if not self._threads:
            if self._delayed or not self._done(order):
                self._delayed.append(order)
        elif not small or not self._done(order, quietly=True):
            order = order if session is None else self._copied(order, session)
            self._under_way.clear()
            self._note(order, 1)
            self._queue.put(order)

    def under_way(self) -> None:
        """Hear from the main thread that it is busy with long work, or idle."""
        self._under_way.set()

    def retry(self) -> None:
        """Without a thread: try again what the disk has not taken yet."""
        while self._delayed and self._done(self._delayed[0], quietly=True):
            self._delayed.popleft()

    def wait(self, trial: str) -> None:
        """Return when nothing of this trial is being saved from its model itself."""
        pauses = back_off()
        while any(order.command.trial == trial for order in self._delayed):
            self._closing.wait(next(pauses))
            self.retry()
        with self._changed:
            self._changed.wait_for(lambda: not self._pending.get(trial))

    def close(self) -> None:
        """Finish what was asked for; what the disk does not take now is lost with the process."""
        self._closing.set()
        self._under_way.set()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._threads:
            self._journeys.put(None)
            self._porter.join()
        self.retry()

    def _copied(self, order: Order, session: Session) -> Order:
        """Return the order with a copy of the state, if there is room for a copy."""
        room = self._room()
        if order.size > room // PARTS or self._copies + order.size > room:
            return order
        try:
            snapshot = session.snapshot()
        except Exception:
            return order  # what is wrong shows when it is saved
        return order if snapshot is None else replace(order, write=snapshot, copied=True)

    def _note(self, order: Order, sign: int) -> None:
        """Count an order that comes or goes."""
        with self._changed:
            if order.copied:
                self._copies += sign * order.size
            else:
                trial = order.command.trial
                self._pending[trial] = self._pending.get(trial, 0) + sign
                self._changed.notify_all()

    def _work(self) -> None:
        while (order := self._queue.get()) is not None:
            if order.copied and order.size < SMALL:
                self._under_way.wait(MOMENT)
                self._under_way.set()  # others have waited as long
            try:
                self._persist(order)
            finally:
                self._note(order, -1)
            del order

    def _persist(self, order: Order) -> None:
        if self._done(order):
            return
        for seconds in back_off():
            closing = self._closing.wait(seconds)
            if self._done(order, quietly=True) or closing:
                return

    def _done(self, order: Order, *, quietly: bool = False) -> bool:
        """Whether a save has come to an end, good or bad. If the disk does not take it, tell so unless ``quietly``."""
        command, write = order.command, order.write
        ref, durable = command.ref, command.durable
        event: Event
        try:
            if write is None:
                digest, size = self._versions.keep(ref, command.saved, command.digest)
                durable = True
            else:
                digest, size = self._versions.write(ref, write, durable=durable, size=order.size)
        except OSError as error:
            if not quietly:
                path = self._versions.path(ref, durable=True)
                self._emit(SaveDelayed(self._worker, ref, trouble(path, error)))
            return False
        except Exception as error:
            if self._hopeless(error):
                return True
            if write is None and isinstance(error, CheckpointError):
                reason = f"{self._worker} does not hold it any more: {error}"
                event = VersionLost(ref._replace(attempt=command.saved), reason, self._worker, ref.attempt or 0)
            else:
                event = SaveFailed(ref, describe(error), traceback.format_exc())
        else:
            event = VersionSaved(ref, durable, digest, size)
            if durable and self._versions.sends:
                self._journeys.put(event)
                return True
        self._emit(event)
        return True

    def _carry(self) -> None:
        while (event := self._journeys.get()) is not None:
            self._brought(event)

    def _brought(self, saved: VersionSaved) -> None:
        """Bring a version to where it is kept, however often it takes; it lies on the own disk until then."""
        told = False
        for seconds in back_off():
            try:
                self._versions.send(saved.ref)
            except OSError as error:
                if not told:
                    self._emit(SaveDelayed(self._worker, saved.ref, str(error)))
                told = True
                if self._closing.wait(seconds):
                    return
            else:
                self._emit(saved)
                return
