"""Journals, run folders and model versions."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from pathlib import Path

import pytest

from hopfleet.domain.messages import Finish, Message, OperatorAsked, RunStarted, WishAnswered, WorkerLost
from hopfleet.errors import CheckpointError, ExperimentExists, JournalError, NotFound
from hopfleet.files import digest, write_atomically
from hopfleet.store.folder import RunFolder, find_run, home, runs
from hopfleet.store.journal import Journal
from hopfleet.store.versions import SPARE_BYTES, SPARES, Versions

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


def test_a_journal_is_durable_and_shared(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", writable=True)
    journal.append(1.0, MESSAGES)
    journal.close()
    with sqlite3.connect(tmp_path / "j") as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()


def test_an_append_that_fails_leaves_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", writable=True)
    with pytest.raises(TypeError):
        journal.append(1.0, [RunStarted("1"), OperatorAsked(object())])  # type: ignore[arg-type]
    assert list(journal.read()) == []
    journal.close()


def test_a_journal_of_an_older_format_is_read_and_becomes_a_newer_one_when_written_to(tmp_path):
    with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
        journal.append(1.0, [RunStarted("old")])
        journal._database.execute("PRAGMA user_version = 1")
    with contextlib.closing(Journal(tmp_path / "j")) as journal:
        assert [message for _, _, message in journal.read()] == [RunStarted("old")]
        assert journal._format() == 1
    with contextlib.closing(Journal(tmp_path / "j", writable=True)) as journal:
        assert journal._format() == 2


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
    with pytest.raises(JournalError, match="has format 99, this Hopfleet reads format 2"):
        Journal(tmp_path / "j")


def test_versions_go_to_shared_memory_or_to_the_folder(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    sha, size = versions.write("t1", 3, lambda path: path.write_bytes(b"abc"), durable=False, size=3) or ("", 0)
    assert (sha, size) == ("", 3)
    assert versions.find("t1", 3).parent.parent == versions.shared_folder
    sha, _ = versions.write("t1", 4, lambda path: path.write_bytes(b"abc"), durable=True, size=3)
    assert sha == digest(versions.find("t1", 4))
    assert versions.find("t1", 4) == tmp_path / "checkpoints" / "t1" / "v00004.safetensors"
    versions.drop("t1", 4)
    versions.drop("t1", 4)
    with pytest.raises(CheckpointError, match="version 4 of t1 is not saved anywhere"):
        versions.find("t1", 4)
    assert versions.shared_folder.stat().st_mode & 0o077 == 0
    versions.release()
    assert not versions.shared_folder.exists()


def test_a_copy_is_a_second_name_that_outlives_the_first(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    sha, size = versions.write("t1", 4, lambda path: path.write_bytes(b"abc"), durable=True, size=3)
    assert versions.copy("t1", 4, "t2") == (sha, size)
    source, target = (versions.path(trial, 4, durable=True) for trial in ("t1", "t2"))
    assert source.stat().st_ino == target.stat().st_ino
    versions.write("t1", 4, lambda path: path.write_bytes(b"other"), durable=True, size=5)
    assert target.read_bytes() == b"abc"
    versions.forget("t1")
    assert not source.parent.exists()
    assert versions.find("t2", 4) == target
    assert target.read_bytes() == b"abc"


def test_a_copy_of_what_is_not_there(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    versions.write("t1", 4, lambda path: path.write_bytes(b"abc"), durable=False, size=3)
    with pytest.raises(CheckpointError, match="version 4 of t1 is not saved"):
        versions.copy("t1", 4, "t2")
    with pytest.raises(CheckpointError):
        versions.find("t2", 4)


def test_where_a_file_cannot_have_two_names_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    sha, size = versions.write("t1", 4, lambda path: path.write_bytes(b"abc"), durable=True, size=3)

    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    assert versions.copy("t1", 4, "t2") == (sha, size)
    inodes = {versions.path(trial, 4, durable=True).stat().st_ino for trial in ("t1", "t2")}
    assert len(inodes) == 2


def test_a_copy_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    expected = versions.write("t1", 4, lambda path: path.write_bytes(b"abc"), durable=True, size=3)
    target = versions.path("t2", 4, durable=True)
    target.parent.mkdir()
    target.with_suffix(".tmp").write_bytes(b"half of it")
    assert versions.copy("t1", 4, "t2") == expected
    # It died after the copy and before anybody heard of it.
    assert versions.copy("t1", 4, "t2") == expected
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_wishes_wait_in_a_queue_and_leave_a_trail(tmp_path: Path) -> None:
    writer, other = Journal(tmp_path / "j", writable=True), Journal(tmp_path / "j")
    assert writer.wishes() == other.trail() == []
    first = other.ask("ada@box", "stop", {"trial": "t0001", "now": True})
    second = other.ask("bob@box", "pause", {})
    asked = OperatorAsked("stop", {"trial": "t0001", "now": True}, "ada@box", first)
    assert writer.wishes() == [asked, OperatorAsked("pause", {}, "bob@box", second)]
    writer.append(1.0, [asked, WishAnswered(first, granted=False, text="no")])
    assert [wish.number for wish in writer.wishes()] == [second]
    # Another process that takes over knows which are taken.
    assert [wish.number for wish in Journal(tmp_path / "j", writable=True).wishes()] == [second]
    assert other.answer(first) == WishAnswered(first, granted=False, text="no")
    assert other.answer(second) is None
    refused, waiting = other.trail()
    assert (refused.number, refused.who, refused.granted, refused.text) == (first, "ada@box", False, "no")
    assert (waiting.wish, waiting.granted, waiting.text) == ("pause", None, "")
    assert refused.time <= waiting.time
    other._database.execute("DROP TABLE wishes")
    assert other.trail() == other.wishes() == [], "a journal of before there were wishes"


def test_dropped_files_are_written_over(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)

    def fill(path: Path) -> None:
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(bytes(SPARE_BYTES))
            file.truncate()

    first = versions.write("t1", 1, fill, durable=False, size=SPARE_BYTES)
    inode = versions.find("t1", 1).stat().st_ino
    versions.drop("t1", 1)
    with pytest.raises(CheckpointError):
        versions.find("t1", 1)
    assert versions.write("t2", 5, fill, durable=False, size=SPARE_BYTES) == first
    assert versions.find("t2", 5).stat().st_ino == inode
    for number in range(2 * SPARES):
        versions.write("t3", number, fill, durable=False, size=SPARE_BYTES)
    for number in range(2 * SPARES):
        versions.drop("t3", number)
    assert len(list((versions.shared_folder / "spare").iterdir())) == SPARES


def test_short_shared_memory_spills(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    versions.write("t1", 3, lambda path: path.write_bytes(b"abc"), durable=False, size=1 << 60)
    assert versions.find("t1", 3).parent.parent == tmp_path / "checkpoints"
    versions.release()
    with pytest.raises(CheckpointError):
        versions.find("t1", 3)


def test_shared_memory_of_vanished_experiments_is_given_back(tmp_path: Path) -> None:
    gone, here = (Versions(tmp_path / name / "checkpoints", tmpfs=tmp_path) for name in ("gone", "here"))
    here.durable_folder.mkdir(parents=True)
    for versions in (gone, here):
        versions.write("t1", 1, lambda path: path.write_bytes(b"abc"), durable=False, size=3)
    here.sweep()
    assert here.find("t1", 1).is_file()
    assert not gone.shared_folder.exists()


def test_no_shared_memory_at_all(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path / "absent")
    assert versions.shared_folder.name.startswith(f"hopfleet-{os.getuid()}-")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
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
    run.create({"name": "mine"})
    assert [found.name for found in runs()] == ["mine"]
    assert find_run("mine").path == run.path
    assert find_run(run.path).definition() == {"name": "mine"}
    with pytest.raises(NotFound, match="there are: mine"):
        find_run("yours")
    (run.path / "experiment.json").write_text("{")
    with pytest.raises(JournalError, match="cannot be read"):
        run.definition()
    run.clear()
    assert [path.name for path in run.path.iterdir()] == ["lock"]


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    pid = os.fork()
    if pid == 0:
        run.lock()
        os._exit(0)
    os.waitpid(pid, 0)
    run.lock().close()
