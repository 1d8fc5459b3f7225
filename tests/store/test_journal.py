"""Journals: what a process leaves when it closes one, journals of release 0.1, requests that wait, and what is said."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from hopfleet.domain.bounds import NAME, SIZE
from hopfleet.domain.messages import Finish, Message, RequestAnswered, RequestMade, RunStarted, WorkerLost
from hopfleet.errors import JournalError
from hopfleet.store.base import Request
from hopfleet.store.journal import Journal
from hopfleet.store.requests import LATEST
from tests.helpers.open_files import opened

MESSAGES: list[Message] = [RunStarted("1"), WorkerLost("w1", "its process ended"), Finish(complete=True)]


def messages(path: Path) -> list[Message]:
    with contextlib.closing(Journal(path)) as journal:
        return [message for _, _, message in journal.read()]


# ------------------------------------------------------------------------------------------------------------- the end


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which files are open")
@pytest.mark.parametrize("writable", [True, False])
def test_a_closed_journal_keeps_no_file_open(tmp_path: Path, writable: bool) -> None:
    Journal(tmp_path / "j", writable=True).close()
    journal = Journal(tmp_path / "j", writable=writable)
    assert journal.last() is None and (opened(tmp_path) or not writable)
    journal.close()
    assert opened(tmp_path) == []


def test_a_journal_that_others_read_has_all_messages_in_its_file_when_the_run_ends(tmp_path: Path) -> None:
    """The file alone may be copied then, though its log cannot be deleted."""
    journal, reader = Journal(tmp_path / "j", writable=True), Journal(tmp_path / "j")
    journal.append(1.0, MESSAGES)
    assert len(list(reader.read())) == len(MESSAGES)
    journal.close()
    shutil.copy(tmp_path / "j", tmp_path / "copy")
    reader.close()
    assert messages(tmp_path / "copy") == MESSAGES


def test_a_reader_that_ends_leaves_the_log_to_the_run(tmp_path: Path) -> None:
    with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
        journal.append(1.0, MESSAGES)
        size = (tmp_path / "j").stat().st_size
        assert messages(tmp_path / "j") == MESSAGES
        assert (tmp_path / "j-wal").stat().st_size > 0 and (tmp_path / "j").stat().st_size == size


def test_the_last_message_of_a_journal_that_was_emptied_is_not_none(tmp_path: Path) -> None:
    with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
        assert journal.last() is None
        journal.append(1.0, MESSAGES)
        journal._database.execute("DELETE FROM messages")
        with pytest.raises(JournalError, match="messages are missing at its end"):
            journal.last()


# ----------------------------------------------------------------------------------------------------- earlier releases


def test_a_journal_of_release_0_1_has_no_digests_and_no_requests(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "j")) as database, database:
        database.execute(
            "CREATE TABLE messages (number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, "
            "body TEXT NOT NULL)"
        )
        database.execute("""INSERT INTO messages VALUES (1, 1.0, 'WorkerLost', '{"worker": "w1", "reason": "gone"}')""")
        database.execute("PRAGMA user_version = 1")
    lost: list[Message] = [WorkerLost("w1", "gone")]
    with contextlib.closing(Journal(tmp_path / "j")) as reader:
        assert [message for _, _, message in reader.read()] == lost
        assert reader.requests.pending() == reader.requests.trail() == []
        assert reader.requests.ask("ada", "pause", {}) == 1, "a run need not have opened it"
    with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
        journal.append(2.0, MESSAGES)
        assert journal.requests.pending() == [RequestMade("pause", {}, "ada", 1)]
    assert messages(tmp_path / "j") == [*lost, *MESSAGES]


# ------------------------------------------------------------------------------------------------------------- requests


def test_a_request_waits_until_the_journal_has_it(tmp_path: Path) -> None:
    with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
        asked = [RequestMade("pause", {}, "ada", journal.requests.ask("ada", "pause", {})) for _ in range(3)]
        journal.append(1.0, MESSAGES)
        assert journal.requests.pending() == asked, "other messages take no request"
        journal.append(2.0, [RequestMade("drain")])
        assert journal.requests.pending() == asked, "nor does a request that did not wait"
        journal.append(3.0, [*asked[:2], *MESSAGES])
        assert journal.requests.pending() == asked[2:]


@pytest.mark.parametrize("same", [True, False], ids=["who asked", "another process"])
def test_the_answer_may_be_the_first_message(tmp_path: Path, same: bool) -> None:
    with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
        number = journal.requests.ask("ada", "pause", {})
        answer = RequestAnswered(number, True, "paused")
        journal.append(1.0, [answer])
        with contextlib.closing(Journal(tmp_path / "j")) as other:
            assert (journal if same else other).requests.answer(number) == answer


def test_an_answer_is_later_than_its_request(tmp_path: Path) -> None:
    """A journal that was recovered has answers to requests of numbers that are given again."""
    with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
        journal.append(1.0, [RequestAnswered(1, True, "of old")])
        assert journal.requests.ask("ada", "pause", {}) == 1
        assert journal.requests.answer(1) is None
        journal.append(2.0, [RequestAnswered(1, False, "no")])
        assert journal.requests.answer(1) == RequestAnswered(1, False, "no")


def test_requests_that_any_program_wrote_are_bounded(tmp_path: Path) -> None:
    names = "number, time, who, wish, arguments"  # prose: allow, names on disk
    with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
        assert journal.requests.ask("ada", "stop", {"trial": "t0001"}) == 1
        for number, (time, spaces) in enumerate([(-5.0, SIZE - 2), (1e300, SIZE - 1)], 2):
            row = (number, time, "eve" * NAME, "pause", "{}" + " " * spaces)
            table = f"wishes ({names})"  # prose: allow, a name on disk
            journal._database.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", row)
        good, longest, longer = journal.requests.pending()
        assert (good.arguments, good.problem, longest.problem) == ({"trial": "t0001"}, "", "")
        assert "at most 1,000,000 characters" in longer.problem and longer.who == ("eve" * NAME)[:NAME]
        first, early, late = journal.requests.trail()
        assert first.arguments == {"trial": "t0001"} and (early.time, late.time) == (0.0, LATEST)


def test_requests_without_a_number_take_no_request(tmp_path: Path) -> None:
    """Early releases journaled Ctrl-C so."""
    with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
        assert journal.requests.ask("ada", "pause", {}) == 1
        asked = ("OperatorAsked", '{"wish": "drain", "arguments": {}}')  # prose: allow, a name on disk
        journal._database.execute("INSERT INTO messages (time, kind, body) VALUES (1.0, ?, ?)", asked)
        assert [request.number for request in journal.requests.pending()] == [1]


def test_the_old_name_of_a_request_still_works() -> None:
    with pytest.warns(FutureWarning, match=r"Request\.request"):
        assert Request(1, 0.0, "ada", "stop", {}).wish == "stop"  # prose: allow, the old name


# ------------------------------------------------------------------------------------------------------- what is said


def failing(error: sqlite3.DatabaseError, code: int | None) -> Any:
    if code is not None:
        error.sqlite_errorcode = code

    def connect(*arguments: Any, **options: Any) -> Any:
        raise error

    return connect


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (sqlite3.SQLITE_FULL, "cannot be written (it fails); make room on that disk"),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, "cannot be opened (it fails); check its permissions and those of its folder"),
        (sqlite3.SQLITE_READONLY_DIRECTORY, "cannot be opened (it fails); check its permissions"),
        (sqlite3.SQLITE_CORRUPT_INDEX, "is not a journal, or is damaged (it fails)"),
        (None, "is not a journal, or is damaged (it fails)"),
    ],
)
def test_what_to_do_about_a_journal_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, text: str
) -> None:
    monkeypatch.setattr(sqlite3, "connect", failing(sqlite3.DatabaseError("it fails"), code))
    with pytest.raises(JournalError) as refused:
        Journal(tmp_path / "j", writable=True)
    assert str(refused.value).startswith(f"{tmp_path / 'j'}: {text}")
