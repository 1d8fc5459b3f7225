"""Workers on a real Ray cluster of three nodes, all on this machine. It is started once for all tests here.

What is long runs with HOPFLEET_LONG=1, as in ``make cluster-tests``.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
import hopfleet.demo
from hopfleet.backends.base import Backend
from hopfleet.backends.ray import nodes
from hopfleet.backends.ray.backend import Ray
from hopfleet.backends.ray.cluster import living
from hopfleet.backends.vitals import vitals
from hopfleet.cli.doctor import doctor
from hopfleet.domain.messages import Event, UnitFinished, VersionSaved, WorkerJoined, WorkerLost, WorkerUnavailable
from hopfleet.store.journal import Journal
from hopfleet.store.shared_memory import KEY, TMPFS
from hopfleet.support.files import digest
from hopfleet.testing.backends import BackendSuite, spec, trial, wait_for, wait_for_any
from hopfleet.worker.protocol import Execute
from hopfleet.worker.spec import WorkerSpec
from tests.helpers.cluster.chained import chained
from tests.helpers.cluster.joined import Clusters
from tests.helpers.marks import long

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


#: Nodes have the environment that they are started with.
S3 = {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
    "AWS_ACCESS_KEY_ID": "user",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.fixture(scope="module", autouse=True)
def cluster(clusters: Clusters) -> Iterator[Any]:
    """Three nodes of two CPUs each, which this process has joined."""
    with clusters.joined(*[{"num_cpus": 2}] * 3, **S3) as joined:
        yield joined


class TestRay(BackendSuite):
    def make(self) -> Backend:
        return Ray()

    @pytest.fixture(autouse=True)
    def some(self, request: pytest.FixtureRequest) -> None:
        """The worker itself is the same everywhere; what is about the way to it is tested each time."""
        if request.node.originalname not in ALWAYS and not os.environ.get("HOPFLEET_LONG"):
            pytest.skip("HOPFLEET_LONG=1 runs it")


ALWAYS = {
    "test_a_saved_version_hops_to_another_worker",
    "test_a_released_worker_saves_and_goes_for_good",
    "test_a_stopped_worker_gives_up_and_is_replaced",
    "test_a_unit_is_given_up_and_its_worker_lives_on",
    "test_a_version_that_is_not_there_is_reported",
    "test_killing_leaves_nothing_behind",
}


def demo(name: str, backend: Any, data: Any = None) -> hop.Experiment:
    """The demo with fewer epochs, in an order that depends on nothing but its seed."""
    train, valid = hopfleet.demo.data()
    return hop.Experiment(
        hopfleet.demo.Digits(),
        **(data or {"train": train, "valid": valid}),
        space=hopfleet.demo.SPACE,
        search=hop.Random(trials=4, max_epochs=2),
        metric="accuracy",
        mode="max",
        partitions=4,
        name=name,
        backend=backend,
        workers=2,
        run_options=hop.RunOptions(order="fixed"),
        worker_options=hop.WorkerOptions(device="cpu"),
    )


def fingerprints(results: hop.Results) -> dict[str, str]:
    return {trial.id: digest(trial.last_checkpoint) for trial in results.trials}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the demo comes to on this machine alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLEET_HOME", str(tmp_path_factory.mktemp("alone")))
        return fingerprints(demo("alone", "local").fit(quiet=True))


def test_a_cluster_gives_the_same_bits(alone: dict[str, str]) -> None:
    results = demo("cluster", "ray").fit(quiet=True)
    assert fingerprints(results) == alone
    joined = messages(results, WorkerJoined)
    assert sorted(p for worker in joined for p in worker.partitions) == [0, 1, 2, 3]
    assert any(unit.hopped for unit in messages(results, UnitFinished))


def test_what_is_killed_changes_nothing(cluster: Any) -> None:
    """A worker dies, a node is lost and another one joins, all in one run."""
    backend = Shaken(cluster)
    results = chained("shaken", backend).fit(quiet=True)
    assert fingerprints(results) == fingerprints(chained("calm", "local").fit(quiet=True))
    units = messages(results, UnitFinished)
    assert any(unit.hopped for unit in units)
    if TMPFS.is_dir():
        assert not any(saved.digest for saved in messages(results, VersionSaved) if not saved.durable), "in memory"
    died, *_, with_node = messages(results, WorkerLost)
    assert "node" not in died.reason
    assert "its raylet is gone" in with_node.reason
    assert any(unit.worker in backend.newcomers for unit in units)


@long
def test_a_run_whose_driver_failed_goes_on_elsewhere(alone: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="the driver fails"):
        demo("resumed", Failing()).fit(quiet=True)
    nodes._AGENTS.clear()  # as in another process
    assert fingerprints(demo("resumed", "ray").fit(quiet=True)) == alone


class Failing(Ray):
    """Fails after some units."""

    finished = 0

    def receive(self, timeout: float) -> list[Event]:
        events = super().receive(timeout)
        self.finished += sum(isinstance(event, UnitFinished) for event in events)
        if self.finished > 10:
            raise RuntimeError("the driver fails")
        return events


@long
def test_data_and_versions_behind_a_url(alone: dict[str, str], own_home: Path) -> None:
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=int(S3["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    server.start()
    try:
        s3fs.S3FileSystem().mkdir("bucket")
        train, valid = hopfleet.demo.data()
        hop.partition(train, "s3://bucket/train", partitions=4)
        hop.partition(valid, "s3://bucket/valid", partitions=1)
        data = {"train": "s3://bucket/train", "valid": "s3://bucket/valid"}
        results = demo("remote", Ray(storage="s3://bucket/runs"), data=data).fit(quiet=True)
        assert fingerprints(results) == alone
        assert not (own_home / "remote" / "checkpoints").is_symlink()
    finally:
        server.stop()


@long
def test_versions_in_a_shared_folder(alone: dict[str, str], own_home: Path, tmp_path: Path) -> None:
    results = demo("shared", Ray(storage=tmp_path / "mounted")).fit(quiet=True)
    assert fingerprints(results) == alone
    assert (own_home / "shared" / "checkpoints").resolve().parent == tmp_path / "mounted"
    left = {path.name for path in tmp_path.glob("mounted/*/.shared-*")}
    assert left <= {KEY}, "nothing is left of the check"


@long
def test_a_process_that_is_stopped_is_lost_and_not_heard_again(tmp_path: Path) -> None:
    backend = Ray()
    try:
        backend.start(spec(tmp_path), 1)
        (joined,) = wait_for(backend, WorkerJoined)
        pid = backend._workers[joined.worker].pid
        os.kill(pid, signal.SIGSTOP)
        lost, again = wait_for_any(backend, 2)
        assert (lost.worker, again.worker) == ("w1", "w2")
        assert "SIGSTOP" in lost.reason
        assert not Path(f"/proc/{pid}").exists() or vitals(pid).gone  # type: ignore[union-attr]
    finally:
        backend.close(kill=True)


def test_a_worker_that_fails_in_itself_is_replaced(tmp_path: Path) -> None:
    backend = Ray()
    try:
        backend.start(spec(tmp_path), 1)
        (joined,) = wait_for(backend, WorkerJoined)
        backend._workers[joined.worker].outbox.append(Execute("no command at all", None))
        lost, again = wait_for_any(backend, 2)
        assert (lost.worker, again.worker) == ("w1", "w2")
    finally:
        backend.close(kill=True)


def test_nodes_of_several_sorts_are_tried_first(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=3)
    backend = Ray(elastic=False)
    try:
        workers = len(living())
        backend.start(spec(tmp_path, partitions=8), workers)
        profile = backend.probe(trial(), 2)
        assert profile.seconds_per_row > 0
        joined = wait_for(backend, WorkerJoined, workers)
        every = tuple(range(8))  # what a joining worker means by None: a node may be fast enough to hold all
        partitions = {backend._workers[event.worker].node: event.partitions or every for event in joined}
        assert len(partitions) == workers >= 3
        assert sorted({p for mine in partitions.values() for p in mine}) == list(every)
    finally:
        backend.close(kill=True)
        cluster.remove_node(node)


def test_workers_take_what_they_are_given(cluster: Any, tmp_path: Path) -> None:
    # With Ray's own start of workers, or /proc would show the environment of the warm process.
    node = cluster.add_node(num_cpus=2, resources={"licence": 1}, labels={"zone": "b"}, setup_worker_path=None)
    share = {"cpus": 0.5, "memory": 50 << 20, "resources": {"licence": 1}, "labels": {"zone": "b"}}
    backend = Ray(**share, placement="PACK", runtime_env={"env_vars": {"GIVEN": "as asked"}})
    try:
        assert backend.offer("cpu", 1)[0] == 1, "there is one licence"
        backend.start(spec(tmp_path), 1)
        (joined,) = wait_for(backend, WorkerJoined)
        handle = backend._workers[joined.worker]
        assert handle.node == node.node_id
        assert b"GIVEN=as asked" in Path(f"/proc/{handle.pid}/environ").read_bytes().split(b"\0")
        (used,) = [each for each in living() if each.id == node.node_id]
        assert (used.free_cpus, used.free.get("licence", 0.0)) == (1.5, 0.0)
    finally:
        backend.close(kill=True)
        cluster.remove_node(node)


def test_a_node_that_joins_and_cannot_fetch_is_not_used(cluster: Any, tmp_path: Path) -> None:
    backend, log, node = Ray(), tmp_path / "logs" / "workers.log", None
    try:
        backend.start(spec(tmp_path), 1)
        wait_for(backend, WorkerJoined)
        for part in (tmp_path / "train").glob("*.arrow"):
            part.write_bytes(bytes(part.stat().st_size))
        node = cluster.add_node(num_cpus=1)
        while not log.exists():
            assert not [each for each in backend.receive(0.25) if not isinstance(each, WorkerUnavailable)], (
                "no worker is lost"
            )
        assert "joined and is not used: a partition could not be fetched: " in log.read_text()
        assert node.node_id not in backend._nodes
    finally:
        backend.close(kill=True)
        if node is not None:
            cluster.remove_node(node)


def refused(backend: Ray, spec: WorkerSpec, workers: int) -> str:
    try:
        with pytest.raises(hop.HopfleetError) as error:
            backend.start(spec, workers)
        return str(error.value)
    finally:
        backend.close(kill=True)


def test_more_workers_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.backends.ray.discovery.ROOM_SECONDS", 1.0)
    said = refused(Ray(), spec(tmp_path), 99)
    assert re.match(r"workers=99: only \d fit, at 1 CPU each \(.*: 2 of 2 CPUs free, room for 2; .*; use fewer", said)


def test_what_nodes_cannot_reach_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """What is in the memory of this process is nowhere else."""
    fine = spec(tmp_path)
    hop.partition({"x": [1.0, 2.0]}, "memory://elsewhere", partitions=1)
    said = refused(Ray(), replace(fine, train=hop.open_dataset("memory://elsewhere")), 1)
    assert re.match(r"some nodes cannot work: .*memory://elsewhere/part-00000.arrow: is missing", said)
    said = refused(Ray(storage="memory://kept"), fine, 1)
    assert re.match(r"some nodes cannot work: .*storage memory://kept/.* is not shared", said)


def test_a_node_with_other_packages_is_refused_before_anything_runs(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real node, whose processes see another NumPy."""
    other = tmp_path / "packages" / "numpy-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n")
    path = os.pathsep.join([str(other.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        node = cluster.add_node(num_cpus=2)
    try:
        said = refused(Ray(), spec(tmp_path), len(living()))
        assert re.search(r"some nodes cannot work: \S+ \(\w+\): numpy 0\.0\.1 instead of \S+\. ", said), said
    finally:
        cluster.remove_node(node)


def test_doctor_sees_the_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(ray=True) == 0
    shown = capsys.readouterr().out
    assert len(re.findall(r"[12] CPUs, [0-9.]+ free; Python \S+, ray \S+; same versions as here", shown)) == 3
    assert "authentication" in shown


def messages(results: hop.Results, kind: type) -> list[Any]:
    with contextlib.closing(Journal(results.folder.journal_file)) as journal:
        return [message for _, _, message in journal.read() if isinstance(message, kind)]


class Shaken(Ray):
    """Kills a worker, then a raylet, then adds a node, each after some units, and waits until that is noticed."""

    def __init__(self, cluster: Any) -> None:
        super().__init__()
        self._cluster = cluster
        self._finished = 0
        #: Workers on the node that was added.
        self.newcomers: set[str] = set()

    def receive(self, timeout: float) -> list[Event]:
        events = super().receive(timeout)
        before, self._finished = self._finished, self._finished + sum(isinstance(e, UnitFinished) for e in events)
        if before < 3 <= self._finished:
            victim = next(member for member in self._workers.values() if member.joined)
            os.kill(victim.pid, signal.SIGKILL)
            events += self._until(WorkerLost)
        if before < 8 <= self._finished:
            used = {member.node for member in self._workers.values() if member.joined}
            node = next(node for node in self._cluster.worker_nodes if node.node_id in used)
            self._cluster.remove_node(node, allow_graceful=False)
            events += self._until(WorkerLost)
        if before < 16 <= self._finished:
            node = self._cluster.add_node(num_cpus=2)  # as before, for the tests that follow
            while not self.newcomers:
                events += super().receive(0.25)
                here = [member for member in self._workers.values() if member.node == node.node_id]
                self.newcomers = {member.name for member in here if member.joined}
        return events

    def _until(self, kind: type) -> list[Event]:
        events: list[Event] = []
        while not any(isinstance(event, kind) for event in events):
            events += super().receive(0.25)
        return events
