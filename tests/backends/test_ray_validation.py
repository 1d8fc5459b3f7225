"""Validation data that is spread over the nodes of a real Ray cluster: the bits are those of one machine."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.backends.ray.backend import Ray
from hopfleet.domain.messages import EpochEnded, Event, Message, PlacePartition, UnitFinished, WorkerJoined, WorkerLost
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.frameworks.base import Batches, Session
from hopfleet.scheduler.invariants import validate_history
from hopfleet.store.journal import Journal
from hopfleet.support.files import digest
from hopfleet.testing.tasks import CountingTask
from tests.helpers.cluster.chained import ChainSession
from tests.helpers.cluster.joined import Clusters
from tests.helpers.whole_sets import Scored

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", autouse=True)
def cluster(clusters: Clusters) -> Iterator[Any]:
    """Three nodes of two CPUs each, which this process has joined."""
    with clusters.joined(*[{"num_cpus": 2}] * 3) as joined:
        yield joined


class Exact(CountingTask):
    def open(self, config: Mapping[str, Any], *, seed: int, placement: Placement, threads: int) -> Session:
        return ExactSession(config, seed)


class ExactSession(ChainSession):
    """A chain whose metric depends on the model, on every validation row and on its number."""

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        found, rows = hashlib.sha256(self.state + seed.to_bytes(8)), 0
        for batch in batches:
            found.update(batch["x"].tobytes())
            rows += len(batch["x"])
        return {"loss": RowSum.of(int.from_bytes(found.digest()[:6]) / 3, rows)}


def experiment(name: str, backend: Any, folder: Path, task: Any = None, **options: Any) -> hop.Experiment:
    """Return an experiment with as much validation data as training data, in five partitions."""
    rows = {"x": np.random.default_rng(0).normal(size=(64, 1, 6, 6)).astype("float32"), "y": np.arange(64) % 3}
    train, valid = (hop.partition(rows, folder / name / kind, partitions=5) for kind in ("train", "valid"))
    return hop.Experiment(
        task or Exact(),
        train=train,
        valid=valid,
        metric="loss",
        name=name,
        backend=backend,
        workers=3,
        batch_size=8,
        run_options=hop.RunOptions(order="fixed"),
        worker_options=hop.WorkerOptions(device="cpu"),
        **{"space": {"seconds": 0.03}, "search": hop.Random(trials=4, max_epochs=3), **options},
    )


def read(results: hop.Results) -> list[Message]:
    with contextlib.closing(Journal(results.folder.journal_file)) as journal:
        found = [message for _, _, message in journal.read()]
    validate_history(found, 5)
    return found


def of(messages: list[Message], kind: type) -> list[Any]:
    return [message for message in messages if isinstance(message, kind)]


def outcome(results: hop.Results) -> tuple[Any, ...]:
    """Return all metrics and all weights."""
    ends = {(end.trial, end.epoch): end.metrics for end in of(read(results), EpochEnded)}
    return ends, {trial.id: digest(trial.last_checkpoint) for trial in results.trials}


class Shaken(Ray):
    """Loses a node with a worker, then gets another, each after some units."""

    def __init__(self, cluster: Any) -> None:
        super().__init__()
        self._cluster, self._finished = cluster, 0

    def receive(self, timeout: float) -> list[Event]:
        events = super().receive(timeout)
        before, self._finished = self._finished, self._finished + sum(isinstance(e, UnitFinished) for e in events)
        if before < 12 <= self._finished:
            used = {member.node for member in self._workers.values() if member.joined}
            node = next(node for node in self._cluster.worker_nodes if node.node_id in used)
            self._cluster.remove_node(node, allow_graceful=False)
            events += self._until(WorkerLost)
        if before < 30 <= self._finished:
            self._cluster.add_node(num_cpus=2)
            events += self._until(WorkerJoined)
        return events

    def _until(self, kind: type) -> list[Event]:
        events: list[Event] = []
        while not any(isinstance(event, kind) for event in events):
            events += super().receive(0.25)
        return events


def test_evaluations_go_to_the_nodes_with_the_rows_and_give_the_same_bits(tmp_path: Path) -> None:
    results = experiment("spread", "ray", tmp_path).fit(quiet=True)
    messages = read(results)
    held = {event.worker: event.valid for event in of(messages, WorkerJoined)}
    assert sorted(part for mine in held.values() for part in mine) == [0, 1, 2, 3, 4], "each on one node"
    done = [event for event in of(messages, UnitFinished) if not event.unit.trains]
    assert len(done) == 4 * 3 * 5 and all(event.unit.partition in held[event.worker] for event in done)
    assert not of(messages, PlacePartition)
    assert outcome(results) == outcome(experiment("alone", "local", tmp_path).fit(quiet=True))
    test = hop.partition({"x": np.ones((20, 1, 6, 6), "float32"), "y": np.arange(20)}, tmp_path / "test", partitions=4)
    there, here = (results.test(test, backend=backend, workers=2) for backend in ("ray", "inline"))
    assert there == here, "predictions find every partition"


def test_a_lost_node_and_one_that_joins_change_nothing(cluster: Any, tmp_path: Path) -> None:
    results = experiment("shaken", Shaken(cluster), tmp_path).fit(quiet=True)
    messages = read(results)
    assert of(messages, WorkerLost) and any(place.valid for place in of(messages, PlacePartition))
    assert outcome(results) == outcome(experiment("calm", "local", tmp_path).fit(quiet=True))


def test_metrics_over_the_whole_set_bring_all_rows_to_every_node(tmp_path: Path) -> None:
    options: dict[str, Any] = {"space": {"lr": hop.choice([0.1, 0.3])}, "search": hop.Grid(max_epochs=2)}
    found = experiment("scored", "ray", tmp_path, Scored(), **options).fit(quiet=True)
    assert {place.valid for place in of(read(found), PlacePartition)} == {True}
    assert outcome(found) == outcome(experiment("scores", "local", tmp_path, Scored(), **options).fit(quiet=True))
