"""Saves model versions beside the work: a thread that writes what the main thread no longer changes."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable

from hopfleet.domain.messages import Event, SaveFailed, SaveVersion, VersionLost, VersionSaved
from hopfleet.errors import CheckpointError, describe
from hopfleet.frameworks.base import Session
from hopfleet.store.versions import Versions

SMALL = 1 << 18
"""Bytes up to which a hand-over is written sooner than a thread could be woken."""


class Saver:
    """Writes versions in order, in the background or, without a thread, at once.

    ``emit`` hears of each version that was saved, and of a state that cannot be; ``fatal`` of a disk that fails.
    """

    def __init__(
        self,
        versions: Versions,
        emit: Callable[[Event], None],
        fatal: Callable[[BaseException], None],
        *,
        background: bool,
    ) -> None:
        self._versions = versions
        self._emit = emit
        self._fatal = fatal
        self._pending: dict[str, int] = {}
        self._changed = threading.Condition()
        self._queue: queue.SimpleQueue[tuple[SaveVersion, Session] | None] | None = None
        if background:
            self._queue = queue.SimpleQueue()
            self._thread = threading.Thread(target=self._work, name="saver", daemon=True)
            self._thread.start()

    def save(self, command: SaveVersion, session: Session) -> None:
        """Save what ``session`` holds now. It must not train again before ``wait`` returns."""
        if self._queue is None or (not command.durable and session.size < SMALL):
            self._write(command, session)
            return
        with self._changed:
            self._pending[command.trial] = self._pending.get(command.trial, 0) + 1
        self._queue.put((command, session))

    def keep(self, command: SaveVersion, worker: str) -> None:
        """Save again what somebody else has saved for others; tells of a loss if nobody has."""
        try:
            digest, size = self._versions.keep(command.trial, command.version)
        except CheckpointError as error:
            reason = f"{worker} does not hold it any more: {error}"
            self._emit(VersionLost(command.trial, command.version, reason, worker))
        except OSError as error:
            self._full(command, error)
        else:
            self._emit(VersionSaved(command.trial, command.version, True, digest, size))

    def wait(self, trial: str) -> None:
        """Return when nothing of this trial is being saved."""
        with self._changed:
            self._changed.wait_for(lambda: trial not in self._pending)

    def close(self) -> None:
        """Finish what was asked for."""
        if self._queue is not None:
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        assert self._queue is not None
        while (item := self._queue.get()) is not None:
            command, session = item
            try:
                self._write(command, session)
            finally:
                with self._changed:
                    self._pending[command.trial] -= 1
                    if not self._pending[command.trial]:
                        del self._pending[command.trial]
                    self._changed.notify_all()
            del item, session

    def _write(self, command: SaveVersion, session: Session) -> None:
        trial, version, durable = command.trial, command.version, command.durable
        try:
            digest, size = self._versions.write(trial, version, session.save, durable=durable, size=session.size)
        except OSError as error:
            self._full(command, error)
        except Exception as error:
            self._emit(SaveFailed(trial, version, describe(error), traceback.format_exc()))
        else:
            self._emit(VersionSaved(trial, version, durable, digest, size))

    def _full(self, command: SaveVersion, error: OSError) -> None:
        path = self._versions.path(command.trial, command.version, durable=command.durable)
        self._fatal(CheckpointError(f"{path}: cannot be written ({error}); make room, then resume"))
