"""Run folders that are looked up by name or path, what is missing of a run, and what proves that a folder is one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from hopfleet.domain.messages import Finish, RunStarted
from hopfleet.errors import ExperimentExists, JournalError, NotFound, UsageError
from hopfleet.store.base import JournalStore
from hopfleet.store.folder import RunFolder, check_name, find_damaged, find_run, home
from hopfleet.store.journal import Journal
from hopfleet.store.local import LocalStore, has_journal, last_message, missing_part, open_journal, recalled, store_of
from hopfleet.store.proof import SCHEMA, is_part
from tests.helpers.definitions import definition
from tests.helpers.open_files import opened, synced

STARTED, FINISHED = RunStarted("1"), Finish(complete=True)


def made(name: str, **changes: Any) -> RunFolder:
    folder = RunFolder(home() / name)
    folder.create(definition(name, **changes))
    return folder


def journaled(folder: RunFolder, *messages: Any) -> RunFolder:
    with contextlib.closing(Journal(folder.journal_file, writable=True)) as journal:
        journal.append(1.0, messages)
    return folder


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("wrong", ["", "a/b", ".hidden", "a" * 129, 3, None])
def test_names_that_no_experiment_has(wrong: Any) -> None:
    assert check_name("a" * 128) == "a" * 128
    with pytest.raises(UsageError, match="at most 128 characters"):
        check_name(wrong)


@pytest.mark.parametrize("wrong", ["", 3, None])
def test_what_is_neither_a_name_nor_a_path(wrong: Any) -> None:
    with pytest.raises(UsageError, match="must be the name of an experiment or its run folder"):
        find_run(wrong)


@pytest.mark.parametrize("strange", ["x" * 300, "a\0b", "x/" * 3000], ids=["long", "null", "deep"])
def test_names_that_no_file_system_takes_are_not_found(strange: str) -> None:
    assert not RunFolder(Path(strange)).exists and not RunFolder(Path(strange)).damaged
    with pytest.raises(NotFound, match="no such experiment"):
        find_run(strange)
    with pytest.raises(NotFound, match="no such experiment"):
        find_damaged(strange)


def test_the_newest_experiments_are_named_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for moment, name in enumerate(("b", "c", "a")):
        os.utime(made(name).definition_file, (moment, moment))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match=r"(?m)there are: a, c, b$"):
        find_run("zebra")
    RunFolder(tmp_path / "zebra").create(definition("zebra"))
    with pytest.raises(NotFound, match=r"(?m)there are: a, c, b; for that in this directory, use \./zebra$"):
        find_run("zebra")
    with pytest.raises(NotFound, match=r"(?m)there are: a, c, b$"):
        find_run("./other")


@pytest.mark.parametrize("part", ["journal.sqlite", "checkpoints/t0001/v00001-1.safetensors", "logs/t0001.log"])
def test_a_run_without_its_definition_is_damaged(part: str) -> None:
    whole, damaged = made("whole"), RunFolder(home() / "damaged")
    path = damaged.path / part
    path.parent.mkdir(parents=True)
    path.touch()
    assert damaged.damaged is True and whole.damaged is False
    with pytest.raises(JournalError, match=r"experiment\.json: is missing, but other parts.*hopfleet recover damaged"):
        find_run("damaged")
    assert find_damaged("damaged").path == damaged.path
    assert find_damaged("whole").path == find_run("whole").path == whole.path


# ------------------------------------------------------------------------------------------------------ what is missing


@pytest.mark.parametrize(
    ("defined", "trained", "journaled", "empty", "told"),
    [
        (True, True, True, False, ""),
        (True, False, True, True, ""),
        (False, False, False, True, ""),
        (True, True, True, True, "journal.sqlite: is empty, but models or logs of trials are left"),
        (True, True, False, True, "journal.sqlite: is missing, but models or logs of trials are left"),
        (False, True, False, True, "experiment.json: is missing, but models or logs of trials are left"),
        (False, True, True, True, "experiment.json: is missing, but models or logs of trials are left"),
        (False, False, True, False, "experiment.json: is missing, but its journal is left"),
    ],
)
def test_what_is_missing_of_a_run(defined: bool, trained: bool, journaled: bool, empty: bool, told: str) -> None:
    folder = made("run")
    if not defined:
        folder.definition_file.unlink()
    if trained:
        (folder.logs / "t0001.log").touch()
    assert missing_part(folder, journaled=journaled, empty=empty) == (told and f"{folder.path}/{told}")


def test_the_last_message_of_an_earlier_run_and_requests_since() -> None:
    folder, store = made("run"), LocalStore()
    assert last_message(folder, store) == (None, 0) and not has_journal(folder)
    folder.journal_file.touch()
    assert last_message(folder, store) == (None, 0), "it is being created"
    folder.journal_file.unlink()
    journaled(folder, STARTED, FINISHED)
    assert last_message(folder, store) == (FINISHED, 0) and has_journal(folder)
    with contextlib.closing(open_journal(folder)) as journal:
        for _ in range(2):
            journal.requests.ask("ada", "pause", {})
        assert list(recalled(journal)) == [(1.0, STARTED), (1.0, FINISHED)]
    assert last_message(folder, store) == (FINISHED, 2)
    folder.journal_file.write_bytes(b"not a database" * 100)
    with pytest.raises(JournalError, match=r"is not a journal.*; restore it .*, or run: hopfleet recover run"):
        last_message(folder, store)
    folder.journal_file.unlink()
    (folder.logs / "t0001.log").touch()
    with pytest.raises(JournalError, match=r"sqlite: is missing, .* cannot continue; restore .*overwrite=True"):
        last_message(folder, store)


def test_requests_that_cannot_be_read_are_noticed_when_a_run_is_recalled() -> None:
    with contextlib.closing(open_journal(journaled(made("run"), STARTED))) as journal:
        journal.requests.ask("ada", "pause", {})
        hidden(journal).execute("ALTER TABLE wishes RENAME COLUMN who TO whom")  # prose: allow, a name on disk
        with pytest.raises(JournalError, match="the requests in the journal cannot be read"):
            list(recalled(journal))


def hidden(journal: JournalStore) -> sqlite3.Connection:
    assert isinstance(journal, Journal)
    return journal._database


def test_a_store_whose_password_is_not_kept() -> None:
    with pytest.raises(UsageError, match=r"run: the password of its store, .*, is not kept in the run folder"):
        store_of(made("run", store="sql://ada:***@host/db"))


# ------------------------------------------------------------------------------------------------- what proves a folder


def write_database(path: Path, table: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(table)


def test_a_folder_is_proved_by_the_schema_of_its_journal(tmp_path: Path) -> None:
    journaled(RunFolder(tmp_path), STARTED).lock().close()
    assert (tmp_path / "hopfleet.json").is_file()


@pytest.mark.parametrize(
    "content", [b"SQLite format 3\0 of something else", SCHEMA, b""], ids=["other", "text", "empty"]
)
def test_a_file_of_the_name_of_a_journal_proves_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.sqlite").write_bytes(content)
    with pytest.raises(ExperimentExists, match="contains files and is not a run folder"):
        RunFolder(tmp_path).lock()
    write_database(tmp_path / "other.sqlite", "CREATE TABLE messages (number INTEGER PRIMARY KEY)")
    (tmp_path / "other.sqlite").rename(tmp_path / "journal.sqlite")
    with pytest.raises(ExperimentExists, match="contains files and is not a run folder"):
        RunFolder(tmp_path).lock()
    assert [path.name for path in tmp_path.iterdir()] == ["journal.sqlite"] and opened(tmp_path) == []


@pytest.mark.parametrize("marker", ['{"hopfleet": "prepared data"}', "{", "[]"])
def test_the_marker_of_another_folder_proves_nothing(tmp_path: Path, marker: str) -> None:
    (tmp_path / "hopfleet.json").write_text(marker)
    with pytest.raises(ExperimentExists, match="contains files and is not a run folder"):
        RunFolder(tmp_path).lock()


def test_what_a_process_leaves_that_died_while_it_marked_a_folder_is_nothing(tmp_path: Path) -> None:
    for name in ("lock", ".hopfleet.json.0123456789abcdef"):
        (tmp_path / name).touch()
    folder = RunFolder(tmp_path)
    for _ in range(2):  # the second time there is a marker
        with folder.lock():
            assert folder.new
    assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_a_run_folder_is_not_new_and_the_lock_tells_its_process() -> None:
    folder = made("run")
    (folder.path / "lock").write_text("123456789012345678901234567890")
    with folder.lock(), pytest.raises(ExperimentExists, match=f"is being run by process {os.getpid()};"):
        RunFolder(folder.path).lock()
    assert not folder.new and opened(folder.path) == []
    with folder.lock():
        (folder.path / "lock").write_text("")
        with pytest.raises(ExperimentExists, match="is being run by process unknown;"):
            RunFolder(folder.path).lock()


def test_an_obstacle_in_a_folder_is_named_by_its_whole_path(tmp_path: Path) -> None:
    (tmp_path / "run" / "lock").mkdir(parents=True)
    with pytest.raises(OSError) as refused:
        RunFolder(tmp_path / "run").lock()
    assert refused.value.filename == f"{tmp_path}/run/lock" and opened(tmp_path / "run") == []


def test_parts_of_runs_and_other_files() -> None:
    for name in (
        "journal.sqlite-wal",
        "journal.damaged-1.sqlite",
        ".lock.abc",
        ".replaced",
        "experiment.damaged-2.json",
    ):
        assert is_part(name)
    for name in ("thesis.txt", "journal.sqlite.bak", "my-journal.sqlite", ".git"):
        assert not is_part(name)


# ------------------------------------------------------------------------------------------------------------- the disk


def test_only_what_a_run_depends_on_waits_for_the_disk(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with synced() as waited:
        folder.create(definition("run"))
        assert len(waited) == 2 and waited[0].startswith(".experiment.json.") and waited[1] == "run"
        folder.keep_notes({"t0001": {"note": "good"}})
        assert len(waited) == 4 and waited[2].startswith(".notes.json.")
        for keep in (folder.keep_profile, folder.keep_prediction, folder.keep_trial_runs, folder.keep_health):
            keep({"a": 1})
        assert len(waited) == 4
    assert folder.notes() == {"t0001": {"note": "good"}}
    folder.notes_file.unlink()
    folder.notes_file.mkdir()
    with pytest.raises(UsageError, match=r"notes\.json: cannot be written"):
        folder.keep_notes({})
    assert folder.notes() == {}
    assert folder.tests == folder.path / "tests"


def test_a_definition_that_was_edited_is_read_only_if_asked_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(definition("run"))
    text = folder.definition_file.read_text()
    folder.definition_file.write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(JournalError, match="its content differs from its digest"):
        folder.definition()
    assert folder.definition(checked=False)["seed"] == 1
    assert isinstance(store_of(folder), LocalStore), "its journal can still be read"
