"""Journals, run folders and model versions."""

from __future__ import annotations

import contextlib
import errno
import json
import os
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
    RunUnit,
    UnitFinished,
    VersionLost,
    VersionSaved,
    WorkerLost,
)
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError, ExperimentExists, JournalError, NotFound
from hopfleet.store.folder import RunFolder, find_run, home, runs
from hopfleet.store.journal import Journal
from hopfleet.store.shared_memory import KEY
from hopfleet.store.versions.local import Versions, check
from hopfleet.support.files import digest, write_atomically
from tests.helpers.definitions import definition

MESSAGES: list[Message] = [RunStarted("1"), WorkerLost("w1", "its process ended"), Finish(complete=True)]


def test_a_journal_keeps_order_and_times(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", writable=True)
    assert journal.last() is None
    journal.append(1.0, MESSAGES[:2])
    reader = Journal(tmp_path / "j")
    assert [message for _, _, message in reader.read()] == MESSAGES[:2]
    journal.append(2.0, MESSAGES[2:])
    assert list(reader.read(2)) == [(3, 2.0, MESSAGES[2])]
    assert reader.last() == MESSAGES[2]
    journal.close()
    reader.close()


def test_a_new_journal_has_room_for_requests(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", writable=True)
    with contextlib.closing(sqlite3.connect(tmp_path / "j")) as database:
        assert database.execute("SELECT count(*) FROM wishes").fetchone() == (0,)  # prose: allow, a name on disk
    journal.close()


def test_a_journal_is_durable_and_shared(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", writable=True)
    journal.append(1.0, MESSAGES)
    journal.close()
    reader = Journal(tmp_path / "j")
    assert [message for _, _, message in reader.read()] == MESSAGES
    reader.close()
    assert [path.name for path in tmp_path.iterdir()] == ["j"]


def test_an_append_that_fails_leaves_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", writable=True)
    with pytest.raises(TypeError):
        journal.append(1.0, [RunStarted("1"), RequestMade(object())])  # type: ignore[arg-type]
    assert list(journal.read()) == []
    journal.close()


OLD: list[tuple[str, dict[str, object]]] = [
    ("RunUnit", {"worker": "w1", "trial": "t1", "epoch": 1, "partition": 0, "attempt": 1, "version": 0, "last": False}),
    ("SaveVersion", {"worker": "w1", "trial": "t1", "version": 1, "durable": True}),
    ("VersionSaved", {"trial": "t1", "version": 1, "durable": True, "digest": "abc", "size": 3}),
    ("RunUnit", {"worker": "w2", "trial": "t1", "epoch": 1, "partition": 1, "attempt": 2, "version": 1, "last": True}),
    ("VersionLost", {"trial": "t1", "version": 1, "reason": "gone", "worker": "w2"}),
    ("VersionLost", {"trial": "t1", "version": 1, "reason": "gone", "worker": None}),
    ("VersionLost", {"trial": "t1", "version": 0, "reason": "gone", "worker": "w2"}),
    ("DropVersion", {"trial": "t1", "version": 1}),
]


def old_journal(path: Path, written: int) -> None:
    with contextlib.closing(Journal(path, writable=True)) as journal:
        for kind, body in OLD:
            row = (1.0, kind, json.dumps(body))
            journal._database.execute("INSERT INTO messages (time, kind, body) VALUES (?, ?, ?)", row)
        journal._database.execute(f"PRAGMA user_version = {written}")


@pytest.mark.parametrize("written", [1, 2])
def test_a_journal_of_an_older_format_is_read_and_becomes_a_newer_one_when_written_to(tmp_path, written):
    old_journal(tmp_path / "j", written)
    with contextlib.closing(Journal(tmp_path / "j")) as journal:
        before = [message for _, _, message in journal.read()]
        assert journal._format() == written
    assert before[2] == VersionSaved(VersionRef("t1", 1, 0), True, "abc", 3)
    assert before[4:6] == [
        VersionLost(VersionRef("t1", 1, 0), "gone", "w2"),
        VersionLost(VersionRef("t1", 1, 0), "gone"),
    ]
    for _ in range(2):
        with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
            after = [message for _, _, message in journal.read()]
            assert journal._format() == 5
        # What it was that could not be done is known now; all else is as it was.
        lost = VersionLost(VersionRef("t1", 1, 0), "gone", "w2", 2)
        assert after == [*before[:4], lost, *before[5:]]


def test_a_journal_of_format_3_is_read_and_becomes_a_newer_one_when_written_to(tmp_path: Path) -> None:
    unit = {"worker": "w1", "trial": "t1", "epoch": 1, "partition": 0, "attempt": 3}
    evaluation = Unit("t1", 1, 0, Work.EVALUATE)
    rows = [
        ("Evaluate", {**unit, "version": 2, "saved": 7, "digest": "abc", "flotilla": 0, "more": False}),
        ("Evaluated", {**unit, "started": 1.0, "ended": 2.0, "sums": {}, "share": 1.0}),
        (
            "OperatorAsked",
            {"wish": "stop", "arguments": {"trial": "t1"}, "who": "ada", "number": 4},  # prose: allow, a wire name
        ),
        ("VersionLost", {"trial": "t1", "version": 2, "saved": 7, "reason": "gone", "worker": "w1", "attempt": 2}),
    ]
    expected = [
        RunUnit("w1", evaluation, 3, VersionRef("t1", 2, 7), digest="abc"),
        UnitFinished("w1", evaluation, 3, 0, 1.0, 2.0),
        RequestMade("stop", {"trial": "t1"}, "ada", 4),
        VersionLost(VersionRef("t1", 2, 7), "gone", "w1", 2),
    ]
    with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
        for kind, body in rows:
            insert = "INSERT INTO messages (time, kind, body) VALUES (1.0, ?, ?)"
            journal._database.execute(insert, (kind, json.dumps(body)))
        journal._database.execute("PRAGMA user_version = 3")
    for writable, found in ((False, 3), (True, 5), (False, 5)):
        with contextlib.closing(Journal(tmp_path / "j", writable=writable)) as journal:
            assert journal._format() == found
            assert [message for _, _, message in journal.read()] == expected


def test_a_journal_that_is_being_created_says_so(tmp_path):
    (tmp_path / "j").touch()
    with pytest.raises(JournalError, match="is being created; try again"):
        Journal(tmp_path / "j")


def test_journals_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal"):
        Journal(tmp_path / "absent")
    (tmp_path / "text").write_text("not a database at all, but long enough to look at" * 20)
    with pytest.raises(JournalError, match="is not a journal"):
        Journal(tmp_path / "text")
    journal = Journal(tmp_path / "j", writable=True)
    journal.append(1.0, MESSAGES)
    journal._database.execute("UPDATE messages SET kind = 'Unheard' WHERE number = 2")
    with pytest.raises(JournalError, match="is damaged"):
        list(journal.read())
    journal._database.execute("PRAGMA user_version = 99")
    journal.close()
    with pytest.raises(JournalError, match="has format 99, this Hopfleet reads format 5"):
        Journal(tmp_path / "j")


def test_versions_go_to_shared_memory_or_to_the_folder(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    sha, size = versions.write(
        VersionRef("t1", 3, 7), lambda path: path.write_bytes(b"abc"), durable=False, size=3
    ) or ("", 0)
    assert (sha, size) == ("", 3)
    assert versions.find(VersionRef("t1", 3, 7)).parent.parent == versions.shared_folder
    sha, _ = versions.write(VersionRef("t1", 4, 8), lambda path: path.write_bytes(b"abc"), durable=True, size=3)
    assert sha == digest(versions.find(VersionRef("t1", 4, 8)))
    assert versions.find(VersionRef("t1", 4, 8)) == tmp_path / "checkpoints" / "t1" / "v00004-8.safetensors"
    versions.drop(VersionRef("t1", 4, 8))
    versions.drop(VersionRef("t1", 4, 8))
    looked = f"looked for {tmp_path}/checkpoints/t1/v00004-8.safetensors"
    with pytest.raises(CheckpointError, match=f"version 4 of t1 is not saved anywhere; {looked}"):
        versions.find(VersionRef("t1", 4, 8))
    assert versions.shared_folder.stat().st_mode & 0o077 == 0
    versions.release()
    assert not versions.shared_folder.exists()


def test_a_copy_is_a_second_name_that_outlives_the_first(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    sha, size = versions.write(VersionRef("t1", 4, 8), lambda path: path.write_bytes(b"abc"), durable=True, size=3)
    assert versions.copy(VersionRef("t1", 4, 8), VersionRef("t2", 4, 9)) == (sha, size)
    source, target = (versions.path(VersionRef(*file), durable=True) for file in (("t1", 4, 8), ("t2", 4, 9)))
    assert source.stat().st_ino == target.stat().st_ino
    versions.write(VersionRef("t1", 4, 8), lambda path: path.write_bytes(b"other"), durable=True, size=5)
    assert target.read_bytes() == b"abc"
    versions.forget("t1")
    assert not source.parent.exists()
    assert versions.find(VersionRef("t2", 4, 9)) == target
    assert target.read_bytes() == b"abc"


def test_a_copy_of_what_is_not_there(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    for saved in (7, None):
        with pytest.raises(CheckpointError, match="version 4 of t1 is not saved"):
            versions.copy(VersionRef("t1", 4, saved), VersionRef("t2", 4, 9))
    with pytest.raises(CheckpointError):
        versions.find(VersionRef("t2", 4, 9))


def test_a_copy_of_what_is_damaged(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    sha, _ = versions.write(VersionRef("t1", 4, 8), lambda path: path.write_bytes(b"abc"), durable=True, size=3)
    versions.path(VersionRef("t1", 4, 8), durable=True).write_bytes(b"abd")
    with pytest.raises(CheckpointError, match=r"8\.safetensors: is damaged: another SHA-256"):
        versions.copy(VersionRef("t1", 4, 8), VersionRef("t2", 4, 9), sha)
    assert not list((tmp_path / "checkpoints" / "t2").iterdir())


def test_where_a_file_cannot_have_two_names_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    sha, size = versions.write(VersionRef("t1", 4, 8), lambda path: path.write_bytes(b"abc"), durable=True, size=3)

    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    assert versions.copy(VersionRef("t1", 4, 8), VersionRef("t2", 4, 9)) == (sha, size)
    inodes = {versions.find(VersionRef(*file)).stat().st_ino for file in (("t1", 4, 8), ("t2", 4, 9))}
    assert len(inodes) == 2


def test_saves_of_one_version_have_files_of_their_own(tmp_path: Path) -> None:
    """A worker that was declared dead writes after the one that took its place."""
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    for durable in (True, False):
        for attempt, body in ((8, b"good"), (7, b"late")):
            versions.write(
                VersionRef("t1", 4, attempt), lambda path, body=body: path.write_bytes(body), durable=durable, size=4
            )
        assert versions.find(VersionRef("t1", 4, 8)).read_bytes() == b"good"
        versions.drop(VersionRef("t1", 4, 7))
        assert versions.find(VersionRef("t1", 4, 8)).read_bytes() == b"good"


def test_a_version_is_what_the_journal_says(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    sha, _ = versions.write(VersionRef("t1", 4, 8), lambda path: path.write_bytes(b"abc"), durable=True, size=3)
    path = versions.find(VersionRef("t1", 4, 8), sha)
    path.write_bytes(b"abd")
    assert versions.find(VersionRef("t1", 4, 8)) == path
    with pytest.raises(CheckpointError, match="is damaged: another SHA-256 than in the journal"):
        versions.find(VersionRef("t1", 4, 8), sha)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        check(path, sha)


def test_what_nobody_needs_is_tidied_up(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    for attempt in (7, 8):
        for durable in (True, False):
            versions.write(VersionRef("t1", 4, attempt), lambda path: path.write_bytes(b"abc"), durable=durable, size=3)
    left = ["t1/.v00005-9.safetensors.123", "t2/hop-00001-3.safetensors", "t2/v00001.safetensors", "t3/v00001.tmp"]
    mine = ["t1/notes.txt", "readme.md", "t4/v1/deep.safetensors"]
    for name in (*left, "probe/v00001-1.safetensors", *mine):
        path = tmp_path / "checkpoints" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    versions.tidy([VersionRef("t1", 4, 8), VersionRef("t2", 1, 0)])
    kept = [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()]
    names = {path.relative_to(tmp_path / "checkpoints").as_posix() for path in kept}
    assert names == {"t1/v00004-8.safetensors", "t2/v00001.safetensors", KEY, *mine}
    assert [path.name for path in (versions.shared_folder / "t1").iterdir()] == ["v00004-8.safetensors"]
    assert not (tmp_path / "checkpoints" / "t3").exists()
    assert not (tmp_path / "checkpoints" / "probe").exists()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_shared_memory_that_fails_spills(tmp_path: Path, error: int) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)

    def write(path: Path) -> None:
        if versions.shared_folder in path.parents:
            path.write_bytes(b"a")
            raise OSError(error, os.strerror(error))
        path.write_bytes(b"abc")

    sha, size = versions.write(VersionRef("t1", 3, 7), write, durable=False, size=3)
    assert (sha, size) == (digest(versions.find(VersionRef("t1", 3, 7))), 3), "what lies on a disk is hashed"
    assert versions.find(VersionRef("t1", 3, 7)).parent.parent == tmp_path / "checkpoints"
    assert not list((versions.shared_folder / "t1").iterdir())


def test_requests_wait_in_a_queue_and_leave_a_trail(tmp_path: Path) -> None:
    writer, other = Journal(tmp_path / "j", writable=True), Journal(tmp_path / "j")
    assert writer.requests.pending() == other.requests.trail() == []
    first = other.requests.ask("ada@box", "stop", {"trial": "t0001", "now": True})
    second = other.requests.ask("bob@box", "pause", {})
    asked = RequestMade("stop", {"trial": "t0001", "now": True}, "ada@box", first)
    assert writer.requests.pending() == [asked, RequestMade("pause", {}, "bob@box", second)]
    writer.append(1.0, [asked, RequestAnswered(first, granted=False, text="no")])
    assert [request.number for request in writer.requests.pending()] == [second]
    # Another process that takes over knows which are taken.
    assert [request.number for request in Journal(tmp_path / "j", writable=True).requests.pending()] == [second]
    assert other.requests.answer(first) == RequestAnswered(first, granted=False, text="no")
    assert other.requests.answer(second) is None
    refused, waiting = other.requests.trail()
    assert (refused.number, refused.who, refused.granted, refused.text) == (first, "ada@box", False, "no")
    assert (waiting.request, waiting.granted, waiting.text) == ("pause", None, "")
    assert refused.time <= waiting.time
    other._database.execute("DROP TABLE wishes")  # prose: allow, a name on disk
    assert other.requests.trail() == other.requests.pending() == [], "a journal of before there were requests"


def test_short_shared_memory_spills(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    versions.write(VersionRef("t1", 3, 7), lambda path: path.write_bytes(b"abc"), durable=False, size=1 << 60)
    assert versions.find(VersionRef("t1", 3, 7)).parent.parent == tmp_path / "checkpoints"
    versions.release()
    with pytest.raises(CheckpointError):
        versions.find(VersionRef("t1", 3, 7))


def test_shared_memory_of_vanished_experiments_is_given_back(tmp_path: Path) -> None:
    gone, here = (Versions(tmp_path / name / "checkpoints", tmpfs=tmp_path) for name in ("gone", "here"))
    here.durable_folder.mkdir(parents=True)
    for versions in (gone, here):
        versions.write(VersionRef("t1", 1, 7), lambda path: path.write_bytes(b"abc"), durable=False, size=3)
    shutil.rmtree(gone.durable_folder)
    here.memory.sweep()
    assert here.find(VersionRef("t1", 1, 7)).is_file()
    assert not gone.shared_folder.exists()


def test_no_shared_memory_at_all(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path / "absent")
    assert versions.shared_folder.name.startswith(f"hopfleet-{os.getuid()}-")
    sha, _ = versions.write(VersionRef("t1", 3, 7), lambda path: path.write_bytes(b"abc"), durable=False, size=3)
    assert sha == digest(versions.find(VersionRef("t1", 3, 7))), "it may lie on a disk"
    versions.release()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half", encoding="utf-8")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail, durable=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_run_folders(tmp_path: Path) -> None:
    run = RunFolder(home() / "mine")
    with pytest.raises(NotFound, match="holds no experiment"):
        run.definition()
    with run.lock(), pytest.raises(ExperimentExists, match=f"is being run by process {os.getpid()}"):
        run.lock()
    run.create(definition("mine"))
    assert [found.name for found in runs()] == ["mine"]
    assert find_run("mine").path == run.path
    assert find_run(run.path).definition() == definition("mine")
    with pytest.raises(NotFound, match="there are: mine"):
        find_run("yours")
    (run.path / "experiment.json").write_text("{")
    with pytest.raises(JournalError, match="cannot be read"):
        run.definition()
    run.clear()
    assert sorted(path.name for path in run.path.iterdir()) == ["hopfleet.json", "lock"]


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    pid = os.fork()
    if pid == 0:
        run.lock()
        os._exit(0)
    os.waitpid(pid, 0)
    run.lock().close()


@pytest.mark.parametrize(
    ("code", "expected"),
    [(sqlite3.SQLITE_FULL, errno.ENOSPC), (sqlite3.SQLITE_IOERR_FSYNC, errno.EIO), (sqlite3.SQLITE_BUSY, errno.EBUSY)],
)
def test_trouble_that_may_pass_leaves_the_journal_as_it_was(tmp_path: Path, code: int, expected: int) -> None:
    journal = Journal(tmp_path / "j", writable=True)
    real, journal._database = journal._database, Failing(journal._database, code)  # type: ignore[assignment]
    with pytest.raises(OSError) as failure:
        journal.append(1.0, MESSAGES)
    assert (failure.value.errno, failure.value.filename) == (expected, str(tmp_path / "j"))
    assert list(journal.read()) == []
    journal._database = real
    journal.append(1.0, MESSAGES)
    assert [message for _, _, message in journal.read()] == MESSAGES
    journal._database = Failing(real, sqlite3.SQLITE_MISUSE)  # type: ignore[assignment]
    with pytest.raises(sqlite3.OperationalError):
        journal.append(1.0, MESSAGES)
    real.close()


class Failing:
    """A database that takes everything but commits."""

    def __init__(self, database: sqlite3.Connection, code: int) -> None:
        self._database, self._code = database, code

    def execute(self, text: str, *arguments: Any) -> sqlite3.Cursor:
        if text == "COMMIT":
            error = sqlite3.OperationalError("it fails")
            error.sqlite_errorcode = self._code
            raise error
        return self._database.execute(text, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)
