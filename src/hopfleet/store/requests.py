"""The queue of requests: a table beside the messages, in the SQLite file of the journal.

Any process may add a request. The run that takes a request journals it as a message; requests that no run has taken
wait for the next run.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time as clocks
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hopfleet.domain.messages import RequestAnswered, RequestMade, decode, kind_of
from hopfleet.errors import JournalError, describe
from hopfleet.store.base import Request

TABLE = (
    "CREATE TABLE IF NOT EXISTS wishes (number INTEGER PRIMARY KEY AUTOINCREMENT, "  # prose: allow, a name on disk
    "time REAL NOT NULL, who TEXT NOT NULL, wish TEXT NOT NULL, arguments TEXT NOT NULL)"  # prose: allow, on disk
)
INSERT = "INSERT INTO wishes (time, who, wish, arguments) VALUES (?, ?, ?, ?)"  # prose: allow, names on disk
SELECT = (
    "SELECT number, time, who, wish, arguments FROM wishes "  # prose: allow, names on disk
    "WHERE number > ? ORDER BY number"
)

Row = tuple[int, float, str, str, str]


class Requests:
    """The requests in an open journal."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        #: Number of the last request in the journal; None until it is needed.
        self._taken: int | None = None
        #: The last message when a request was made through this object, by the request's number: its answer is later.
        self._before: dict[int, int] = {}

    def create(self) -> None:
        """Create the table. Journals of early releases have none."""
        self._database.execute(TABLE)

    def ask(self, who: str, request: str, arguments: Mapping[str, Any]) -> int:
        with _readable():
            self.create()
            (last,) = self._database.execute("SELECT max(number) FROM messages").fetchone()
            row = (clocks.time(), who, request, json.dumps(arguments))
            number = self._database.execute(INSERT, row).lastrowid
        assert number is not None
        self._before[number] = last or 0
        return number

    def taken(self, number: int) -> None:
        """Note that the journal has request ``number``."""
        self._taken = number

    def pending(self) -> list[RequestMade]:
        """Return the requests that are not in the journal yet. A malformed one has no name: runs refuse it."""
        with _readable():
            if self._taken is None:
                query = "SELECT max(json_extract(body, '$.number')) FROM messages WHERE kind = ?"
                self._taken = int(self._database.execute(query, (kind_of(RequestMade),)).fetchone()[0] or 0)
            return [
                RequestMade("", {}, str(who), number)
                if (arguments := _arguments(row)) is None
                else RequestMade(request, arguments, who, number)
                for row in self._rows(self._taken)
                for number, _, who, request, _ in [row]
            ]

    def trail(self) -> list[Request]:
        query = "SELECT body FROM messages WHERE kind = ?"
        with _readable():
            bodies = self._database.execute(query, (kind_of(RequestAnswered),))
            answers = {answer.number: answer for answer in map(_answer, bodies)}
            return [_request(row, answers.get(row[0])) for row in self._rows(0)]

    def answer(self, number: int) -> RequestAnswered | None:
        query = "SELECT body FROM messages WHERE number > ? AND kind = ? AND json_extract(body, '$.number') = ?"
        with _readable():
            values = (self._before.get(number, 0), kind_of(RequestAnswered), number)
            row = self._database.execute(query, values).fetchone()
            return None if row is None else _answer(row)

    def _rows(self, after: int) -> list[Row]:
        try:
            return self._database.execute(SELECT, (after,)).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # no request was ever made
                return []
            raise


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Raise JournalError for a journal whose requests cannot be read or written."""
    try:
        yield
    except (sqlite3.DatabaseError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise JournalError(f"the requests in the journal cannot be read or written ({describe(error)})") from error


def _arguments(row: Row) -> dict[str, Any] | None:
    """Return the arguments of a request; None if the row is malformed."""
    _, _, who, request, text = row
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        arguments = json.loads(text)
        if isinstance(arguments, dict) and isinstance(who, str) and isinstance(request, str):
            return arguments
    return None


def _answer(row: tuple[str]) -> RequestAnswered:
    answer = decode(kind_of(RequestAnswered), json.loads(row[0]))
    assert isinstance(answer, RequestAnswered)
    return answer


def _request(row: Row, answer: RequestAnswered | None) -> Request:
    number, time, who, name, _ = row
    request = Request(number, float(time), str(who), str(name), _arguments(row) or {})
    return request if answer is None else replace(request, granted=answer.granted, text=answer.text)
