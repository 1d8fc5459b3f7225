"""What is kept in a run folder beside the journal, and what a folder tells of itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import JournalError
from hopfleet.store.folder import RunFolder, runs
from hopfleet.store.shared_memory import OWNER, SharedMemory
from hopfleet.store.versions.cluster import link_storage
from hopfleet.store.versions.local import SPARE, Versions
from hopfleet.store.versions.remote import Remote
from tests.helpers.definitions import definition


@pytest.fixture
def folder(own_home: Path) -> RunFolder:
    made = RunFolder(own_home / "mine")
    made.create(definition("mine"))
    return made


@pytest.mark.parametrize("part", ["profile", "trial_runs", "prediction"])
def test_what_was_kept_is_read_again(folder: RunFolder, part: str) -> None:
    assert not getattr(folder, part)()
    getattr(folder, f"keep_{part}")({"a": [1.5]})
    assert getattr(folder, part)() == {"a": [1.5]}


@pytest.mark.parametrize("text", ["", "{", "[1]", "7"])
@pytest.mark.parametrize("part", ["profile", "trial_runs", "replays"])
def test_what_can_be_measured_again_may_be_damaged(folder: RunFolder, part: str, text: str) -> None:
    getattr(folder, f"{part}_file").write_text(text)
    assert getattr(folder, part)() == {}
    folder.prediction_file.write_text(text)
    with pytest.raises(JournalError, match="cannot be read"):
        folder.prediction()


def test_verdicts_of_replays_are_added(folder: RunFolder) -> None:
    folder.keep_replays({"t0001": "same", "t0002": "same"})
    folder.keep_replays({"t0002": "different"})
    assert folder.replays() == {"t0001": "same", "t0002": "different"}


def test_a_folder_runs_while_its_lock_is_held(folder: RunFolder) -> None:
    assert folder.running is False
    folder.keep_health({"w1": {}})
    with folder.lock():
        folder.keep_health({"w1": {"pid": 7}})
        assert folder.running is True
        assert folder.health() == {"w1": {"pid": 7}}
    assert folder.running is False
    assert folder.health() == {}


def test_models_are_the_saved_versions_of_trials(folder: RunFolder) -> None:
    assert list(folder.models()) == [] and folder.trained is False
    kept = folder.checkpoints / "t0001" / "v00004-7.safetensors"
    for path in (kept, folder.checkpoints / "other" / kept.name, kept.with_suffix(".tmp")):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (folder.checkpoints / "t0002" / kept.name).mkdir(parents=True)
    assert list(folder.models()) == [kept] and folder.trained is True


def test_logs_of_trials_tell_of_training(folder: RunFolder) -> None:
    (folder.logs / "w1.log").touch()
    assert folder.trained is False
    (folder.logs / "t0001.log").touch()
    assert folder.trained is True


def test_runs_are_listed_in_the_order_of_their_definitions(own_home: Path) -> None:
    assert list(runs()) == []
    moments: dict[str, Any] = {"b": 300, "a": 200, "c": 100}
    for name, moment in moments.items():
        made = RunFolder(own_home / name)
        made.create(definition(name))
        os.utime(made.definition_file, (moment, moment))
    (own_home / "no run").mkdir()
    assert [run.name for run in runs()] == ["c", "a", "b"]
    assert [run.handle for run in runs()] == ["c", "a", "b"]
    assert json.loads(RunFolder(own_home / "a").definition_file.read_text())["name"] == "a"


def test_only_this_user_can_look_into_folders_of_a_run(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = RunFolder(tmp_path / "mine")
        folder.create(definition("mine"))
        folder.lock().close()
        versions = Versions(folder.checkpoints, tmpfs=tmp_path)
        for attempt, durable, size in ((1, True, 5), (2, False, 5), (3, False, 1 << 60)):
            ref = VersionRef(f"t000{attempt}", 4, attempt)
            versions.write(ref, lambda path: path.write_text("model") and None, durable=durable, size=size)
            assert versions.find(ref).read_text() == "model"
            assert versions.find(ref).stat().st_mode & 0o777 == 0o600
        versions.drop(VersionRef("t0002", 4, 2))
        assert (versions.shared_folder / SPARE).is_dir()
        SharedMemory(tmp_path / "fresh" / "checkpoints", tmp_path).create()
        link_storage(tmp_path / "linked", tmp_path / "storage")
        Remote(f"memory://{tmp_path}").put_text("a.safetensors", "model")
        Remote(f"memory://{tmp_path}").download("a.safetensors", tmp_path / "fetched" / "a.safetensors")
    finally:
        os.umask(before)
    assert versions.shared_folder.parent == tmp_path
    (tmp_path / "fresh").chmod(0o700)  # only the checkpoints are ours
    for made in (path for path in tmp_path.rglob("*") if not path.is_symlink()):
        assert made.stat().st_mode & (0o077 if made.is_dir() else 0o111) == 0, made
    assert (versions.shared_folder / OWNER).stat().st_mode & 0o777 == 0o600
    versions.release()
