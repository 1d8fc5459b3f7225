"""The journal: every message of an experiment in one SQLite file, append-only.

One process writes, any number of other processes read. An append is one transaction that is on the disk when it returns
(WAL, synchronous FULL), so the controller acts only on messages that survive the death of its process. The requests of
users lie beside the messages in the same file: see ``requests``.
"""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hopfleet.domain.messages import Message, RequestMade, decode, encode
from hopfleet.errors import JournalError
from hopfleet.store.requests import Requests

FORMAT = 4
"""Format of the journals that this release writes; raised when older releases could not read them."""

READABLE = (1, 2, 3, FORMAT)
"""Formats that this release reads. Opening a journal to write migrates the journal to the newest format."""

TRANSIENT = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
}
"""Errors after which the same transaction may succeed later, and the error number of the OSError raised for each."""


class JournalUnfinished(JournalError):
    """A journal that another process is creating, or that a process has left before it was created."""


class Journal:
    """An open journal. ``writable`` creates the file if there is none."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self.path = path
        if not writable and not path.exists():
            raise JournalError(f"{path}: there is no journal")
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            self.requests = Requests(self._database)
            if writable:
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS messages "
                    "(number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL)"
                )
                self.requests.create()
                if self._format() in (0, *READABLE):
                    self._migrate()
            found = self._format()
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{path}: {_problem(error)}") from error
        if found == 0:
            raise JournalUnfinished(
                f"{path}: is being created; try again, and if that does not help, restore it from a backup"
            )
        if found not in READABLE:
            raise JournalError(
                f"{path}: has format {found}, this Hopfleet reads format {FORMAT}; use the version that wrote it"
            )

    def _format(self) -> int:
        return int(self._database.execute("PRAGMA user_version").fetchone()[0])

    def _migrate(self) -> None:
        """Bring the journal to the newest format.

        Before format 3, a lost version did not tell which attempt it ended. Before format 4, evaluations were messages
        of their own kinds, which ``decode`` still understands.
        """
        self._database.execute("BEGIN IMMEDIATE")
        if self._format() < 3:
            doing: dict[str, dict[str, Any]] = {}
            query = "SELECT number, kind, body FROM messages WHERE kind IN ('RunUnit', 'Evaluate', 'VersionLost')"
            for number, kind, text in self._database.execute(f"{query} ORDER BY number").fetchall():
                body = json.loads(text)
                if kind != "VersionLost":
                    doing[body["worker"]] = body
                    continue
                unit = doing.get(body["worker"], {})
                same = all(unit.get(key) == body[key] for key in ("trial", "version"))
                body["attempt"] = unit["attempt"] if same else 0
                self._database.execute("UPDATE messages SET body = ? WHERE number = ?", (json.dumps(body), number))
        self._database.execute(f"PRAGMA user_version = {FORMAT}")
        self._database.execute("COMMIT")

    def append(self, time: float, messages: Iterable[Message]) -> None:
        """Write messages in one transaction, which is durable when the method returns.

        Raise OSError, and write nothing, if the disk cannot take the messages for now.
        """
        rows, request = [], 0
        for message in messages:
            kind, body = encode(message)
            rows.append((time, kind, json.dumps(body)))
            if isinstance(message, RequestMade) and message.number:
                request = message.number
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT INTO messages (time, kind, body) VALUES (?, ?, ?)", rows)
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise self._translated(error) from error
        if request:
            self.requests.taken(request)

    def _translated(self, error: sqlite3.OperationalError) -> Exception:
        """Return an OSError for a transient error, and any other error as it is."""
        code = TRANSIENT.get(error.sqlite_errorcode & 0xFF)
        return error if code is None else OSError(code, str(error), str(self.path))

    def read(self, after: int = 0) -> Iterator[tuple[int, float, Message]]:
        """Yield the number, time and message of all records after number ``after``, in order."""
        query = "SELECT number, time, kind, body FROM messages WHERE number > ? ORDER BY number"
        try:
            for number, time, kind, body in self._database.execute(query, (after,)):
                yield number, time, decode(kind, json.loads(body))
        except (sqlite3.DatabaseError, KeyError, TypeError, ValueError) as error:
            raise JournalError(f"{self.path}: is damaged ({error!r})") from error

    def last(self) -> Message | None:
        """Return the newest message; None if the journal is empty."""
        newest = self._database.execute("SELECT max(number) FROM messages").fetchone()[0]
        return None if newest is None else next(self.read(newest - 1))[2]

    def close(self) -> None:
        self._database.close()


def _problem(error: sqlite3.DatabaseError) -> str:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
        return f"cannot be written ({error}); make room on that disk"
    return f"is not a journal, or is damaged ({error})"
