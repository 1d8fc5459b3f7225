"""A run that takes the place of another: the earlier one is there until the new one has begun, whatever happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet.errors import UsageError
from hopfleet.store import replacing
from hopfleet.store.folder import RunFolder
from hopfleet.store.replacing import drop, put_back, set_aside
from tests.helpers.counted_runs import content, experiment
from tests.helpers.definitions import definition
from tests.helpers.open_files import opened


class Died(BaseException):
    """The end of the process: nothing is cleaned up."""


@pytest.fixture
def folder(own_home: Path) -> RunFolder:
    made = RunFolder(own_home / "mine")
    made.create(definition("mine"))
    return made


def test_a_run_that_was_put_back_after_a_crash_survives_a_refused_run(own_home: Path) -> None:
    experiment().fit(quiet=True)
    before = content(own_home / "mine")
    folder = RunFolder(own_home / "mine")
    for _ in range(2):
        with folder.lock():
            set_aside(folder)  # and here the process dies
        assert content(own_home / "mine") != before
        with pytest.raises(UsageError, match="device"):
            experiment(worker_options=hop.WorkerOptions(device="tpu")).fit(quiet=True)
        assert content(own_home / "mine") == before


def test_an_earlier_run_is_for_this_user_alone_while_it_waits(folder: RunFolder) -> None:
    folder.path.chmod(0o755)
    before = os.umask(0)
    try:
        set_aside(folder)
    finally:
        os.umask(before)
    assert (folder.path / replacing.REPLACED).stat().st_mode & 0o777 == 0o700


def test_a_run_folder_that_is_a_link_keeps_its_run(folder: RunFolder, tmp_path: Path) -> None:
    folder.path.rename(tmp_path / "disk")
    folder.path.symlink_to(tmp_path / "disk")
    set_aside(folder)
    folder.create(definition("mine", seed=7))
    assert put_back(folder) and folder.definition() == definition("mine") and folder.path.is_symlink()


def test_what_was_replaced_is_deleted_and_the_new_run_stays(folder: RunFolder) -> None:
    drop(folder)
    assert folder.definition() == definition("mine"), "nothing was set aside"
    set_aside(folder)
    assert put_back(folder) is True
    folder.discard()
    assert folder.definition() == definition("mine"), "a run that was put back is not new"
    set_aside(folder)
    folder.create(definition("mine", seed=7))
    drop(folder)
    assert folder.definition()["seed"] == 7
    assert not [path.name for path in folder.path.iterdir() if path.name.startswith(".")]
    assert not put_back(folder) and folder.definition()["seed"] == 7


def test_a_process_that_dies_while_it_deletes_what_was_replaced(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_aside(folder)
    folder.create(definition("mine", seed=7))

    def dies(path: Path, **options: bool) -> None:
        (path / "experiment.json").unlink()
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(replacing, "remove_folder", dies)
        with pytest.raises(Died):
            drop(folder)
    assert not put_back(folder), "half a run is not put back"
    assert folder.definition()["seed"] == 7
    assert not [path.name for path in folder.path.iterdir() if path.name.startswith(".")]


# ------------------------------------------------------------------------------------------------------ what is deleted


def test_only_a_folder_that_is_new_is_discarded(folder: RunFolder) -> None:
    folder.discard()
    assert folder.exists, "it was not locked"
    for _ in range(2):  # the second time it has a marker
        with folder.lock():
            folder.discard()
        assert folder.exists, "it was there before"
    with folder.lock():
        set_aside(folder)
        drop(folder)
        folder.discard()
    assert not folder.path.exists()
    with folder.lock():
        folder.create(definition("mine"))
        folder.discard()
    assert not folder.path.exists()


def test_files_that_no_run_has_written_stay(folder: RunFolder) -> None:
    (folder.path / "thesis.txt").write_text("years of work")
    with folder.lock():
        set_aside(folder)
        drop(folder)
        folder.create(definition("mine"))
        folder.discard()
    assert [path.name for path in folder.path.iterdir()] == ["thesis.txt"]


def test_a_folder_that_is_half_deleted_has_no_definition(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "z"):
        (folder.path / f"{name}.txt").touch()
    (folder.path / "journal.sqlite").touch()
    (folder.path / "workers.json").touch()
    unlink, count = os.unlink, 0

    def dies(path: str, *, dir_fd: int | None = None) -> None:
        nonlocal count
        if count == 1:
            raise Died
        count += 1
        unlink(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", dies)
        with pytest.raises(Died):
            folder.clear()
    assert not folder.exists and folder.damaged and (folder.path / "workers.json").exists()
    assert opened(folder.path) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_not_emptied(folder: RunFolder) -> None:
    os.chown(folder.path, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        folder.clear()
    assert folder.exists
    with folder.lock():
        folder.new = True
        folder.discard()
    assert folder.exists
