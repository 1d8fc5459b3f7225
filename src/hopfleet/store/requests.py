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

from hopfleet.domain.bounds import NAME, SIZE, excess
from hopfleet.domain.messages import RequestAnswered, RequestMade, decode, kind_of
from hopfleet.errors import JournalError, describe
from hopfleet.phrases import shown
from hopfleet.store.base import Request

TABLE = (
    "CREATE TABLE IF NOT EXISTS wishes (number INTEGER PRIMARY KEY AUTOINCREMENT, "  # prose: allow, a name on disk
    "time REAL NOT NULL, who TEXT NOT NULL, wish TEXT NOT NULL, arguments TEXT NOT NULL)"  # prose: allow, on disk
)
INSERT = "INSERT INTO wishes (time, who, wish, arguments) VALUES (?, ?, ?, ?)"  # prose: allow, names on disk
SELECT = (  # bytes, and not all of them: any program may have written anything
    "SELECT number, CAST(time AS REAL), substr(CAST(who AS BLOB), 1, ?), "
    "substr(CAST(wish AS BLOB), 1, ?), substr(CAST(arguments AS BLOB), 1, ?) "  # prose: allow, a name on disk
    "FROM wishes WHERE number > ? ORDER BY number"  # prose: allow, a name on disk
)

LATEST = 1e11
"""The latest time, in seconds since 1970, that a request is said to be made at."""

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
            row = (clocks.time(), who.encode(errors="replace").decode()[:NAME], request, json.dumps(arguments))
            number = self._database.execute(INSERT, row).lastrowid
        assert number is not None
        self._before[number] = last or 0
        return number

    def taken(self, number: int) -> None:
        """Note that the journal has request ``number``."""
        self._taken = number

    def pending(self) -> list[RequestMade]:
        """Return the requests that are not in the journal yet. Runs refuse those with a ``problem``."""
        with _readable():
            if self._taken is None:
                self._taken = max((body.get("number", 0) for body in self._bodies(RequestMade)), default=0)
            return [_made(row) for row in self._rows(self._taken)]

    def trail(self) -> list[Request]:
        with _readable():
            answers = {answer.number: answer for answer in map(_answer, self._bodies(RequestAnswered))}
            return [_request(row, answers.get(row[0])) for row in self._rows(0)]

    def answer(self, number: int) -> RequestAnswered | None:
        with _readable():
            bodies = self._bodies(RequestAnswered, after=self._before.get(number, 0))
            return next((_answer(body) for body in bodies if body["number"] == number), None)

    def _bodies(self, cls: type[Any], after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the bodies of the messages of one class. They may hold NaN, which SQLite's JSON functions refuse."""
        query = "SELECT body FROM messages WHERE number > ? AND kind = ? ORDER BY number"
        for (text,) in self._database.execute(query, (after, kind_of(cls))):
            yield json.loads(text)

    def _rows(self, after: int) -> list[Row]:
        try:
            return [_row(*found) for found in self._database.execute(SELECT, (NAME, NAME, SIZE + 1, after))]
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


def _row(number: int, time: float, who: bytes, request: bytes, arguments: bytes) -> Row:
    return (
        number,
        time,
        who.decode(errors="replace"),
        request.decode(errors="replace"),
        arguments.decode(errors="replace"),
    )


def _made(row: Row) -> RequestMade:
    """Return a request in a form that a journal can hold, whatever the row has."""
    number, _, who, request, _ = row
    arguments, problem = _arguments(row)
    return RequestMade(request, arguments, who, number, problem)


def _arguments(row: Row) -> tuple[dict[str, Any], str]:
    """Return the arguments of a request; empty, with the reason, if they are unfit for a journal."""
    *_, request, text = row
    try:
        arguments = json.loads(text) if len(text) <= SIZE else None
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return {}, f"request {shown(request)}: its arguments must be a JSON object of at most {SIZE:,} characters"
    problems = filter(None, (excess(value, name) for name, value in arguments.items()))
    return ({}, problem) if (problem := next(problems, "")) else (arguments, "")


def _answer(body: dict[str, Any]) -> RequestAnswered:
    answer = decode(kind_of(RequestAnswered), body)
    assert isinstance(answer, RequestAnswered)
    return answer


def _request(row: Row, answer: RequestAnswered | None) -> Request:
    number, time, who, name, _ = row
    request = Request(number, min(max(time, 0.0), LATEST), who, name, _arguments(row)[0])
    return request if answer is None else replace(request, granted=answer.granted, text=answer.text)
