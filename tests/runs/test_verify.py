"""Verification: what is whole passes, and every kind of damage is found and named."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain.messages import DropVersion, Message, VersionSaved
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import Interrupted
from hopfleet.runs import verify as module
from hopfleet.runs.verify import Fault, find_data, verify
from hopfleet.runtime.loop import Loop
from hopfleet.store.journal import Journal
from hopfleet.support.files import digest
from hopfleet.testing.tasks import CountingTask
from tests.helpers import warm
from tests.helpers.killing import SCRIPT, ended
from tests.helpers.processes import environment


def experiment(**more: Any) -> hop.Experiment:
    return hop.Experiment(
        CountingTask(),
        **{
            "train": {"x": np.arange(40.0)},
            "valid": {"x": np.arange(8.0)},
            "space": {"number": hop.grid_search([1, 2, 3])},
            "search": hop.Grid(max_epochs=2),
            "partitions": 4,
            "batch_size": 5,
            "backend": "inline",
            "name": "whole",
            **more,
        },
    )


@pytest.fixture
def results() -> hop.Results:
    return experiment().fit(quiet=True)


def only(results: hop.Results) -> Fault:
    verdict = results.verify()
    assert not verdict.ok and verdict.notes == []
    (fault,) = verdict.faults
    return fault


def test_a_whole_one(results: hop.Results) -> None:
    verdict = results.verify()
    assert verdict.ok and verdict.faults == [] and verdict.notes == []
    saved = sum(len(trial.saved) for trial in results.history.trials.values())
    assert saved >= 3 and verdict.checked["models"].startswith(f"{saved} files")
    assert verdict.checked["data"] == "train: 40 rows, valid: 8 rows"
    assert verdict.checked["folder"] == "permissions 0700"


def test_a_flipped_byte(results: hop.Results) -> None:
    path = results.best.checkpoint
    body = bytearray(path.read_bytes())
    body[1] ^= 1
    path.write_bytes(body)
    assert only(results) == Fault(
        "models", str(path), "is damaged: its SHA-256 differs from the journal", "restore it from a backup"
    )


def test_a_truncated_file(results: hop.Results) -> None:
    path = results["t0002"].last_checkpoint
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    assert only(results).problem == f"is damaged: {size - 1} bytes instead of {size}"


def test_a_deleted_file(results: hop.Results) -> None:
    path = results["t0003"].last_checkpoint
    path.unlink()
    assert only(results) == Fault("models", str(path), "is missing", "restore it from a backup")


def test_a_file_that_cannot_be_read(results: hop.Results, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = results["t0003"].last_checkpoint

    def reading(path: Path) -> str:
        if path == bad:
            raise OSError(5, "Input/output error")
        return digest(path)

    monkeypatch.setattr(module, "digest", reading)
    fault = only(results)
    assert (fault.where, fault.problem) == (str(bad), "cannot be read ([Errno 5] Input/output error)")


@pytest.mark.parametrize("name", ["notes.txt", "t0001/v00099.safetensors", "t0009/v00001.safetensors", "t0001/v1"])
def test_a_foreign_file(results: hop.Results, name: str) -> None:
    path = results.folder.checkpoints / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    fault = only(results)
    assert (fault.where, fault.problem) == (str(path), "is a stray file: it is not in the journal")


def test_all_faults_are_named_at_once(results: hop.Results) -> None:
    results["t0001"].last_checkpoint.unlink()
    results["t0002"].last_checkpoint.write_text("")
    (results.folder.data / "train" / "manifest.json").write_text("{}")
    results.folder.path.chmod(0o755)
    assert [fault.part for fault in results.verify().faults] == ["models", "models", "data", "folder"]


def test_permissions(results: hop.Results) -> None:
    results.folder.path.chmod(0o750)
    path = results.folder.path
    assert only(results) == Fault("folder", str(path), "has permissions 0750, not 0700", f"chmod 700 {path}")


# ----------------------------------------------------------------------------------------------------- the journal


def change(results: hop.Results, statement: str, *values: Any) -> None:
    """Change a journal of format 4, whose messages were not chained yet."""
    with contextlib.closing(sqlite3.connect(results.folder.journal_file)) as database:
        database.execute(statement, values)
        database.execute("PRAGMA user_version = 4")
        database.commit()


def test_a_changed_configuration(results: hop.Results) -> None:
    change(results, "UPDATE messages SET body = replace(body, '\"number\": 2', '\"number\": 9')")
    with contextlib.closing(sqlite3.connect(results.folder.journal_file)) as database:
        database.execute("PRAGMA user_version = 5")
    fault = only(results)
    assert fault.part == "journal" and "was modified" in fault.problem


def test_a_changed_definition(results: hop.Results) -> None:
    definition = json.loads(results.folder.definition_file.read_text())
    results.folder.definition_file.write_text(json.dumps(definition))
    assert results.verify().ok
    results.folder.definition_file.write_text(json.dumps(definition | {"mode": "max", "seed": 5}))
    fault = only(results)
    assert fault.part == "folder" and "was modified since the last run: mode, seed" in fault.problem


def test_a_doubled_unit(results: hop.Results) -> None:
    change(
        results,
        "INSERT INTO messages (time, kind, body) "
        "SELECT time, kind, body FROM messages WHERE kind = 'UnitFinished' LIMIT 1",
    )
    fault = only(results)
    assert fault.part == "journal" and "a version is missing or double" in fault.problem


def test_a_trial_that_nobody_added_and_a_damaged_model(results: hop.Results) -> None:
    change(results, "DELETE FROM messages WHERE kind = 'TrialAdded' AND json_extract(body, '$.trial') = 't0001'")
    results["t0003"].last_checkpoint.unlink()
    journal, model = results.verify().faults
    assert journal.problem == "refers to a trial that was never added ('t0001')"
    assert model.problem == "is missing", "models are judged by all of the journal nevertheless"


def test_a_journal_that_cannot_be_read(results: hop.Results) -> None:
    change(results, "UPDATE messages SET body = 'no JSON' WHERE number = 7")
    verdict = results.verify()
    assert [fault.part for fault in verdict.faults] == ["journal"]
    assert verdict.faults[0].problem.startswith("is damaged (")
    assert verdict.checked["models"] == "not checked without a journal"


def test_a_journal_that_is_just_being_made(results: hop.Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that begins makes the file first, and fills it a moment later."""
    journal, aside = results.folder.journal_file, results.folder.path / "aside"
    journal.rename(aside)
    journal.touch()
    monkeypatch.setattr(module, "TELL_SECONDS", 0.0)
    assert results.verify().faults[0].part == "journal"
    monkeypatch.setattr(module.time, "sleep", lambda seconds: aside.rename(journal))
    with contextlib.closing(results.folder.lock()):
        assert results.verify().ok


def test_an_experiment_that_never_began(results: hop.Results) -> None:
    results.folder.journal_file.unlink()
    for folder in (results.folder.checkpoints, results.folder.logs):
        shutil.rmtree(folder)
        folder.mkdir()
    verdict = results.verify()
    assert verdict.ok and verdict.checked["journal"] == "0 messages"


# -------------------------------------------------------------------------------------------------------- the data


def test_a_damaged_partition(results: hop.Results) -> None:
    path = max((results.folder.data / "valid").glob("*.arrow"))
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)
    fault = only(results)
    assert (fault.part, fault.where) == ("data", "valid data")
    assert fault.problem == f"{path}: has the wrong checksum (sha256)"
    assert fault.remedy == "restore it or partition again"


def test_other_data_in_its_place(results: hop.Results) -> None:
    place = results.folder.data / "train"
    shutil.rmtree(place)
    hop.partition({"x": np.arange(40.0) + 1}, place, partitions=4)
    assert only(results).problem == "is not the train data of the experiment: its fingerprint differs"


def test_data_of_its_own_that_is_gone(results: hop.Results) -> None:
    shutil.rmtree(results.folder.data / "train")
    assert "no such folder" in only(results).problem


def test_data_out_of_reach(tmp_path: Path) -> None:
    data = hop.partition({"x": np.arange(40.0)}, tmp_path / "elsewhere", partitions=4)
    results = experiment(train=data).fit(quiet=True)
    assert find_data(results.folder, "train").url == data.url and results.verify().notes == []
    (tmp_path / "elsewhere").rename(tmp_path / "moved")
    verdict = results.verify()
    assert verdict.ok
    assert [note.split(":")[0] for note in verdict.notes] == ["train data"]


def test_a_run_folder_that_has_moved(results: hop.Results, tmp_path: Path) -> None:
    shutil.move(results.folder.path, tmp_path / "moved")
    moved = hop.load(tmp_path / "moved")
    assert moved.verify().ok
    max((moved.folder.data / "train").glob("*.arrow")).unlink()
    assert only(moved).problem.endswith("is missing")


# ------------------------------------------------------------------------------------- runs that go on, or were cut


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> hop.Results:
    """An experiment that was drained in the middle."""
    write = Loop._write

    def drained(self: Loop, now: float, messages: Sequence[Message]) -> None:
        write(self, now, messages)
        if any(isinstance(event, VersionSaved) and event.ref.version == 4 for event in messages):
            self.drain()

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_write", drained)
        with pytest.raises(Interrupted):
            experiment(search=hop.Grid(max_epochs=4)).fit(quiet=True)
    return hop.load("whole")


def test_what_a_run_will_make_again(cut: hop.Results) -> None:
    assert cut.verify().ok
    path = cut["t0001"].last_checkpoint
    body = path.read_bytes()
    path.write_bytes(body[:-1])
    assert only(cut).remedy == "delete it; hopfleet resume whole recreates it"
    path.unlink()
    assert only(cut).remedy == "hopfleet resume whole recreates it"
    experiment(search=hop.Grid(max_epochs=4)).fit(quiet=True)
    assert hop.load("whole").verify().ok, "so it does"


@pytest.mark.parametrize(
    "name", ["v00099.safetensors", ".v00004.safetensors.123", "v00004.tmp", "hop-00003.safetensors"]
)
def test_what_a_run_that_was_cut_leaves_is_no_fault(cut: hop.Results, name: str) -> None:
    (cut.folder.checkpoints / "t0001" / name).write_text("half")
    verdict = cut.verify()
    assert verdict.ok and len(verdict.notes) == 1 and name in verdict.notes[0]
    (cut.folder.checkpoints / "notes.txt").write_text("mine")
    assert [Path(fault.where).name for fault in cut.verify().faults] == ["notes.txt"]


def test_what_comes_after_the_end_is_a_stray() -> None:
    results = experiment(space={"fault": hop.grid_search([False, True])}).fit(quiet=True)
    assert results.verify().ok
    path = results.folder.checkpoints / "t0002" / "v00004-77.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_text("by a worker that was declared dead")
    assert only(results).problem == "is a stray file: it is not in the journal"


def test_a_run_that_goes_on_tidies_up(cut: hop.Results) -> None:
    folder = cut.folder.checkpoints / "t0001"
    for name in ("v00004-77.safetensors", ".v00004-78.safetensors.123", "hop-00003-79.safetensors"):
        (folder / name).write_text("half")
    experiment(search=hop.Grid(max_epochs=4)).fit(quiet=True)
    verdict = hop.load("whole").verify()
    assert verdict.ok and not verdict.notes


def test_files_that_the_run_drops_or_saves_meanwhile(results: hop.Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the files are read, the journal drops one model, saves a second one, and a third one anew."""
    dropped, again = results["t0001"].last_checkpoint, results["t0002"].last_checkpoint
    saved = dropped.with_name("v00009.safetensors")
    version = int(dropped.stem[1:6])
    attempts = [results.history.trials[trial].saved[version].ref.attempt for trial in ("t0001", "t0002")]

    def moves_on(path: Path) -> str:
        monkeypatch.setattr(module, "digest", digest)
        dropped.unlink()
        saved.write_text("new")
        again.write_text("anew")
        with contextlib.closing(Journal(results.folder.journal_file, writable=True)) as journal:
            journal.append(
                0.0,
                [
                    DropVersion(VersionRef("t0001", version, attempts[0])),
                    VersionSaved(VersionRef("t0001", 9, 0), True, digest(saved), 3),
                    VersionSaved(VersionRef("t0002", version, attempts[1]), True, digest(again), 4),
                ],
            )
        raise FileNotFoundError(path)

    monkeypatch.setattr(module, "digest", moves_on)
    assert results.verify().faults == []


def test_it_tells_how_far_it_is(results: hop.Results) -> None:
    told: list[str] = []
    verify(results.folder, told.append)
    jobs = 2 + sum(len(trial.saved) for trial in results.history.trials.values())
    assert told[0] == "reading the journal"
    assert told[-1] == f"{jobs} of {jobs} models and data sets checked"


def test_the_journal_keeps_digests_of_files(results: hop.Results) -> None:
    """What is compared is the file itself: the SHA-256 in the journal is that of its bytes."""
    with contextlib.closing(sqlite3.connect(results.folder.journal_file)) as database:
        rows = database.execute("SELECT body FROM messages WHERE kind = 'VersionSaved'").fetchall()
    digests = {json.loads(body)["digest"] for (body,) in rows}
    assert digest(results.best.checkpoint) in digests


def test_deleted_trials_are_not_missed(results: hop.Results) -> None:
    hop.control("whole").delete("t0002")
    experiment().fit(quiet=True)
    assert not (results.folder.checkpoints / "t0002").exists()
    assert results.refresh().verify().ok


def test_a_paused_trial_is_not_made_again() -> None:
    search = hop.SuccessiveHalving(trials=4, max_epochs=4, min_epochs=1)
    results = experiment(space={"number": hop.uniform(0, 1)}, search=search).fit(quiet=True)
    # As if the run had been cut off when the first trial paused, and its model lost.
    change(results, "DELETE FROM messages WHERE number > (SELECT min(number) FROM messages WHERE kind = 'TrialPaused')")
    shutil.rmtree(results.folder.checkpoints)
    states = {trial.id: trial.state for trial in hop.load("whole").trials}
    remedies = {Path(fault.where).parent.name: fault.remedy for fault in results.verify().faults}
    (paused,) = [trial for trial, state in states.items() if state is hop.TrialState.PAUSED]
    assert remedies[paused] == "restore it from a backup"
    assert all("recreates it" in remedy for trial, remedy in remedies.items() if trial != paused)


@pytest.mark.slow
def test_while_it_runs(own_home: Path) -> None:
    process = warm.Popen([*SCRIPT, "local", "2"], env=environment())
    looked = 0
    try:
        while process.poll() is None:
            with contextlib.suppress(hop.HopfleetError):  # it may not have begun
                results = hop.load("killed")
                faults = results.verify().faults
                looked += bool(results.trials)
                assert faults == []
            ended(process)  # or looking would take all of the time that the run needs
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0 and looked
    verdict = hop.load("killed").verify()
    assert verdict.faults == [] and verdict.notes == []


def test_it_can_be_interrupted(results: hop.Results) -> None:
    def interrupt(text: str) -> None:
        if "of" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(results.folder, interrupt)
