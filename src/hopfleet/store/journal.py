"""The journal: every message of an experiment in one SQLite file, append-only.

One writer, any number of readers in other processes. An append is one transaction that is on the disk when it
returns (WAL, synchronous FULL), so the controller acts only on what survives its own death.

Beside the messages lies a queue of wishes, into which any process may put one. The run that takes a wish from it
journals it as a message; those that no run has taken yet wait for the next.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hopfleet.domain.messages import Message, OperatorAsked, decode, encode
from hopfleet.errors import JournalError

FORMAT = 1
"""Raised when old readers could not understand what new writers write."""


WISHES = (
    "CREATE TABLE IF NOT EXISTS wishes "
    "(number INTEGER PRIMARY KEY AUTOINCREMENT, who TEXT NOT NULL, wish TEXT NOT NULL, arguments TEXT NOT NULL)"
)


class Journal:
    """An open journal. ``writable`` creates the file where there is none."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self.path = path
        #: The last wish that is journaled; None until somebody asks.
        self._taken: int | None = None
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
                self._database.execute(WISHES)
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
            if isinstance(message, OperatorAsked) and message.number:
                self._taken = message.number
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

    def ask(self, who: str, wish: str, arguments: Mapping[str, Any]) -> int:
        """Put a wish into the queue, from any process; returns its number."""
        self._database.execute(WISHES)
        row = (who, wish, json.dumps(arguments))
        number = self._database.execute("INSERT INTO wishes (who, wish, arguments) VALUES (?, ?, ?)", row).lastrowid
        assert number is not None
        return number

    def wishes(self) -> list[OperatorAsked]:
        """Wishes that nobody has journaled yet, in the order in which they came."""
        if self._taken is None:
            query = "SELECT max(json_extract(body, '$.number')) FROM messages WHERE kind = 'OperatorAsked'"
            self._taken = self._database.execute(query).fetchone()[0] or 0
        query = "SELECT number, who, wish, arguments FROM wishes WHERE number > ? ORDER BY number"
        return [
            OperatorAsked(wish, json.loads(arguments), who, number)
            for number, who, wish, arguments in self._database.execute(query, (self._taken,))
        ]

    def last(self) -> Message | None:
        """The newest message."""
        newest = self._database.execute("SELECT max(number) FROM messages").fetchone()[0]
        return None if newest is None else next(self.read(newest - 1))[2]

    def close(self) -> None:
        self._database.close()
