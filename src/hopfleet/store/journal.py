"""The journal: every message of an experiment in one SQLite file, append-only.

One writer, any number of readers in other processes. An append is one transaction that is on the disk when it
returns (WAL, synchronous FULL), so the controller acts only on what survives its own death.

Beside the messages there is a queue of requests, which any process may add to. The run that takes a request journals it
as a message; requests that no run has taken yet wait for the next run.
"""

from __future__ import annotations

import errno
import json
import sqlite3
import time as clocks
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hopfleet.domain.messages import Message, RequestAnswered, RequestMade, decode, encode, kind_of
from hopfleet.errors import JournalError
from hopfleet.support.deprecation import deprecated

FORMAT = 4
"""Raised when old readers could not understand what new writers write."""

READABLE = (1, 2, 3, FORMAT)
"""Formats whose messages are understood here. A journal that is written to becomes one of the newest format."""

TROUBLE = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
}
"""Errors of a disk that may take the same transaction later."""

REQUESTS = (
    "CREATE TABLE IF NOT EXISTS wishes (number INTEGER PRIMARY KEY AUTOINCREMENT, "  # prose: allow, a wire name
    "time REAL NOT NULL, who TEXT NOT NULL, wish TEXT NOT NULL, arguments TEXT NOT NULL)"  # prose: allow, a wire name
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request in the audit trail. ``granted`` is None, and ``text`` empty, until it is answered."""

    number: int
    time: float  #: when it was asked, in seconds since the epoch
    who: str
    request: str
    arguments: Mapping[str, Any]
    granted: bool | None = None
    text: str = ""

    @property
    def wish(self) -> str:
        """Return ``request``. The old name; deprecated."""
        deprecated("Request.wish", "Request.request")  # prose: allow, the old name
        return self.request


class Journal:
    """An open journal. ``writable`` creates the file where there is none."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self.path = path
        #: The last journaled request; None until it is looked up.
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
                self._database.execute(REQUESTS)
                if self._format() in (0, *READABLE):
                    self._migrate()
            found = self._format()
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{path}: {_problem(error)}") from error
        if found == 0:
            raise JournalError(f"{path}: is being created; try again")
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
        """Write messages in one transaction. They are durable when this returns.

        Raises OSError, and nothing is written, if the disk does not take them for now.
        """
        rows = []
        for message in messages:
            kind, body = encode(message)
            rows.append((time, kind, json.dumps(body)))
            if isinstance(message, RequestMade) and message.number:
                self._taken = message.number
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT INTO messages (time, kind, body) VALUES (?, ?, ?)", rows)
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise self._as_trouble(error) from error

    def _as_trouble(self, error: sqlite3.OperationalError) -> Exception:
        """The same error; as an OSError, if it may pass."""
        code = TROUBLE.get(error.sqlite_errorcode & 0xFF)
        return error if code is None else OSError(code, str(error), str(self.path))

    def read(self, after: int = 0) -> Iterator[tuple[int, float, Message]]:
        """Number, time and message of all records after number ``after``, in order."""
        query = "SELECT number, time, kind, body FROM messages WHERE number > ? ORDER BY number"
        try:
            for number, time, kind, body in self._database.execute(query, (after,)):
                yield number, time, decode(kind, json.loads(body))
        except (sqlite3.DatabaseError, KeyError, TypeError, ValueError) as error:
            raise JournalError(f"{self.path}: is damaged ({error!r})") from error

    def ask(self, who: str, request: str, arguments: Mapping[str, Any]) -> int:
        """Put a request into the queue, from any process; return its number."""
        self._database.execute(REQUESTS)
        row = (clocks.time(), who, request, json.dumps(arguments))
        insert = "INSERT INTO wishes (time, who, wish, arguments) VALUES (?, ?, ?, ?)"  # prose: allow, a wire name
        number = self._database.execute(insert, row).lastrowid
        assert number is not None
        return number

    def requests(self) -> list[RequestMade]:
        """Return the requests that are not journaled yet, in order of arrival."""
        if self._taken is None:
            query = "SELECT max(json_extract(body, '$.number')) FROM messages WHERE kind = ?"
            self._taken = self._database.execute(query, (kind_of(RequestMade),)).fetchone()[0] or 0
        return [
            RequestMade(request, json.loads(arguments), who, number)
            for number, _, who, request, arguments in self._queue(self._taken)
        ]

    def trail(self) -> list[Request]:
        """Return all requests ever made, with their answers."""
        query = "SELECT body FROM messages WHERE kind = ?"
        bodies = self._database.execute(query, (kind_of(RequestAnswered),))
        answers = {answer.number: answer for answer in map(_answer, bodies)}
        return [_request(row, answers.get(row[0])) for row in self._queue(0)]

    def answer(self, number: int) -> RequestAnswered | None:
        """Return the answer to a request, if there is one yet."""
        query = "SELECT body FROM messages WHERE kind = ? AND json_extract(body, '$.number') = ?"
        row = self._database.execute(query, (kind_of(RequestAnswered), number)).fetchone()
        return None if row is None else _answer(row)

    def _queue(self, after: int) -> list[tuple[int, float, str, str, str]]:
        query = (
            "SELECT number, time, who, wish, arguments FROM wishes "  # prose: allow, wire names
            "WHERE number > ? ORDER BY number"
        )
        try:
            return self._database.execute(query, (after,)).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # there was never a request
                return []
            raise

    def last(self) -> Message | None:
        """The newest message."""
        newest = self._database.execute("SELECT max(number) FROM messages").fetchone()[0]
        return None if newest is None else next(self.read(newest - 1))[2]

    def close(self) -> None:
        self._database.close()


def _answer(row: tuple[str]) -> RequestAnswered:
    answer = decode(kind_of(RequestAnswered), json.loads(row[0]))
    assert isinstance(answer, RequestAnswered)
    return answer


def _problem(error: sqlite3.DatabaseError) -> str:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
        return f"cannot be written ({error}); make room on that disk"
    return f"is not a journal, or is damaged ({error})"


def _request(row: tuple[int, float, str, str, str], answer: RequestAnswered | None) -> Request:
    number, time, who, name, arguments = row
    request = Request(number, time, who, name, json.loads(arguments))
    return request if answer is None else replace(request, granted=answer.granted, text=answer.text)
