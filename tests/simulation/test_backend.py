"""Simulated workers: commands in order, models in memory, saved versions in a store in memory."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.space import uniform
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError
from hopfleet.runtime.loop import Loop
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import PBT
from hopfleet.search.base import Goal
from hopfleet.simulation.backend import START, Failure, Simulated
from hopfleet.simulation.store import MemoryVersions
from hopfleet.store.journal import Journal

TRIALS = {name: Trial(name, number, {}, 0, 2) for number, name in enumerate(("t0001", "t0002"))}


def started(**options: object) -> Simulated:
    backend = Simulated(**options)  # type: ignore[arg-type]
    backend.start(None, 1)
    backend.receive(0.0)
    return backend


def train(backend: Simulated, trial: str, version: int, saved: int | None = None, attempt: int = 1) -> None:
    ref = VersionRef(trial, version, saved)
    backend.send(m.RunUnit("w1", Unit(trial, 1, version), attempt, ref), TRIALS[trial])


def save(backend: Simulated, trial: str, version: int, attempt: int, *, durable: bool = False) -> None:
    backend.send(m.SaveVersion("w1", VersionRef(trial, version, attempt), durable), TRIALS[trial])


def test_a_save_waits_until_its_worker_has_ended_its_unit() -> None:
    backend = started()
    train(backend, "t0001", 0)
    (finished,) = backend.receive(0.0)
    assert isinstance(finished, m.UnitFinished) and finished.version == 1
    train(backend, "t0002", 0, attempt=2)
    save(backend, "t0001", 1, 7)
    kinds = [(type(event), backend.elapsed) for event in backend.receive(0.0)]
    assert kinds == [(m.UnitFinished, 2.0), (m.VersionSaved, 2.0)]


def test_a_worker_that_gives_a_unit_up_goes_on_at_once() -> None:
    backend = started(seconds=lambda command, trial: 10.0)
    train(backend, "t0001", 0, attempt=1)
    train(backend, "t0002", 0, attempt=2)
    backend.give_up("w1", 1)
    assert backend.receive(0.0) == [m.UnitStopped("w1", Unit("t0001", 1, 0), 1, START, START)]
    (finished,) = backend.receive(0.0)
    assert isinstance(finished, m.UnitFinished) and (finished.attempt, backend.elapsed) == (2, 10.0)
    backend.give_up("w1", 2)  # too late
    assert not backend.receive(0.0)


def test_a_version_is_loaded_from_the_store_and_lost_where_it_is_nowhere() -> None:
    backend = started(failures=[Failure(2.0, "w1", back=2.0), Failure(5.0, "w1", back=5.0)])
    train(backend, "t0001", 0)
    backend.receive(0.0)
    save(backend, "t0001", 1, 7)
    assert backend.receive(0.0) == [m.VersionSaved(VersionRef("t0001", 1, 7), False, "", 0)]
    assert [type(event) for event in backend.receive(0.0)] == [m.WorkerLost, m.WorkerJoined]
    train(backend, "t0001", 1, 7, attempt=2)
    (finished,) = backend.receive(0.0)
    assert isinstance(finished, m.UnitFinished) and finished.version == 2
    save(backend, "t0001", 1, 8)  # an earlier version, which its worker no longer holds
    assert backend.receive(0.0) == [m.VersionLost(VersionRef("t0001", 1, None), "not held", "w1", 8)]
    assert len(backend.receive(0.0)) == 2
    train(backend, "t0001", 2, None, attempt=3)
    assert backend.receive(0.0) == [m.VersionLost(VersionRef("t0001", 2, None), "not found", "w1", 3)]


def test_a_run_that_ends_leaves_its_durable_versions() -> None:
    backend = started()
    train(backend, "t0001", 0)
    backend.receive(0.0)
    save(backend, "t0001", 1, 7)
    save(backend, "t0001", 1, 8, durable=True)
    backend.receive(0.0)
    train(backend, "t0002", 0, attempt=2)
    backend.end()
    assert backend.receive(0.0) == [] and set(backend.saved.files) == {VersionRef("t0001", 1, 8)}
    backend.start(None, 1)
    (joined,) = backend.receive(0.0)
    assert joined == m.WorkerJoined("w1", backend.placement("w1")) and backend.elapsed == 1.0


def test_a_store_in_memory_copies_durable_versions_only_and_counts_shared_bytes() -> None:
    versions, one, two = MemoryVersions(), VersionRef("t0001", 1, 7), VersionRef("t0001", 2, 8)
    versions.put(one, ((1, 0),), durable=False, size=5)
    versions.put(two, ((1, 0), (1, 1)), durable=True, size=9)
    with pytest.raises(CheckpointError):
        versions.copy(one, VersionRef("t0002", 1, 9))
    versions.copy(two, VersionRef("t0002", 2, 9))
    versions.keep(VersionRef("t0001", 1, 10), 7)
    assert versions.model(VersionRef("t0002", 2, 9)) == ((1, 0), (1, 1)) and versions.most_shared == 5
    with pytest.raises(CheckpointError):
        versions.keep(VersionRef("t0001", 1, 12), 11)
    versions.forget("t0002")
    versions.release()
    assert set(versions.files) == {two, VersionRef("t0001", 1, 10)}
    versions.put(one, ((1, 0),), durable=False, size=4)
    assert versions.most_shared == 5
    versions.tidy([two])
    assert set(versions.files) == {two} and versions.find(two)


def test_clones_on_simulated_workers_have_the_models_of_their_parents(tmp_path: Path) -> None:
    """The store of a real run with this backend is that of its workers, so copies find what was saved."""
    search = PBT(population=4, max_epochs=6)
    search.setup({"x": uniform(0, 1)}, seed=0, goal=Goal("loss", "min"))
    backend = Simulated(metrics=lambda trial, epoch: {"loss": trial.number + 1 / epoch})
    controller = Controller(search, POLICIES["longest-remaining"](), partitions=2, valid_partitions=1)
    with contextlib.closing(Journal(tmp_path / "journal.sqlite", writable=True)) as journal:
        backend.start(None, 2)
        assert Loop(controller, backend, journal, backend.versions(tmp_path)).run([m.RunStarted("test", 2)])
        kinds = {type(message) for _, _, message in journal.read()}
    assert m.CopyVersion in kinds and m.VersionLost not in kinds
