"""The journal: every message of an experiment in one SQLite file, append-only.

One writer, any number of readers in other processes. An append is one transaction that is on the disk when it
returns (WAL, synchronous FULL), so the controller acts only on what survives its own death.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from hopfleet.domain.messages import Message, decode, encode
from hopfleet.errors import JournalError

FORMAT = 1
"""Raised when old readers could not understand what new writers write."""


class Journal:
    """An open journal. ``writable`` creates the file where there is none."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self.path = path
        if not writable and not path.exists():
            raise JournalError(f"{path}: there is no journal")
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            if writable:
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS messages "
                    "(number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL)"
                )
                if self._format() == 0:
                    self._database.execute(f"PRAGMA user_version = {FORMAT}")
            found = self._format()
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{path}: is not a journal, or is damaged ({error})") from error
        if found != FORMAT:
            raise JournalError(
                f"{path}: has format {found}, this Hopfleet reads format {FORMAT}; use the version that wrote it"
            )

    def _format(self) -> int:
        return int(self._database.execute("PRAGMA user_version").fetchone()[0])

    def append(self, time: float, messages: Iterable[Message]) -> None:
        """Write messages in one transaction. They are durable when this returns."""
        rows = []
        for message in messages:
            kind, body = encode(message)
            rows.append((time, kind, json.dumps(body)))
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany("INSERT INTO messages (time, kind, body) VALUES (?, ?, ?)", rows)
        self._database.execute("COMMIT")

    def read(self, after: int = 0) -> Iterator[tuple[int, float, Message]]:
        """Number, time and message of all records after number ``after``, in order."""
        query = "SELECT number, time, kind, body FROM messages WHERE number > ? ORDER BY number"
        try:
            for number, time, kind, body in self._database.execute(query, (after,)):
                yield number, time, decode(kind, json.loads(body))
        except (sqlite3.DatabaseError, KeyError, TypeError, ValueError) as error:
            raise JournalError(f"{self.path}: is damaged ({error!r})") from error

    def last(self) -> Message | None:
        """The newest message."""
        newest = self._database.execute("SELECT max(number) FROM messages").fetchone()[0]
        return None if newest is None else next(self.read(newest - 1))[2]

    def close(self) -> None:
        self._database.close()
