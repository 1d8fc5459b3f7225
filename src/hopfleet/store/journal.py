"""The journal: every message of an experiment in one SQLite file, append-only.

One process writes, any number of other processes read. An append is one transaction that is on the disk when it returns
(WAL, synchronous FULL), so the controller acts only on messages that survive the death of its process. The requests of
users lie beside the messages in the same file: see ``requests``.

Messages are chained: each has a digest of itself and of the digest before it, and the table ``head`` has the last one.
So a message that was changed, removed or doubled is noticed by every reader. The chain is no signature: a program that
computes all digests again can write any history.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hopfleet.domain.messages import Message, RequestMade, decode, encode
from hopfleet.errors import JournalError
from hopfleet.store.requests import Requests

FORMAT = 5
"""Format of the journals that this release writes; raised when older releases could not read them."""

READABLE = (1, 2, 3, 4, FORMAT)
"""Formats that this release reads. Opening a journal to write migrates the journal to the newest format."""

DIGEST_BYTES = 16

COLUMNS = "number, time, kind, body"
"""Columns of the table of messages beside the digest."""

CHECKPOINT_PAGES = 100
"""Pages in the write-ahead log (``-wal``) after which SQLite moves them into the journal's file: 400 kB."""

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
                self._database.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS messages (number INTEGER PRIMARY KEY, time REAL NOT NULL, "
                    "kind TEXT NOT NULL, body TEXT NOT NULL, digest BLOB)"
                )
                self.requests.create()
                if self._format() in (0, *READABLE):
                    self._migrate()
            self._check_format()
            self._writable = writable
            if writable:
                #: Number and digest of the last message; known while this connection is the only one that writes.
                self._head = self._found_head()
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{path}: {_problem(error)}") from error

    def _check_format(self) -> None:
        found = self._format()
        if found == 0:
            raise JournalUnfinished(
                f"{self.path}: is being created; try again, and if that does not help, restore it from a backup"
            )
        if found not in READABLE:
            raise JournalError(
                f"{self.path}: has format {found}, this Hopfleet reads format {FORMAT}; use the version that wrote it"
            )

    def _format(self) -> int:
        return int(self._database.execute("PRAGMA user_version").fetchone()[0])

    def _migrate(self) -> None:
        """Bring the journal to the newest format.

        Before format 3, a lost version did not tell which attempt it ended. Before format 4, evaluations were messages
        of their own kinds, which ``decode`` still understands. Before format 5, messages were not chained.
        """
        self._database.execute("BEGIN IMMEDIATE")
        if (before := self._format()) == FORMAT:
            self._database.execute("COMMIT")
            return
        if before < 3:
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
        self._chain()
        self._database.execute(f"PRAGMA user_version = {FORMAT}")
        self._database.execute("COMMIT")

    def _chain(self) -> None:
        """Chain the messages of an older format, or begin a chain."""
        if "digest" not in [name for _, name, *_ in self._database.execute("PRAGMA table_info(messages)")]:
            self._database.execute("ALTER TABLE messages ADD COLUMN digest BLOB")
        number, digest = 0, b""
        for number, *rest in self._database.execute(f"SELECT {COLUMNS} FROM messages ORDER BY number").fetchall():
            digest = _link(digest, number, *rest)
            self._database.execute("UPDATE messages SET digest = ? WHERE number = ?", (digest, number))
        self._database.execute("DROP TABLE IF EXISTS head")
        self._database.execute("CREATE TABLE head (number INTEGER NOT NULL, digest BLOB NOT NULL)")
        self._database.execute("INSERT INTO head VALUES (?, ?)", (number, digest))

    def _found_head(self) -> tuple[int, bytes]:
        """Return the number and the digest of the last message. Raise JournalError unless both are in their tables."""
        query = (
            "SELECT head.number, head.digest, messages.digest FROM head LEFT JOIN messages USING (number) "
            "WHERE (SELECT count(*) FROM head) = 1"
        )
        found = self._database.execute(query).fetchone()
        if found is None or (found[1] != found[2] and found[:2] != (0, b"")):
            raise self._modified("messages are missing at its end")
        return found[0], found[1]

    def _modified(self, what: str) -> JournalError:
        return JournalError(f"{self.path}: was modified or is damaged: {what}")

    def append(self, time: float, messages: Iterable[Message]) -> None:
        """Write messages in one transaction, which is durable when the method returns.

        Raise OSError, and write nothing, if the disk cannot take the messages for now.
        """
        rows, request = [], 0
        number, digest = self._head
        for number, message in enumerate(messages, self._head[0] + 1):
            kind, body = encode(message)
            text = json.dumps(body)
            digest = _link(digest, number, time, kind, text)
            rows.append((number, time, kind, text, digest))
            if isinstance(message, RequestMade) and message.number:
                request = message.number
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(f"INSERT INTO messages ({COLUMNS}, digest) VALUES (?, ?, ?, ?, ?)", rows)
            self._database.execute("UPDATE head SET number = ?, digest = ?", (number, digest))
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise self._translated(error) from error
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{self.path}: {_problem(error)}") from error
        self._head = number, digest
        if request:
            self.requests.taken(request)

    def _translated(self, error: sqlite3.OperationalError) -> Exception:
        """Return an OSError for a transient error, and any other error as it is."""
        code = TRANSIENT.get(error.sqlite_errorcode & 0xFF)
        return error if code is None else OSError(code, str(error), str(self.path))

    def read(self, after: int = 0) -> Iterator[tuple[int, float, Message]]:
        """Yield the number, time and message of all records after number ``after``, in order."""
        try:
            chained = self._format() == FORMAT
            digest = self._digest(after) if chained else b""
            query = f"SELECT {COLUMNS}{', digest' * chained} FROM messages WHERE number > ? ORDER BY number"
            for number, time, kind, body, *found in self._database.execute(query, (after,)):
                if chained:
                    digest = _link(digest, number, time, kind, body)
                    if found != [digest]:
                        raise self._modified(f"message {number} does not follow from the one before")
                yield number, time, decode(kind, json.loads(body))
            if chained:
                self._found_head()
        except (sqlite3.DatabaseError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise JournalError(f"{self.path}: is damaged ({error!r})") from error

    def _digest(self, number: int) -> bytes:
        """Return the digest of a message."""
        if not number:
            return b""
        found = self._database.execute("SELECT digest FROM messages WHERE number = ?", (number,)).fetchone()
        if found is None or not isinstance(found[0], bytes):
            raise self._modified(f"message {number} is missing")
        return found[0]

    def last(self) -> Message | None:
        """Return the newest message; None if the journal is empty."""
        try:
            newest = self._database.execute("SELECT max(number) FROM messages").fetchone()[0]
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{self.path}: {_problem(error)}") from error
        if newest is None:
            return next((message for _, _, message in self.read()), None)
        *_, (_, _, message) = self.read(newest - 1)
        return message

    def close(self) -> None:
        """Close the journal; after writing, leave a single file that can be copied and read anywhere.

        While another process reads the journal, its log (``-wal``) stays.
        """
        if self._writable:
            with contextlib.suppress(sqlite3.DatabaseError):
                self._database.execute("PRAGMA busy_timeout = 0")
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._database.execute("PRAGMA journal_mode = DELETE")
        self._database.close()


def _link(before: bytes, number: int, time: float, kind: str, body: str) -> bytes:
    """Return the digest of a message that follows the message with the digest ``before``."""
    content = f"{number} {time!r} {kind} {body}".encode(errors="surrogatepass")
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES, key=before).digest()


def _problem(error: sqlite3.DatabaseError) -> str:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return f"cannot be written ({error}); make room on that disk"
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return f"cannot be opened ({error}); check its permissions and those of its folder"
    return f"is not a journal, or is damaged ({error})"
