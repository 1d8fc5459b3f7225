"""A disk that is full makes a run wait; it loses nothing, and goes on by itself when there is room."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain.messages import (
    SaveDelayed,
    SaveFailed,
    SaveVersion,
    TrialRolledBack,
    UnitFinished,
    VersionLost,
    VersionSaved,
)
from hopfleet.domain.placement import Placement
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import Interrupted
from hopfleet.frameworks.base import Session
from hopfleet.monitor.terminal.watcher import DiskNotes
from hopfleet.store.journal import Journal
from hopfleet.store.versions.local import Versions
from hopfleet.support.files import transfers as files
from hopfleet.support.files import trouble
from hopfleet.testing.tasks import CountingSession, CountingTask
from hopfleet.worker.saver import Saver

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FIRST_PAUSE", 0.01)


class FullVersions(Versions):
    """A folder on a disk that takes nothing until there is room again."""

    full = True

    def write(self, *arguments: Any, **options: Any) -> tuple[str, int]:
        if self.full:
            raise FULL
        return super().write(*arguments, **options)

    def keep(self, *arguments: Any, **options: Any) -> tuple[str, int]:
        if self.full:
            raise FULL
        return super().keep(*arguments, **options)


class Model:
    """Nothing but a number that can be saved."""

    size = 1
    spread = False

    def __init__(self, number: int) -> None:
        self.number = number

    def save(self, path: Path) -> None:
        path.write_text(str(self.number), encoding="utf-8")


def save(attempt: int, trial: str = "t0001", *, durable: bool = True, saved: int | None = None) -> SaveVersion:
    return SaveVersion("w1", VersionRef(trial, 4, attempt), durable, saved)


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(params=[True, False], ids=["thread", "guest"])
def background(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("durable", [True, False])
def test_a_save_waits_for_room_and_tells_so_once(tmp_path: Path, background: bool, durable: bool) -> None:
    versions, events = FullVersions(tmp_path / "c", tmpfs=tmp_path), list[Any]()
    saver = Saver(versions, events.append, worker="w1", threads=int(background))
    saver.save(save(7, durable=durable), Model(5))  # type: ignore[arg-type]
    saver.save(save(8, "t0002"), Model(6))  # type: ignore[arg-type]
    until(lambda: events)
    saver.retry()
    (delayed,) = events
    assert isinstance(delayed, SaveDelayed) and delayed.ref == VersionRef("t0001", 4, 7)
    path = versions.path(VersionRef("t0001", 4, 7), durable=True)
    assert delayed.error == f"{path}: cannot be written (No space left on device); make room on that disk"
    versions.full = False
    saver.wait("t0001")
    saver.wait("t0002")
    assert [(type(event), event.ref.attempt) for event in events[1:]] == [(VersionSaved, 7), (VersionSaved, 8)]
    assert versions.find(VersionRef("t0001", 4, 7)).read_text() == "5"
    assert versions.find(VersionRef("t0002", 4, 8)).read_text() == "6"
    saver.close()


def test_what_the_disk_never_takes_is_given_up_at_the_end(tmp_path: Path, background: bool) -> None:
    events: list[Any] = []
    saver = Saver(FullVersions(tmp_path / "c", tmpfs=tmp_path), events.append, worker="w1", threads=int(background))
    saver.save(save(7), Model(5))  # type: ignore[arg-type]
    saver.close()
    assert [type(event) for event in events] == [SaveDelayed]


def test_what_somebody_else_has_saved_waits_for_room_too(tmp_path: Path, background: bool) -> None:
    versions, events = FullVersions(tmp_path / "c", tmpfs=tmp_path), list[Any]()
    versions.full = False
    versions.write(VersionRef("t0001", 4, 7), Model(5).save, durable=False, size=1)
    versions.full = True
    saver = Saver(versions, events.append, worker="w1", threads=int(background))
    saver.save(save(8, saved=7), None)
    until(lambda: events)
    versions.full = False
    saver.wait("t0001")
    saver.save(save(9, saved=5), None)
    saver.wait("t0001")
    assert [type(event) for event in events] == [SaveDelayed, VersionSaved, VersionLost]
    assert (events[1].durable, events[1].ref.attempt) == (True, 8)
    assert (events[2].attempt, events[2].ref.attempt, events[2].worker) == (9, 5, "w1")
    saver.close()


def test_a_state_that_cannot_be_saved_is_no_matter_of_disks(tmp_path: Path, background: bool) -> None:
    class Odd(Model):
        def save(self, path: Path) -> None:
            raise TypeError("an open file")

    events: list[Any] = []
    saver = Saver(Versions(tmp_path / "c", tmpfs=tmp_path), events.append, worker="w1", threads=int(background))
    saver.save(save(7), Odd(5))  # type: ignore[arg-type]
    saver.wait("t0001")
    assert [(type(event), event.ref.attempt) for event in events] == [(SaveFailed, 7)]
    saver.close()


@pytest.mark.parametrize("room", [100, 0])
def test_a_model_with_a_copy_need_not_wait(tmp_path: Path, room: int) -> None:
    class Copied(Model):
        def snapshot(self) -> Any:
            return Model(self.number).save

    versions, events = FullVersions(tmp_path / "c", tmpfs=tmp_path), list[Any]()
    saver = Saver(versions, events.append, worker="w1", threads=2, room=lambda: room)
    model = Copied(5)
    saver.save(save(7), model)  # type: ignore[arg-type]
    if room:
        saver.wait("t0001")
        model.number = 6
    versions.full = False
    saver.close()
    assert versions.find(VersionRef("t0001", 4, 7)).read_text() == "5"
    assert [type(event) for event in events][-1] is VersionSaved


def test_a_state_that_cannot_be_copied_is_no_matter_of_disks_either(tmp_path: Path) -> None:
    class Odd(Model):
        def save(self, path: Path) -> None:
            raise TypeError("an open file")

        snapshot = save

    events: list[Any] = []
    saver = Saver(Versions(tmp_path / "c", tmpfs=tmp_path), events.append, worker="w1", threads=1, room=lambda: 100)
    saver.save(save(7), Odd(5))  # type: ignore[arg-type]
    saver.close()
    assert [(type(event), event.ref.attempt) for event in events] == [(SaveFailed, 7)]


def test_pauses_grow_and_messages_name_file_error_and_remedy(tmp_path: Path) -> None:
    pauses = files.back_off()
    assert [next(pauses) for _ in range(12)][-2:] == [files.LONGEST_PAUSE] * 2
    error = OSError(errno.EIO, "Input/output error")
    assert trouble(tmp_path, error) == (
        f"{tmp_path}: cannot be written (Input/output error); check that disk and the permissions"
    )


# ---------------------------------------------------------------------------------------------- whole experiments


def experiment(folder: Path, backend: str = "inline", task: Any = None) -> hop.Experiment:
    return hop.Experiment(
        task or CountingTask(),
        train={"x": np.arange(40.0)},
        space={"number": hop.grid_search([1, 2])},
        search=hop.Grid(max_epochs=2),
        metric="train_units",
        mode="max",
        partitions=2,
        name="full",
        batch_size=8,
        backend=backend,
        workers=1,
        run_options=hop.RunOptions(folder=folder / "full"),
    )


def digests(results: hop.Results) -> dict[str, str]:
    return {trial.id: results.history.trials[trial.id].saved[4].digest for trial in results.trials}


def test_a_run_waits_for_room_and_ends_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = digests(experiment(tmp_path / "calm").fit(quiet=True))
    left, write, append = [3, 3], Versions.write, Journal.append

    def full_now_and_then(self: Versions, ref: VersionRef, *arguments: Any, **options: Any) -> tuple[str, int]:
        if ref.trial == "t0002" and left[0]:
            left[0] -= 1
            raise FULL
        return write(self, ref, *arguments, **options)

    def full_at_last(self: Journal, when: float, messages: Any) -> None:
        if left[1] and any(isinstance(message, VersionSaved) for message in messages):
            left[1] -= 1
            raise OSError(errno.ENOSPC, "database or disk is full", str(self.path))
        append(self, when, messages)

    monkeypatch.setattr(Versions, "write", full_now_and_then)
    monkeypatch.setattr(Journal, "append", full_at_last)
    results = experiment(tmp_path).fit()
    assert left == [0, 0]
    assert digests(results) == expected
    assert results.verify().ok
    assert not results.history.delayed and not results.history.waits_for
    shown = "".join(capsys.readouterr())
    assert "journal.sqlite: cannot be written (database or disk is full); make room on that disk" in shown
    assert ".safetensors: cannot be written (No space left on device); make room on that disk" in shown
    assert shown.count("the run continues\n") == 2


def test_ctrl_c_ends_a_run_that_waits_for_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Journal.append

    def full(self: Journal, when: float, messages: Any) -> None:
        if any(isinstance(message, VersionSaved) for message in messages):
            os.kill(os.getpid(), signal.SIGINT)
            raise OSError(errno.ENOSPC, "database or disk is full", str(self.path))
        append(self, when, messages)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", full)
        with pytest.raises(Interrupted, match="make room on that disk, then resume"):
            experiment(tmp_path).fit(quiet=True)
    results = experiment(tmp_path).fit(quiet=True)
    assert results.verify().ok and not results.verify().notes


# ------------------------------------------------------------------------------------------------- a real small disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "hopfleet-test", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Heavy(CountingTask):
    """Its files are large."""

    def open(self, config: Mapping[str, Any], *, seed: int, placement: Placement, threads: int) -> Session:
        return HeavySession(config)


class HeavySession(CountingSession):
    def save(self, path: Path) -> None:
        path.write_bytes(json.dumps([self.units, self.rows]).encode() + b" " * 400_000)


class Filler:
    """Fills a disk but for ``spare`` bytes as the first unit is journaled, and does something when the run waits."""

    def __init__(self, patch: pytest.MonkeyPatch, place: Path, spare: int, then: Callable[[], None]) -> None:
        self.file, self.filled, self.waited = place / "filler", False, list[str]()
        append, waiting = Journal.append, DiskNotes.waiting

        def fill(journal: Journal, when: float, messages: Any) -> None:
            append(journal, when, messages)
            if any(isinstance(message, UnitFinished) for message in messages) and not self.filled:
                self.filled = True
                free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
                self.file.write_bytes(bytes(free - spare))

        def hear(watcher: Any, text: str) -> None:
            waiting(watcher, text)
            if text and not self.waited:
                then()
            self.waited.append(text)

        patch.setattr(Journal, "append", fill)
        patch.setattr(DiskNotes, "waiting", hear)


@pytest.mark.parametrize("spare", [200_000, 0], ids=["models", "journal"])
def test_a_small_disk(small: Path, monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    """Another program fills the disk while workers train, and makes room when the run has said that it waits."""
    expected = digests(experiment(small.parent / "calm", "inline", Heavy()).fit(quiet=True))
    filler = Filler(monkeypatch, small, spare, lambda: filler.file.unlink())
    results = experiment(small, "local", Heavy()).fit(quiet=True)
    assert "cannot be written" in filler.waited[0] and "make room on that disk" in filler.waited[0]
    assert filler.waited[-1] == ""
    assert digests(results) == expected
    assert results.verify().ok and not results.verify().notes
    assert not any(isinstance(message, TrialRolledBack) for message in journaled(results))


@pytest.mark.slow
@pytest.mark.parametrize("spare", [200_000, 0], ids=["models", "journal"])
def test_ctrl_c_while_the_disk_is_full(small: Path, monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    expected = digests(experiment(small.parent / "calm", "inline", Heavy()).fit(quiet=True))
    with monkeypatch.context() as patch:
        filler = Filler(patch, small, spare, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted):
            experiment(small, "local", Heavy()).fit(quiet=True)
    filler.file.unlink()
    results = experiment(small, "local", Heavy()).fit(quiet=True)
    assert digests(results) == expected
    assert results.verify().ok and not results.verify().notes


def journaled(results: hop.Results) -> list[Any]:
    with contextlib.closing(Journal(results.folder.journal_file)) as journal:
        return [message for _, _, message in journal.read()]
