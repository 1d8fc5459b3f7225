"""Saves model versions beside the training, in threads.

Where there is room, a save begins with a copy in memory, and the model trains on at once. Otherwise the model waits
until it is saved.

A full or failing disk loses nothing: the model stays in memory, the controller is told that the save is delayed, and
the saver tries until it succeeds. Later saves wait in their order. A state that no disk would take, because the task's
code raises or a limit of the process is exceeded, is reported as a failed save.

A thread that writes many small files takes the interpreter away from the main thread, which has to begin the next unit.
So copies of small models are written when the main thread reports that it is under way, or after a moment.

The copy of a version at the end of an epoch may wait in memory: where epochs are short, newer versions replace most of
them. Copies that wait are written one at a time and take a few percent of the time, unless their time is up.

A remote version is written locally first, and uploaded by another thread: neither the model that trains on nor the next
save waits for the network. A version counts as saved when it has arrived.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hopfleet.domain.messages import Event, SaveDelayed, SaveFailed, SaveVersion, VersionLost, VersionSaved
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError
from hopfleet.frameworks.base import Session
from hopfleet.store.base import VersionStore
from hopfleet.support.files import FULL, LIMITS, back_off, limited, trouble
from hopfleet.support.user_code import describe_with_place, format_traceback, place

SMALL = 1 << 18
"""Bytes below which the main thread writes versions that are not durable itself, and below which copies can wait."""

PARTS = 4
"""Fraction of the room for copies, as a divisor, that one copy may take: a large model is slow to write anyway."""

STALL_SECONDS, SLOW_BYTES = 30.0, 1 << 20
"""Seconds after which a durable save is reported as delayed, and bytes for which it gets another second."""

HANG_SECONDS = 300.0
"""Seconds after which a durable write that has not ended is given up, beside those for its bytes, and tried again."""

PACE = 0.03
"""Maximum share of the time in which versions that may wait are written, unless their time is up."""

MOMENT = 0.02
"""Maximum seconds that copies of small models wait for the main thread."""


class _Unsavable(Exception):
    """The cause, an OSError, was raised by the task's code and not by a disk."""


@dataclass(frozen=True, slots=True)
class Save:
    """A requested save. Without ``write``, the version is in a file that another worker has saved."""

    command: SaveVersion
    write: Callable[[Path], None] | None
    size: int = 0
    #: Whether ``write`` writes a copy, so that the model may train on.
    copied: bool = False
    #: When a save that waits has to be written, on a monotonic clock.
    due: float = 0.0


class Saver:
    """Writes versions in order, in the background or, without a thread, at once.

    ``emit`` takes the events: a version was saved, cannot be saved, or waits for the disk. ``room`` returns how many
    bytes of copies may wait to be written, and ``patience`` is how many seconds a copy may wait. ``hopeless`` tells
    whether an exception means that the whole process is lost; then no event is emitted.
    """

    def __init__(
        self,
        versions: VersionStore,
        emit: Callable[[Event], None],
        *,
        worker: str,
        threads: int,
        room: Callable[[], int] = lambda: 0,
        patience: float = 0.0,
        hopeless: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        self._versions = versions
        self._emit = emit
        self._worker = worker
        self._room = room
        self._patience = patience
        self._hopeless = hopeless
        #: Number of saves that the model of each trial waits for, and bytes of all copies.
        self._pending: dict[str, int] = {}
        self._copies = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        #: Whether the main thread has nothing urgent to do.
        self._under_way = threading.Event()
        #: Without a thread: saves that the disk has not taken yet.
        self._delayed: deque[Save] = deque()
        #: Saves to be written as soon as possible, in order, and those that wait, by the time when they are due.
        self._queue: deque[Save] = deque()
        self._waiting: list[Save] = []
        #: Whether a save that has waited is being written, and the earliest time for the next one.
        self._writing = False
        self._next = 0.0
        #: Trials with a version that is being written.
        self._busy: set[str] = set()
        self._uploads: queue.SimpleQueue[VersionSaved | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name="saver", daemon=True) for _ in range(threads)]
        self._uploader = threading.Thread(target=self._upload, name="uploader", daemon=True)
        if threads:
            for thread in (*self._threads, self._uploader):
                thread.start()

    def save(self, command: SaveVersion, session: Session | None) -> None:
        """Save the current state of ``session``, which must not train again before ``wait`` returns.

        Without a session, make durable what another worker has saved; report a loss if there is no such file.
        """
        save = Save(command, None) if session is None else Save(command, session.save, size_of(session))
        small = session is not None and not command.durable and save.size < SMALL
        if not self._threads:
            if self._delayed or not self._done(save):
                self._delayed.append(save)
            return
        due, copy = self._replace(command)
        if copy is not None:
            save = replace(copy, command=command, due=0.0)
            with self._changed:
                self._queue.append(save)
                self._changed.notify_all()
            return
        if small and not self._saves(command.trial) and self._done(save, quietly=True):
            return
        save = save if session is None else self._copied(save, session)
        self._under_way.clear()
        self._note(save, 1)
        with self._changed:
            if command.waits and save.copied and self._patience:
                self._defer(save, due)
            else:
                self._queue.append(save)
            self._changed.notify_all()

    def _replace(self, command: SaveVersion) -> tuple[float, Save | None]:
        """Forget the waiting saves that a command replaces; return when its own save is due, and a copy of its version.

        Unless that save may wait, those of the same trial that still wait are written before it.
        """
        due, copy = time.monotonic() + self._patience, None
        with self._changed:
            for save in [save for save in self._waiting if save.command.trial == command.trial]:
                if save.command.ref.attempt in command.replaces:
                    self._waiting.remove(save)
                    due = min(due, save.due)
                    if save.command.ref.version == command.ref.version:
                        copy = save
                    else:
                        self._copies -= save.size
                elif not command.waits:
                    self._waiting.remove(save)
                    self._queue.append(save)
        return due, copy

    def _defer(self, save: Save, due: float) -> None:
        """Let a save wait. Older versions of the same trial are due first: one of them may be the best."""
        others = [one for one in self._waiting if one.command.trial == save.command.trial]
        kept = [one for one in self._waiting if one not in others]
        times = sorted([due, *(one.due for one in others)])
        renewed = [replace(one, due=time) for one, time in zip([*others, save], times, strict=True)]
        self._waiting = sorted([*kept, *renewed], key=lambda one: one.due)

    def _saves(self, trial: str) -> bool:
        """Whether a version of a trial is still to be written, or is being written."""
        with self._changed:
            return trial in self._busy or any(save.command.trial == trial for save in [*self._queue, *self._waiting])

    def flush(self) -> None:
        """Write all copies, and return when none of them takes memory any more."""
        with self._changed:
            self._queue += self._waiting
            self._waiting.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._copies)

    def under_way(self) -> None:
        """Note that the main thread is busy with long work, or idle."""
        self._under_way.set()

    def retry(self) -> None:
        """Try delayed saves again. Only for a saver without threads."""
        while self._delayed and self._done(self._delayed[0], quietly=True):
            self._delayed.popleft()

    def wait(self, trial: str) -> None:
        """Return when no save reads the model of this trial any more."""
        pauses = back_off()
        while any(save.command.trial == trial for save in self._delayed):
            self._closing.wait(next(pauses))
            self.retry()
        with self._changed:
            self._changed.wait_for(lambda: not self._pending.get(trial))

    def close(self) -> None:
        """Finish all saves. Saves that the disk does not take now are lost with the process."""
        self._closing.set()
        self._under_way.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        if self._threads:
            self._uploads.put(None)
            self._uploader.join()
        self.retry()

    def _copied(self, save: Save, session: Session) -> Save:
        """Return the save with a copy of the state, if there is room for a copy."""
        room = self._room()
        if session.spread:
            # Only the main thread can collect the parts of a state from other processes.
            return replace(save, write=_copied_now(session), copied=True)
        if save.size > room // PARTS or self._copies + save.size > room:
            return save
        try:
            snapshot = session.snapshot()
        except Exception:
            return save  # the save itself reports the error
        return save if snapshot is None else replace(save, write=snapshot, copied=True)

    def _note(self, save: Save, sign: int) -> None:
        """Count a save that comes or goes."""
        with self._changed:
            if save.copied:
                self._copies += sign * save.size
            else:
                trial = save.command.trial
                self._pending[trial] = self._pending.get(trial, 0) + sign
            self._changed.notify_all()

    def _take(self) -> Save | None:
        """Return the next save, as soon as there is one; None if there will be no more."""
        with self._changed:
            while True:
                closing, seconds = self._closing.is_set(), None
                if closing:
                    self._queue += self._waiting
                    self._waiting.clear()
                # Versions of a trial are saved in order, so that a newer one is never kept without the best.
                save = next((one for one in self._queue if one.command.trial not in self._busy), None)
                if save is not None:
                    self._queue.remove(save)
                elif closing and not self._queue:
                    return None
                elif self._waiting and not self._writing:
                    seconds = min(self._waiting[0].due, self._next) - time.monotonic()
                    if seconds <= 0:
                        save, self._writing = self._waiting.pop(0), True
                if save is not None:
                    self._busy.add(save.command.trial)
                    return save
                self._changed.wait(seconds)

    def _work(self) -> None:
        while (save := self._take()) is not None:
            if save.copied and save.size < SMALL:
                self._under_way.wait(MOMENT)
                self._under_way.set()  # the other copies have waited as long
            slow, began = self._slow(save), time.monotonic()
            try:
                self._persist(save)
            finally:
                slow.cancel()
                self._note(save, -1)
                self._end(save, time.monotonic() - began)
            del save

    def _end(self, save: Save, seconds: float) -> None:
        """Let other saves begin; one that waits, when the seconds of this one are a small part of the time."""
        with self._changed:
            self._busy.discard(save.command.trial)
            if save.due:
                self._writing, self._next = False, time.monotonic() + seconds * (1 / PACE - 1)
            self._changed.notify_all()

    def _slow(self, save: Save) -> threading.Timer:
        """Report a durable save as delayed if it has not ended in time: a disk that stalls raises no error."""
        seconds = STALL_SECONDS + save.size / SLOW_BYTES
        path = self._versions.path(save.command.ref, durable=True)
        text = f"{path}: is being written for more than {seconds:.0f} s; check that disk"
        event = SaveDelayed(self._worker, save.command.ref, text)
        timer = threading.Timer(seconds, self._emit, (event,))
        timer.daemon = True
        if save.command.durable:
            timer.start()
        return timer

    def _persist(self, save: Save) -> None:
        if self._done(save):
            return
        for seconds in back_off():
            closing = self._closing.wait(seconds)
            if self._done(save, quietly=True) or closing:
                return

    def _done(self, save: Save, *, quietly: bool = False) -> bool:
        """Whether a save has succeeded or failed for good. Report a disk that does not take it, unless ``quietly``."""
        command, write = save.command, save.write
        ref, durable = command.ref, command.durable
        event: Event
        try:
            if write is None:
                digest, size = self._versions.keep(ref, command.saved, command.digest)
                durable = True
            else:
                digest, size = self._write(save, write)
        except (Exception, SystemExit) as error:
            if isinstance(error, OSError) and error.errno not in LIMITS:
                if not quietly:
                    path = self._versions.path(ref, durable=True)
                    self._emit(SaveDelayed(self._worker, ref, trouble(path, error)))
                return False
            if isinstance(error, Exception) and self._hopeless(error):
                return True
            if write is None and isinstance(error, CheckpointError):
                reason = f"{self._worker} does not hold it any more: {error}"
                event = VersionLost(ref._replace(attempt=command.saved), reason, self._worker, ref.attempt or 0)
            else:
                event = self._failed(ref, error)
        else:
            event = VersionSaved(ref, durable, digest, size)
            if durable and self._versions.sends:
                # Other workers get the version from this node until it is in the storage, and after that.
                self._emit(VersionSaved(ref, False, digest, size))
                self._uploads.put(event)
                return True
        self._emit(event)
        return True

    def _failed(self, ref: VersionRef, error: BaseException) -> SaveFailed:
        """Return the report of a save that will not succeed."""
        if isinstance(error, _Unsavable) and error.__cause__ is not None:
            error = error.__cause__
        if isinstance(error, OSError) and error.errno in LIMITS:
            return SaveFailed(ref, trouble(self._versions.path(ref, durable=True), error))
        return SaveFailed(ref, describe_with_place(error), format_traceback(error))

    def _write(self, save: Save, write: Callable[[Path], None]) -> tuple[str, int]:
        """Write a version, and return its digest and size. Raise TimeoutError if a durable write hangs.

        The thread of a write that hangs is left behind. If it goes on later, it must not touch the version: the model
        may have changed by then.
        """
        given_up = threading.Event()

        def unless_given_up(path: Path) -> None:
            try:
                write(path)
            except OSError as error:
                if place(error) and error.errno not in FULL:
                    raise _Unsavable from error
                raise
            if given_up.is_set():
                raise TimeoutError("the write took too long and was given up")

        def job() -> tuple[str, int]:
            return self._versions.write(save.command.ref, unless_given_up, durable=save.command.durable, size=save.size)

        if not self._threads or not save.command.durable:
            return job()
        try:
            return limited(job, HANG_SECONDS + save.size / SLOW_BYTES)
        finally:
            given_up.set()

    def _upload(self) -> None:
        while (event := self._uploads.get()) is not None:
            self._send(event)

    def _send(self, saved: VersionSaved) -> None:
        """Bring a version to where it is kept, however often it takes; it lies on the own disk until then."""
        told = False
        for seconds in back_off():
            try:
                self._versions.send(saved.ref)
            except OSError as error:
                if not told:
                    self._emit(SaveDelayed(self._worker, saved.ref, str(error), on_node=True))
                told = True
                if self._closing.wait(seconds):
                    return
            except Exception as error:
                self._emit(self._failed(saved.ref, error))
                return
            else:
                self._emit(saved)
                return


def size_of(session: Session) -> int:
    """Return the bytes of a session's state; 0 if it cannot be told, and then the save tells why."""
    try:
        return session.size
    except Exception:
        return 0


def _copied_now(session: Session) -> Callable[[Path], None]:
    """Copy the state of a session; return a function that writes the copy, or raises why there is none."""
    try:
        write = session.snapshot()
        assert write is not None, "a session whose state is spread must make snapshots"
        return write
    except Exception as error:
        reason = error

    def fail(path: Path) -> None:
        raise reason

    return fail
