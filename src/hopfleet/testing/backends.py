"""The tests that every backend must pass. Derive ``BackendSuite`` in a test file and override ``make``:

    class TestMyBackend(BackendSuite):
        def make(self):
            return MyBackend()

``trains = False`` leaves out what a backend that only pretends to train cannot do; ``stops = False`` says that a
started unit cannot be stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hopfleet.data import partition
from hopfleet.extend import Backend, Trial, Unit, VersionRef, Versions, Work, WorkerSpec
from hopfleet.extend import messages as m
from hopfleet.support.files import make_folder, overwrite
from hopfleet.testing.tasks import CountingTask

PATIENCE = 240
"""Rounds of a quarter of a second to wait for an expected event."""


class BackendSuite:
    """The tests. Each test starts the backend with two workers on a tiny data set and closes it."""

    trains = True
    stops = True

    def make(self) -> Backend:
        raise AssertionError("override make()")

    @contextlib.contextmanager
    def started(self, folder: Path, workers: int = 2) -> Iterator[tuple[Backend, list[str]]]:
        """Start the backend and yield it with the names of its workers."""
        backend = self.make()
        backend.start(spec(folder), workers)
        try:
            joined = wait_for(backend, m.WorkerJoined, workers)
            yield backend, [event.worker for event in joined]
            backend.close()
        except BaseException:
            backend.close(kill=True)
            raise

    def test_workers_join_once_each_under_their_own_names(self, tmp_path: Path) -> None:
        with self.started(tmp_path, 3) as (_, workers):
            assert len(set(workers)) == 3

    def test_a_unit_runs_to_its_end(self, tmp_path: Path) -> None:
        with self.started(tmp_path) as (backend, (first, _)):
            backend.send(unit(first, partition=1), trial())
            (event,) = wait_for(backend, m.UnitFinished)
            assert (event.worker, event.unit) == (first, Unit("t0001", 1, 1))
            assert (event.attempt, event.version) == (1, 1)
            assert event.started <= event.ended <= backend.now()

    def test_workers_execute_side_by_side(self, tmp_path: Path) -> None:
        with self.started(tmp_path) as (backend, workers):
            for number, worker in enumerate(workers, 1):
                backend.send(unit(worker, f"t{number:04d}"), trial(f"t{number:04d}"))
            events = wait_for(backend, m.UnitFinished, 2)
            assert {event.worker for event in events} == set(workers)

    def test_a_worker_executes_in_order(self, tmp_path: Path) -> None:
        with self.started(tmp_path) as (backend, (first, _)):
            for number in range(3):
                backend.send(unit(first, version=number, partition=number % 2, attempt=number), trial())
            events = wait_for(backend, m.UnitFinished, 3)
            assert [event.attempt for event in events] == [0, 1, 2]

    def test_a_saved_version_hops_to_another_worker(self, tmp_path: Path) -> None:
        with self.started(tmp_path) as (backend, (first, second)):
            backend.send(unit(first), trial())
            wait_for(backend, m.UnitFinished)
            backend.send(m.SaveVersion(first, VersionRef("t0001", 1, 7), True), trial())
            (saved,) = wait_for(backend, m.VersionSaved)
            assert (saved.ref, saved.durable) == (VersionRef("t0001", 1, 7), True)
            source = {"saved": 7, "digest": saved.digest}
            backend.send(unit(second, version=1, partition=1, last=True, **source), trial())
            (event,) = wait_for(backend, m.UnitFinished)
            assert (event.worker, event.version) == (second, 2)
            if self.trains:
                assert event.hopped
                assert event.sums["train_units"].mean == 2.0
                path = Versions(tmp_path / "checkpoints").path(VersionRef("t0001", 1, 7), durable=True)
                assert path.stat().st_size == saved.size

    def test_an_evaluation_reports_metrics(self, tmp_path: Path) -> None:
        with self.started(tmp_path) as (backend, (first, _)):
            backend.send(unit(first, attempt=5, work=Work.EVALUATE), trial())
            (event,) = wait_for(backend, m.UnitFinished)
            assert (event.worker, event.unit) == (first, Unit("t0001", 1, 0, Work.EVALUATE))
            assert (event.attempt, event.version) == (5, 0)
            assert event.sums

    def test_a_probe_finds_the_metrics(self, tmp_path: Path) -> None:
        with self.started(tmp_path) as (backend, _):
            profile = backend.probe(trial())
            assert profile.error == ""
            assert profile.metrics

    def test_a_probe_times_training_and_keeps_nothing(self, tmp_path: Path) -> None:
        if not self.trains:
            return
        with self.started(tmp_path) as (backend, (first, _)):
            profile = backend.probe(trial(), 2)
            assert profile.error == ""
            assert profile.size > 0
            seconds = (profile.seconds_per_row, profile.evaluation_seconds_per_row, profile.open_seconds)
            assert all(value > 0 for value in (*seconds, profile.save_seconds, profile.load_seconds))
            assert not list((tmp_path / "checkpoints").glob("**/*.safetensors"))
            # The probe does not count as training.
            backend.send(unit(first), trial())
            (event,) = wait_for(backend, m.UnitFinished)
            assert event.sums["train_units"].mean == 1.0
            assert not event.hopped

    def test_what_raises_fails_alone(self, tmp_path: Path) -> None:
        if not self.trains:
            return
        with self.started(tmp_path) as (backend, (first, _)):
            backend.send(unit(first, "t0002"), trial("t0002", fault=True))
            (event,) = wait_for(backend, m.UnitFailed)
            assert event.trial == "t0002"
            assert "asked to fail" in event.error
            assert "asked to fail" in event.traceback
            assert "asked to fail" in backend.probe(trial("t0002", fault=True)).error
            backend.send(unit(first, attempt=2), trial())
            wait_for(backend, m.UnitFinished)

    def test_a_version_that_is_not_there_is_reported(self, tmp_path: Path) -> None:
        if not self.trains:
            return
        with self.started(tmp_path) as (backend, (first, _)):
            backend.send(unit(first, version=7), trial())
            (event,) = wait_for(backend, m.VersionLost)
            assert (event.ref, event.worker, event.attempt) == (VersionRef("t0001", 7, None), first, 1)
            backend.send(m.SaveVersion(first, VersionRef("t0001", 3, 5), False, saved=2), trial())
            (event,) = wait_for(backend, m.VersionLost)
            assert (event.ref, event.attempt) == (VersionRef("t0001", 3, 2), 5)

    def test_a_damaged_version_is_reported(self, tmp_path: Path) -> None:
        if not self.trains:
            return
        with self.started(tmp_path) as (backend, (first, second)):
            backend.send(unit(first), trial())
            wait_for(backend, m.UnitFinished)
            backend.send(m.SaveVersion(first, VersionRef("t0001", 1, 7), True), trial())
            (saved,) = wait_for(backend, m.VersionSaved)
            path = Versions(tmp_path / "checkpoints").path(VersionRef("t0001", 1, 7), durable=True)
            body = path.read_bytes()
            overwrite(path, [body[:-1] + bytes([body[-1] ^ 1])])
            backend.send(unit(second, version=1, attempt=8, saved=7, digest=saved.digest), trial())
            (event,) = wait_for(backend, m.VersionLost)
            assert (event.ref, event.worker, event.attempt) == (VersionRef("t0001", 1, 7), second, 8)
            assert "another SHA-256" in event.reason

    def test_more_workers_are_added(self, tmp_path: Path) -> None:
        with self.started(tmp_path) as (backend, workers):
            backend.add(2)
            added = [event.worker for event in wait_for(backend, m.WorkerJoined, 2)]
            assert len({*workers, *added}) == 4
            backend.send(unit(added[1]), trial())
            (event,) = wait_for(backend, m.UnitFinished)
            assert event.worker == added[1]

    def test_a_released_worker_saves_and_goes_for_good(self, tmp_path: Path) -> None:
        with self.started(tmp_path) as (backend, (first, second)):
            backend.send(unit(first), trial())
            wait_for(backend, m.UnitFinished)
            backend.send(m.SaveVersion(first, VersionRef("t0001", 1, 2), True), trial())
            backend.release(first)
            saved, lost = wait_for_any(backend, 2)
            assert isinstance(saved, m.VersionSaved) and saved.ref == VersionRef("t0001", 1, 2)
            assert lost == m.WorkerLost(first, m.RELEASED)
            backend.send(unit(second, version=1, partition=1, saved=2, digest=saved.digest), trial())
            (event,) = wait_for(backend, m.UnitFinished)
            assert (event.worker, event.version) == (second, 2)
            backend.add(1)  # no other worker joins
            (joined,) = wait_for(backend, m.WorkerJoined)
            assert joined.worker not in (first, second)

    def test_a_retired_worker_that_is_lost_is_not_replaced(self, tmp_path: Path) -> None:
        if not self.stops:
            return
        with self.started(tmp_path) as (backend, (first, second)):
            backend.send(unit(first, "t0003"), trial("t0003", seconds=60.0))
            backend.retire(first)
            backend.stop(first)
            (lost,) = wait_for(backend, m.WorkerLost)
            assert lost.worker == first
            backend.add(1)  # no other worker joins
            (joined,) = wait_for(backend, m.WorkerJoined)
            for worker in (second, joined.worker):
                backend.send(unit(worker), trial())
                wait_for(backend, m.UnitFinished)

    def test_a_stopped_worker_gives_up_and_is_replaced(self, tmp_path: Path) -> None:
        with self.started(tmp_path) as (backend, (first, second)):
            backend.send(unit(first, "t0003"), trial("t0003", seconds=60.0 if self.stops else 0.0))
            backend.stop(first)
            if self.stops:
                lost, joined = wait_for_any(backend, 2)
                assert isinstance(lost, m.WorkerLost) and lost.worker == first
                assert isinstance(joined, m.WorkerJoined) and joined.worker != second
                first = joined.worker
            else:
                wait_for(backend, m.UnitFinished)
            backend.send(unit(first, attempt=2), trial())
            (event,) = wait_for(backend, m.UnitFinished)
            assert (event.worker, event.attempt) == (first, 2)

    def test_a_unit_is_given_up_and_its_worker_lives_on(self, tmp_path: Path) -> None:
        with self.started(tmp_path) as (backend, (first, _)):
            backend.send(unit(first, "t0003"), trial("t0003", seconds=0.5 if self.stops else 0.0))
            backend.give_up(first, 1)
            if self.stops:
                (stopped,) = wait_for(backend, m.UnitStopped)
                assert (stopped.worker, stopped.unit, stopped.attempt) == (first, Unit("t0003", 1, 0), 1)
            else:
                wait_for(backend, m.UnitFinished)
            backend.give_up(first, 1)  # too late
            backend.send(unit(first, attempt=2), trial())
            (event,) = wait_for(backend, m.UnitFinished)
            assert (event.worker, event.attempt) == (first, 2)

    def test_killing_leaves_nothing_behind(self, tmp_path: Path) -> None:
        backend = self.make()
        backend.start(spec(tmp_path), 2)
        wait_for(backend, m.WorkerJoined, 2)
        backend.close(kill=True)


def spec(folder: Path, partitions: int = 2) -> WorkerSpec:
    """Return the spec of workers with 64 rows and a task that counts."""
    rows = np.arange(64, dtype="float32")
    data = partition({"x": rows}, folder / "train", partitions=partitions)
    make_folder(folder / "logs")
    return WorkerSpec(
        task=CountingTask(),
        train=data,
        valid=data,
        checkpoints=folder / "checkpoints",
        logs=folder / "logs",
        seed=0,
        device="cpu",
        threads=1,
        batch_size=16,
        drop_last=False,
    )


def trial(name: str = "t0001", **config: Any) -> Trial:
    return Trial(name, 0, config, 0, 1)


def unit(
    worker: str,
    name: str = "t0001",
    *,
    partition: int = 0,
    work: Work = Work.TRAIN,
    attempt: int = 1,
    version: int = 0,
    saved: int | None = None,
    **values: Any,
) -> m.RunUnit:
    """Return the command to run a unit of the first epoch from a version."""
    return m.RunUnit(worker, Unit(name, 1, partition, work), attempt, VersionRef(name, version, saved), **values)


def wait_for(backend: Backend, kind: Callable[..., Any], count: int = 1) -> list[Any]:
    """Return the next ``count`` events, which must all be of ``kind``."""
    events = wait_for_any(backend, count)
    assert [type(event) for event in events] == [kind] * count, events
    return events


def wait_for_any(backend: Backend, count: int) -> list[Any]:
    """Return the next ``count`` events."""
    events: list[m.Event] = []
    for _ in range(PATIENCE):
        events += backend.receive(0.25)
        if len(events) >= count:
            break
    assert len(events) == count, events
    return events
