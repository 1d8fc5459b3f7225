"""Saves beside the work: who waits for whom, and when a version counts that is kept far away."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from hopfleet.domain.messages import Event, SaveDelayed, SaveVersion, VersionSaved
from hopfleet.domain.version_ref import VersionRef
from hopfleet.store.versions.cluster import NodeVersions, local_versions
from hopfleet.store.versions.local import Versions
from hopfleet.support.files import digest
from hopfleet.support.files import transfers as files
from hopfleet.worker.saver import PARTS, Saver

WAIT = 60.0


class Model:
    """All of a session that a saver knows."""

    size = 4
    spread = False

    def save(self, path: Path) -> None:
        path.write_bytes(b"four")


class Far(NodeVersions):
    """Sends a version when it may, after as many failures as it is told."""

    def __init__(self, checkpoints: Path, failures: int = 0) -> None:
        super().__init__(local_versions(checkpoints, "n1"), f"memory://{checkpoints.name}")
        self.failures = failures
        self.may = threading.Event()

    def send(self, ref: VersionRef) -> None:
        assert self.may.wait(WAIT)
        if self.failures:
            self.failures -= 1
            raise OSError("memory://far: no answer")
        super().send(ref)


def command(attempt: int, *, durable: bool) -> SaveVersion:
    return SaveVersion("w1", VersionRef(f"t000{attempt}", 2, attempt), durable)


def saver(versions: NodeVersions) -> tuple[Saver, queue.SimpleQueue[Event]]:
    told: queue.SimpleQueue[Event] = queue.SimpleQueue()
    return Saver(versions, told.put, worker="w1", threads=1), told


def test_neither_the_model_nor_others_wait_for_the_network(tmp_path: Path) -> None:
    model: Any = Model()
    versions = Far(tmp_path)
    first, told = saver(versions)
    first.save(command(1, durable=True), model)
    first.wait("t0001")  # it may train on, though nothing has arrived
    event = told.get(timeout=WAIT)  # other workers can get it from here
    assert isinstance(event, VersionSaved) and (event.trial, event.durable) == ("t0001", False)
    first.save(command(2, durable=False), model)
    event = told.get(timeout=WAIT)
    assert isinstance(event, VersionSaved) and (event.trial, event.durable) == ("t0002", False)
    versions.may.set()
    event = told.get(timeout=WAIT)
    assert isinstance(event, VersionSaved) and (event.trial, event.durable) == ("t0001", True)
    path = versions.path(VersionRef("t0001", 2, 1), durable=True)
    assert versions.find(VersionRef("t0001", 2, 1), event.digest) == path, "other workers get it from this node"
    assert event.digest == digest(path)
    first.close()
    versions.release()


def test_what_does_not_arrive_is_told_once_and_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FIRST_PAUSE", 0.01)
    model: Any = Model()
    versions = Far(tmp_path, failures=2)
    versions.may.set()
    first, told = saver(versions)
    first.save(command(1, durable=True), model)
    here, delayed, saved = (told.get(timeout=WAIT) for _ in range(3))
    assert isinstance(here, VersionSaved) and not here.durable
    assert isinstance(delayed, SaveDelayed) and delayed.error == "memory://far: no answer" and delayed.on_node
    assert isinstance(saved, VersionSaved) and saved.ref.attempt == 1 and saved.durable
    first.close()
    versions.release()


def test_a_disk_that_stalls_is_told_and_then_takes_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Model):
        may = threading.Event()

        def save(self, path: Path) -> None:
            assert self.may.wait(WAIT)
            super().save(path)

    monkeypatch.setattr("hopfleet.worker.saver.STALL_SECONDS", 0.05)
    model: Any = Slow()
    told: queue.SimpleQueue[Event] = queue.SimpleQueue()
    one = Saver(Versions(tmp_path), told.put, worker="w1", threads=1)
    one.save(command(1, durable=True), model)
    delayed = told.get(timeout=WAIT)
    assert isinstance(delayed, SaveDelayed) and "is being written for more than 0 s; check that disk" in delayed.error
    model.may.set()
    assert isinstance(told.get(timeout=WAIT), VersionSaved)
    one.close()


def test_a_write_that_hangs_is_given_up_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.worker.saver.HANG_SECONDS", 0.1)
    monkeypatch.setattr(files, "FIRST_PAUSE", 0.01)
    go_on = threading.Event()

    class Hanging(Model):
        """Its first write goes on when the model has long changed."""

        writes = 0

        def save(self, path: Path) -> None:
            self.writes += 1
            if self.writes == 1:
                assert go_on.wait(WAIT)
                path.write_bytes(b"late")
            else:
                path.write_bytes(b"four")

    model: Any = Hanging()
    told: queue.SimpleQueue[Event] = queue.SimpleQueue()
    saves = Saver(Versions(tmp_path), told.put, worker="w1", threads=1)
    saves.save(command(1, durable=True), model)
    delayed = told.get(timeout=WAIT)
    assert isinstance(delayed, SaveDelayed) and "cannot be written (no answer within 0 s)" in delayed.error
    assert isinstance(told.get(timeout=WAIT), VersionSaved)
    saves.wait("t0001")
    left_behind = [thread for thread in threading.enumerate() if thread.name == "hopfleet-limited"]
    go_on.set()
    for thread in left_behind:
        thread.join(WAIT)
    saves.close()
    assert Versions(tmp_path).find(command(1, durable=True).ref).read_bytes() == b"four"
    assert [path.name for path in (tmp_path / "t0001").iterdir() if path.name.startswith(".")] == []


def test_who_is_told_to_end_does_not_wait_for_ever(tmp_path: Path) -> None:
    model: Any = Model()
    versions = Far(tmp_path, failures=99)
    versions.may.set()
    first, told = saver(versions)
    first.save(command(1, durable=True), model)
    assert isinstance(told.get(timeout=WAIT), VersionSaved)
    assert isinstance(told.get(timeout=WAIT), SaveDelayed)
    first.close()
    assert told.empty()
    versions.release()


def test_small_copies_are_written_when_the_main_thread_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Copied(Model):
        def snapshot(self) -> Any:
            return self.save

    monkeypatch.setattr("hopfleet.worker.saver.MOMENT", 60.0)
    model: Any = Copied()
    told: queue.SimpleQueue[Event] = queue.SimpleQueue()
    one = Saver(Versions(tmp_path), told.put, worker="w1", threads=1, room=lambda: 100)
    for attempt in (1, 2):
        one.save(command(attempt, durable=True), model)
    one.wait("t0001")  # no caller has to wait for a copy
    assert told.empty(), "the thread waits for a minute, or for a word"
    one.under_way()
    assert {told.get(timeout=WAIT).trial for _ in range(2)} == {"t0001", "t0002"}  # type: ignore[attr-defined]
    monkeypatch.setattr("hopfleet.worker.saver.MOMENT", 0.0)
    one.save(command(3, durable=True), model)
    assert told.get(timeout=WAIT).trial == "t0003", "or not that long"  # type: ignore[attr-defined]
    one.close()


@pytest.mark.parametrize(("room", "copied"), [(4 * PARTS, True), (4 * PARTS - 1, False)])
def test_large_models_are_not_copied(tmp_path: Path, room: int, copied: bool) -> None:
    class Copied(Model):
        copies = 0

        def snapshot(self) -> Any:
            self.copies += 1
            return self.save

    model: Any = Copied()
    one = Saver(Versions(tmp_path), lambda event: None, worker="w1", threads=1, room=lambda: room)
    one.save(command(1, durable=True), model)
    one.close()
    assert model.copies == copied


# ----------------------------------------------------------------------------------------------------- short epochs


class Copied(Model):
    """A model that can be copied. Its writes wait for a permit."""

    def __init__(self, permits: threading.Semaphore) -> None:
        self.permits = permits

    def snapshot(self) -> Any:
        def write(path: Path) -> None:
            assert self.permits.acquire(timeout=WAIT)
            path.write_bytes(b"four")

        return write


class Lazy:
    """A saver whose copies may wait for ``patience`` seconds, and whose pace allows no write until then."""

    def __init__(self, folder: Path, patience: float = 1e6) -> None:
        self.told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.permits = threading.Semaphore(0)
        self.model: Any = Copied(self.permits)
        options: Any = {"room": lambda: 1 << 20, "patience": patience}
        self.saver = Saver(Versions(folder), self.told.put, worker="w1", threads=2, **options)
        self.saver._next = float("inf")

    def save(self, trial: str, version: int, attempt: int, waits: bool = True, replaces: tuple[int, ...] = ()) -> None:
        ref = VersionRef(trial, version, attempt)
        self.saver.save(SaveVersion("w1", ref, True, waits=waits, replaces=replaces), self.model)

    def saved(self) -> int | None:
        self.permits.release()
        event = self.told.get(timeout=WAIT)
        assert isinstance(event, VersionSaved) and event.durable
        return event.ref.attempt


def test_newer_versions_replace_those_that_wait(tmp_path: Path) -> None:
    lazy = Lazy(tmp_path)
    lazy.save("t0001", 1, 1)
    lazy.save("t0001", 2, 2)
    lazy.save("t0001", 3, 3, replaces=(1,))
    lazy.saver.wait("t0001")  # a copy keeps no model from training
    lazy.save("t0001", 4, 4, waits=False, replaces=(3,))
    assert [lazy.saved(), lazy.saved()] == [2, 4], "versions of a trial are written in order, the replaced ones never"
    lazy.saver.close()
    assert lazy.told.empty()


def test_a_version_that_waits_and_must_not_is_written_from_its_copy(tmp_path: Path) -> None:
    """Its worker may not hold the model any more."""
    lazy = Lazy(tmp_path)
    lazy.save("t0001", 1, 1)
    lazy.model = None
    lazy.save("t0001", 1, 2, waits=False, replaces=(1,))
    assert lazy.saved() == 2
    lazy.saver.close()
    assert lazy.saver._copies == 0 and lazy.told.empty()


def test_copies_are_written_when_their_time_is_up(tmp_path: Path) -> None:
    """A trial keeps its turn when a newer version takes the place of its old one."""
    lazy = Lazy(tmp_path, patience=0.5)
    for trial in (1, 2):
        lazy.save(f"t000{trial}", 1, trial)
    lazy.save("t0001", 2, 3, replaces=(1,))
    assert [lazy.saved(), lazy.saved()] == [3, 2]
    lazy.saver.close()


def test_the_pace_allows_one_write_at_a_time(tmp_path: Path) -> None:
    lazy = Lazy(tmp_path)
    for trial in (1, 2):
        lazy.save(f"t000{trial}", 1, trial)
    with lazy.saver._changed:
        lazy.saver._next = 0.0
        lazy.saver._changed.notify_all()
    assert lazy.saved() == 1
    lazy.permits.release()
    lazy.saver.close()
    assert lazy.told.get(timeout=WAIT).ref.attempt == 2 and lazy.saver._next > 0.0


def test_copies_leave_memory_when_it_is_short(tmp_path: Path) -> None:
    lazy = Lazy(tmp_path)
    for trial in (1, 2):
        lazy.save(f"t000{trial}", 1, trial)
        lazy.permits.release()
    lazy.saver.flush()
    assert lazy.saver._copies == 0
    assert {lazy.told.get(timeout=WAIT).ref.attempt for _ in range(2)} == {1, 2}
    lazy.saver.close()


def test_without_patience_every_epoch_is_written_at_once(tmp_path: Path) -> None:
    lazy = Lazy(tmp_path, patience=0.0)
    lazy.save("t0001", 1, 1)
    assert lazy.saved() == 1
    lazy.saver.close()
