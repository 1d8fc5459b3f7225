"""Saves model versions beside the training, in threads.

Where there is room, a save begins with a copy in memory, and the model trains on at once. Otherwise the model waits
until it is saved.

A full or failing disk loses nothing: the model stays in memory, the controller is told that the save is delayed, and
the saver tries until it succeeds. Later saves wait in their order.

A thread that writes many small files takes the interpreter away from the main thread, which has to begin the next unit.
So copies of small models are written when the main thread reports that it is under way, or after a moment.

A remote version is written locally first, and uploaded by another thread: neither the model that trains on nor the next
save waits for the network. A version counts as saved when it has arrived.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hopfleet.domain.messages import Event, SaveDelayed, SaveFailed, SaveVersion, VersionLost, VersionSaved
from hopfleet.errors import CheckpointError
from hopfleet.frameworks.base import Session
from hopfleet.store.base import VersionStore
from hopfleet.support.files import back_off, limited, trouble
from hopfleet.support.user_code import describe_with_place, format_traceback

SMALL = 1 << 18
"""Bytes below which the main thread writes versions that are not durable itself, and below which copies can wait."""

PARTS = 4
"""Fraction of the room for copies, as a divisor, that one copy may take: a large model is slow to write anyway."""

STALL_SECONDS, SLOW_BYTES = 30.0, 1 << 20
"""Seconds after which a durable save is reported as delayed, and bytes for which it gets another second."""

HANG_SECONDS = 300.0
"""Seconds after which a durable write that has not ended is given up, beside those for its bytes, and tried again."""

MOMENT = 0.02
"""Maximum seconds that copies of small models wait for the main thread."""


@dataclass(frozen=True, slots=True)
class Save:
    """A requested save. Without ``write``, the version is in a file that another worker has saved."""

    command: SaveVersion
    write: Callable[[Path], None] | None
    size: int = 0
    #: Whether ``write`` writes a copy, so that the model may train on.
    copied: bool = False


class Saver:
    """Writes versions in order, in the background or, without a thread, at once.

    ``emit`` takes the events: a version was saved, cannot be saved, or waits for the disk. ``room`` returns how many
    bytes of copies may wait to be written. ``hopeless`` tells whether an exception means that the whole process is
    lost; then no event is emitted.
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
        #: Number of saves that the model of each trial waits for, and bytes of all copies.
        self._pending: dict[str, int] = {}
        self._copies = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        #: Whether the main thread has nothing urgent to do.
        self._under_way = threading.Event()
        #: Without a thread: saves that the disk has not taken yet.
        self._delayed: deque[Save] = deque()
        self._queue: queue.SimpleQueue[Save | None] = queue.SimpleQueue()
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
        save = Save(command, None) if session is None else Save(command, session.save, session.size)
        small = session is not None and not command.durable and save.size < SMALL
        if not self._threads:
            if self._delayed or not self._done(save):
                self._delayed.append(save)
        elif not small or not self._done(save, quietly=True):
            save = save if session is None else self._copied(save, session)
            self._under_way.clear()
            self._note(save, 1)
            self._queue.put(save)

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
        for _ in self._threads:
            self._queue.put(None)
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

    def _work(self) -> None:
        while (save := self._queue.get()) is not None:
            if save.copied and save.size < SMALL:
                self._under_way.wait(MOMENT)
                self._under_way.set()  # the other copies have waited as long
            slow = self._slow(save)
            try:
                self._persist(save)
            finally:
                slow.cancel()
                self._note(save, -1)
            del save

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
                event = SaveFailed(ref, describe_with_place(error), format_traceback(error))
        else:
            event = VersionSaved(ref, durable, digest, size)
            if durable and self._versions.sends:
                self._uploads.put(event)
                return True
        self._emit(event)
        return True

    def _write(self, save: Save, write: Callable[[Path], None]) -> tuple[str, int]:
        """Write a version, and return its digest and size. Raise TimeoutError if a durable write hangs.

        The thread of a write that hangs is left behind. If it goes on later, it must not touch the version: the model
        may have changed by then.
        """
        given_up = threading.Event()

        def unless_given_up(path: Path) -> None:
            write(path)
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
                    self._emit(SaveDelayed(self._worker, saved.ref, str(error)))
                told = True
                if self._closing.wait(seconds):
                    return
            else:
                self._emit(saved)
                return


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
