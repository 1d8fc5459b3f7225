"""Run folders: nothing outside is deleted, nothing is lost by starting over, and other users do no harm."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.cli import main
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import ExperimentExists, JournalError, NotFound, UsageError
from hopfleet.store.folder import RunFolder, check_trusted, find_run
from hopfleet.store.replacing import put_back, set_aside
from hopfleet.store.shared_memory import KEY, OWNER
from hopfleet.store.versions.local import Versions
from tests.helpers.counted_runs import content, experiment
from tests.helpers.definitions import definition

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


# ------------------------------------------------------------------------------------------- parts that are missing


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [Path.unlink, empty], ids=["missing", "empty"])
@pytest.mark.parametrize("name", ["journal.sqlite", "experiment.json"])
def test_a_finished_run_survives_the_loss_of_a_part(own_home: Path, name: str, damage: Callable[[Path], None]) -> None:
    experiment().fit(quiet=True)
    damage(own_home / "mine" / name)
    before = content(own_home / "mine")
    with pytest.raises(JournalError, match="hopfleet recover mine"):
        experiment().fit(quiet=True)
    assert content(own_home / "mine") == before
    assert main(["verify", "mine"]) == 1
    assert content(own_home / "mine") == before
    assert experiment().fit(overwrite=True, quiet=True).verify().ok


def test_a_run_that_died_before_its_first_message_starts_over(own_home: Path) -> None:
    experiment().fit(quiet=True)
    for folder in ("checkpoints", "logs"):
        shutil.rmtree(own_home / "mine" / folder)
    empty(own_home / "mine" / "journal.sqlite")
    assert experiment().fit(quiet=True).finished


# --------------------------------------------------------------------------------------------------- what is deleted


def test_links_are_removed_and_not_followed(own_home: Path, tmp_path: Path) -> None:
    experiment().fit(quiet=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.txt").write_text("years of work")
    shutil.rmtree(own_home / "mine" / "plots")
    (own_home / "mine" / "plots").symlink_to(outside)
    (own_home / "mine" / "checkpoints" / "t0001" / "more").symlink_to(outside)
    assert experiment().fit(overwrite=True, quiet=True).finished
    assert (outside / "thesis.txt").read_text() == "years of work"
    assert not (own_home / "mine" / "plots").is_symlink()


def test_a_foreign_folder_with_a_file_named_lock_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "code.py").write_text("x = 1")
    (folder / "lock").write_text("package 1.2.3")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for overwrite in (False, True):
        with pytest.raises(ExperimentExists, match="contains files and is not a run folder"):
            experiment(run_options=hop.RunOptions(folder=folder)).fit(overwrite=overwrite, quiet=True)
    shutil.rmtree(folder / "src")
    with pytest.raises(ExperimentExists, match="contains files and is not a run folder"):
        experiment(run_options=hop.RunOptions(folder=folder)).fit(overwrite=True, quiet=True)
    assert (folder / "lock").read_text() == "package 1.2.3" and len(before) == 2


def test_a_lock_that_is_a_link_or_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("12")
    for name in ("link", "pipe", "folder"):
        (tmp_path / name).mkdir()
        lock = tmp_path / name / "lock"
        if name == "link":
            lock.symlink_to(tmp_path / "precious")
        elif name == "pipe":
            os.mkfifo(lock)
        else:
            lock.mkdir()
        with pytest.raises(OSError, match=r"plain file|symbolic link|directory"):
            RunFolder(tmp_path / name).lock()
        assert not RunFolder(tmp_path / name).running
    assert (tmp_path / "precious").read_text() == "12"


def test_a_run_folder_of_an_earlier_release_is_known_by_its_definition(own_home: Path) -> None:
    experiment().fit(quiet=True)
    (own_home / "mine" / "hopfleet.json").unlink()
    assert experiment().fit(overwrite=True, quiet=True).finished
    assert (own_home / "mine" / "hopfleet.json").is_file()


def test_a_run_folder_may_be_a_link_to_another_disk(own_home: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    own_home.mkdir()
    (own_home / "mine").symlink_to(tmp_path / "disk")
    for overwrite in (False, True):
        assert experiment().fit(overwrite=overwrite, quiet=True).finished
    assert (own_home / "mine").is_symlink() and (tmp_path / "disk" / "journal.sqlite").is_file()


REFUSED: dict[str, dict[str, Any]] = {
    "data": {"partitions": 99},
    "metric": {"metric": "accuracy", "mode": "max", "valid": {"x": np.arange(4.0)}},
    "device": {"worker_options": hop.WorkerOptions(device="tpu")},
    "batch size": {"batch_size": 64},
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_a_refused_run_replaces_nothing(own_home: Path, changes: dict[str, Any]) -> None:
    experiment().fit(quiet=True)
    before = content(own_home / "mine")
    with pytest.raises(UsageError):
        experiment(**changes).fit(overwrite=True, quiet=True)
    assert content(own_home / "mine") == before
    assert {path.name for path in (own_home / "mine").iterdir() if path.name.startswith(".")} == set()
    assert experiment().fit(quiet=True).finished


def test_a_process_that_dies_while_it_replaces_a_run_loses_nothing(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment().fit(quiet=True)
    before, rename, left = content(own_home / "mine"), os.rename, 0

    class Died(BaseException):
        """The end of the process: nothing is cleaned up."""

    def dying(path: Path, target: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Died
        rename(path, target)

    for renames in range(12):
        left = renames
        folder = RunFolder(own_home / "mine")
        monkeypatch.setattr(os, "rename", dying)
        with folder.lock(), contextlib.suppress(Died):
            set_aside(folder)
            (folder.path / "journal.sqlite").write_text("of the next run")
            put_back(folder)
        monkeypatch.setattr(os, "rename", rename)
        with folder.lock():
            put_back(folder)
        assert content(own_home / "mine") == before
    assert experiment().fit(quiet=True).finished


def test_a_refused_run_leaves_no_folder(own_home: Path) -> None:
    with pytest.raises(UsageError):
        experiment(partitions=1000).fit(quiet=True)
    assert not (own_home / "mine").exists()


def test_folders_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(UsageError, match=r"cannot be written.*HOPFLEET_HOME"):
        experiment().fit(quiet=True)
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.logs.touch()
    with pytest.raises(UsageError, match="logs: cannot be written"):
        run.create(definition("run"))


def test_files_that_a_run_does_not_depend_on_may_be_anything(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for path in (run.profile_file, run.prediction_file):
        path.write_text("[" * 100_000)
    assert run.profile() == {}
    with pytest.raises(JournalError, match="nested too deeply"):
        run.prediction()
    for path in (run.profile_file, run.prediction_file):
        path.unlink()
        path.mkdir()
    run.keep_profile({"a": 1})
    run.keep_prediction({"spans": []})
    assert run.profile() == {}
    with pytest.raises(JournalError, match="remove it"):
        run.prediction()
    run.definition_file.write_text("[" * 100_000)
    with pytest.raises(JournalError, match="nested too deeply"):
        run.definition()


# ----------------------------------------------------------------------------------------------------- other users


def test_a_name_alone_is_not_looked_up_in_the_current_directory(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunFolder(tmp_path / "here" / "planted").create(definition("planted"))
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(NotFound, match=r"use \./planted"):
        find_run("planted")
    for name in ("./planted", "../here/planted", Path("planted"), str(tmp_path / "here" / "planted")):
        assert find_run(name).path.resolve() == (tmp_path / "here" / "planted").resolve()
    with pytest.raises(NotFound):
        find_run("~no-such-user/run")


def test_code_that_a_folder_names_runs_only_if_others_cannot_write_there(own_home: Path) -> None:
    run = RunFolder(own_home / "run")
    run.create(definition("run"))
    check_trusted(run)
    run.path.chmod(0o770)
    with pytest.raises(UsageError, match=r"others can write to it.*chmod"):
        check_trusted(run)
    run.path.chmod(0o755)
    run.definition_file.chmod(0o666)
    with pytest.raises(UsageError, match="others can write to it"):
        check_trusted(run)


@as_root
def test_code_that_a_folder_of_another_user_names_does_not_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "evil.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    run = RunFolder(tmp_path / "run")
    origin = {"how": "script", "file": str(script), "arguments": [], "cwd": str(tmp_path)}
    run.create(definition("run", origin=origin))
    hop.store.journal.Journal(run.journal_file, writable=True).close()
    for path in (run.path, *run.path.rglob("*")):
        os.chown(path, 12345, 12345)
    assert main(["resume", str(run.path)]) == 2
    assert main(["replay", str(run.path)]) == 2
    assert "belongs to another user" in capfd.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_what_a_definition_names_is_called_only_if_it_is_a_task(own_home: Path) -> None:
    run = RunFolder(own_home / "run")
    run.create(definition("run", task={"module": "os", "name": "abort"}))
    with pytest.raises(UsageError, match=r"os\.abort is not a task"):
        hop.load("run").find_task()


# --------------------------------------------------------------------------------------------------- shared memory


def test_the_name_of_shared_memory_cannot_be_guessed(tmp_path: Path) -> None:
    first, again, other = (Versions(tmp_path / name, tmpfs=tmp_path).shared_folder for name in ("a", "a", "b"))
    assert first == again != other
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert Versions(tmp_path / "copy", tmpfs=tmp_path).shared_folder != first
    (tmp_path / "a" / KEY).unlink()
    assert Versions(tmp_path / "a", tmpfs=tmp_path).shared_folder != first


def test_links_and_pipes_in_the_place_of_shared_memory_do_no_harm(tmp_path: Path) -> None:
    ref, other = VersionRef("t0001", 1, 7), Versions(tmp_path / "other", tmpfs=tmp_path)
    other.write(ref, lambda path: path.write_bytes(b"of another run"), durable=False, size=4)
    victim = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    planted = tmp_path / f"hopfleet-{os.getuid()}-0123456789abcdef"
    planted.mkdir(mode=0o700)
    os.mkfifo(planted / OWNER)
    victim.shared_folder.mkdir()
    victim.shared_folder.chmod(0o777)
    (victim.shared_folder / OWNER).symlink_to(tmp_path / "nowhere")
    (victim.shared_folder / "t0001").symlink_to(other.shared_folder / "t0001")
    victim.memory.sweep()
    victim.write(ref, lambda path: path.write_bytes(b"mine"), durable=False, size=4)
    assert victim.find(ref).read_bytes() == b"mine"
    victim.drop(ref)
    victim.tidy([])
    victim.forget("t0001")
    victim.release()
    assert other.find(ref).read_bytes() == b"of another run"
    assert not (tmp_path / "nowhere").exists() and victim.shared_folder.is_dir()


@as_root
def test_shared_memory_of_another_user_is_not_used(tmp_path: Path) -> None:
    ref = VersionRef("t0001", 1, 7)
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o777)
        versions = Versions(tmp_path / "checkpoints", tmpfs=Path(shared))
        make = f"import os; os.setuid(12345); os.mkdir({str(versions.shared_folder)!r}, 0o700)"
        subprocess.run([sys.executable, "-c", make], check=True)
        versions.write(ref, lambda path: path.write_bytes(b"mine"), durable=False, size=4)
        assert versions.find(ref).parent.parent == tmp_path / "checkpoints"
        assert list(versions.shared_folder.iterdir()) == []
