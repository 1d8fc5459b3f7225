"""Journals, run folders and model versions."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from hopfleet.domain.messages import Finish, Message, OperatorAsked, RunStarted, WorkerLost
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
    with pytest.raises(JournalError, match="has format 99, this Hopfleet reads format 1"):
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
