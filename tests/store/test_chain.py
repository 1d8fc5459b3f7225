"""The chain of a journal: every message that was changed, removed or doubled is noticed."""

from __future__ import annotations

import contextlib
import math
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from hopfleet.domain.messages import (
    Finish,
    Message,
    RequestAnswered,
    RequestMade,
    RunStarted,
    TrialAdded,
    WorkerLost,
)
from hopfleet.errors import JournalError
from hopfleet.store.journal import Journal

MESSAGES: list[Message] = [
    RunStarted("1", definition={"seed": 0}),
    TrialAdded("t0001", 1, {"lr": 0.1}, 7, 3),
    TrialAdded("t0002", 2, {"lr": 0.2}, 8, 3),
    WorkerLost("w1", "its process ended"),
    Finish(complete=True),
]
COPY = "INSERT INTO messages (time, kind, body, digest) SELECT time, kind, body, digest FROM messages WHERE number = "


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
        for time, message in enumerate(MESSAGES):
            journal.append(float(time), [message])
    return tmp_path / "j"


def messages(path: Path, after: int = 0) -> list[Message]:
    with contextlib.closing(Journal(path)) as journal:
        return [message for _, _, message in journal.read(after)]


def change(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE messages SET body = replace(body, '0.1', '0.3') WHERE number = 2"],
        ["UPDATE messages SET time = 99.0 WHERE number = 2"],
        ["UPDATE messages SET digest = NULL WHERE number = 2"],
        ["DELETE FROM messages WHERE number = 3"],
        ["DELETE FROM messages WHERE number = 5"],
        ["DELETE FROM messages WHERE number > 1"],
        ["DELETE FROM messages"],
        ["DELETE FROM messages", "DELETE FROM head"],
        ["DELETE FROM head"],
        [f"{COPY}2"],
        [f"{COPY}5"],
        ["DELETE FROM messages WHERE number = 3", "UPDATE messages SET number = number - 1 WHERE number > 3"],
        ["UPDATE messages SET number = -1 WHERE number = 1"],
    ],
    ids=lambda statements: "; ".join(statements)[:60],
)
def test_every_change_is_noticed(path: Path, statements: list[str]) -> None:
    assert messages(path) == MESSAGES
    change(path, *statements)
    with pytest.raises(JournalError, match="was modified or is damaged"):
        messages(path)
    with pytest.raises(JournalError, match="was modified or is damaged"), contextlib.closing(Journal(path)) as journal:
        if "DELETE" not in statements[0] and "UPDATE" not in statements[0]:
            journal.last()
        list(journal.read())


def test_a_reader_continues_where_it_was(path: Path) -> None:
    assert messages(path, 3) == MESSAGES[3:]
    assert messages(path, 5) == []
    with pytest.raises(JournalError, match="message 6 is missing"):
        messages(path, 6)


def test_a_failed_append_does_not_break_the_chain(path: Path) -> None:
    with contextlib.closing(Journal(path, writable=True)) as journal:
        with pytest.raises(TypeError):
            journal.append(6.0, [RunStarted(object())])  # type: ignore[arg-type]
        journal.append(6.0, MESSAGES[:2])
        assert len(list(journal.read())) == len(MESSAGES) + 2
    assert messages(path) == [*MESSAGES, *MESSAGES[:2]]


def test_a_journal_copied_without_its_log_has_all_messages(path: Path, tmp_path: Path) -> None:
    """A run that ended leaves one file; a run that goes on moves its log into the file regularly."""
    shutil.copy(path, tmp_path / "copy")
    assert messages(tmp_path / "copy") == MESSAGES
    assert not path.with_name("j-wal").exists()
    lost = WorkerLost("w1", "x" * 2000)
    with contextlib.closing(Journal(path, writable=True)) as journal:
        for _ in range(300):
            journal.append(6.0, [lost])
        assert path.with_name("j-wal").stat().st_size < 1 << 20
        shutil.copy(path, tmp_path / "during")
    found = messages(tmp_path / "during")
    assert len(found) > len(MESSAGES) + 150 and found == [*MESSAGES, *[lost] * 300][: len(found)]


def test_a_reader_does_not_keep_a_run_from_ending(path: Path) -> None:
    with contextlib.closing(Journal(path, writable=True)) as journal:
        reader = Journal(path)
        reading = reader.read()
        assert next(reading)[2] == MESSAGES[0]
        journal.append(7.0, MESSAGES[:1])
    assert [message for _, _, message in reading] == MESSAGES[1:]
    reader.close()
    assert messages(path) == [*MESSAGES, MESSAGES[0]]


@pytest.mark.parametrize(
    "row", [(0, "ada", "stop", "{"), (0, "ada", "stop", "[1]"), (0, b"\xff", b"\xfe", b"\xff")], ids=repr
)
def test_a_malformed_request_does_not_end_a_run(path: Path, row: tuple[Any, ...]) -> None:
    with contextlib.closing(Journal(path, writable=True)) as journal:
        journal.requests.ask("ada", "stop", {"trial": "t0001"})
        table = "wishes"  # prose: allow, a name on disk
        journal._database.execute(f"INSERT INTO {table} VALUES (2, ?, ?, ?, ?)", row)
        journal.requests.ask("ada", "stop", {"trial": "t0002"})
        good, bad, more = journal.requests.pending()
        assert (good.problem, bad.number, bad.arguments, more.arguments) == ("", 2, {}, {"trial": "t0002"})
        assert bad.problem.endswith("its arguments must be a JSON object of at most 1,000,000 characters")
        assert [request.number for request in journal.requests.trail()] == [1, 2, 3]
        journal.append(8.0, [good, bad, RequestMade("", {}, "ada", 2)])
        assert [request.number for request in journal.requests.pending()] == [3]


def test_a_journal_with_nan_in_a_request_goes_on(path: Path) -> None:
    """Releases before 0.3 journaled such requests, and then could not find the next one: SQLite refuses NaN in JSON."""
    refused = RequestMade("clone", {"trial": "t0001", "changes": {"lr": math.nan}}, "ada", 1)
    with contextlib.closing(Journal(path, writable=True)) as journal:
        journal.append(8.0, [refused, RequestAnswered(1, False, "lr=nan: must be a finite number")])
        assert (
            "NaN" in journal._database.execute("SELECT body FROM messages WHERE kind = 'OperatorAsked'").fetchone()[0]
        )
    with contextlib.closing(Journal(path, writable=True)) as journal:
        assert journal.requests.pending() == [] and journal.requests.answer(1) is not None
        assert [journal.requests.ask("ada", "pause", {}) for _ in range(2)] == [1, 2]
        assert [request.number for request in journal.requests.pending()] == [2]
