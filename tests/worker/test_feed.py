"""Transformed batches are the same wherever they are made, whoever dies meanwhile, and nobody stays behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.domain.messages import RunUnit
from hopfleet.domain.placement import CPU
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import TaskError, UsageError
from hopfleet.frameworks.base import IsolationError
from hopfleet.store.shared_memory import SharedMemory
from hopfleet.store.versions.local import Versions
from hopfleet.support.machine import Machine, spare_cores
from hopfleet.worker.feeding.feed import Feed, Mean, Pace, UnitBatches, batch_maker, open_feed
from hopfleet.worker.feeding.shared_batch_cache import SharedBatchCache
from hopfleet.worker.feeding.transform_workers import TransformServer, TransformWorkers
from hopfleet.worker.logs import copied
from hopfleet.worker.spec import WorkerSpec
from hopfleet.worker.worker import Worker

# A process of pytest has threads; the children of these tests use none of what those hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


class Noisy(hop.TorchTask):
    """Takes so long that everybody wants to have its batches from somebody else."""

    seconds = 0.004

    def build(self, config):
        model = torch.nn.Linear(3, 1)
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model, batch):
        return ((model(batch["x"]).squeeze(1) - batch["y"]) ** 2).mean()

    def transform(self, batch, rng):
        time.sleep(self.seconds)
        if rng is None:
            return {**batch, "x": batch["x"] * 2}
        return {**batch, "x": batch["x"] + rng.normal(size=batch["x"].shape).astype("float32")}


class Private(Noisy):
    def transform(self, batch, rng):
        time.sleep(self.seconds)
        return {**batch, "x": batch["x"] * self.config["lr"]}


def arrays(rows: int = 203) -> dict[str, Any]:
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    return {"x": x, "y": x.sum(1)}


@pytest.fixture
def data(tmp_path):
    return hop.partition(arrays(), tmp_path / "data", partitions=2)


@pytest.fixture
def spec(tmp_path, data):
    checkpoints, logs = tmp_path / "checkpoints", tmp_path / "logs"
    logs.mkdir()
    return WorkerSpec(
        Noisy(), data, data, checkpoints, logs, 7, "cpu", 1, 4, False, run="r", transform_workers=2, shared_bytes=10**8
    )


def expected(source: UnitBatches, task: hop.TorchTask) -> list[dict[str, Any]]:
    def transform(batch: Any, rng: Any) -> Any:
        return task.transform(batch, None if source.epoch is None else rng)

    how = {"batch_size": source.batch_size, "seed": source.seed, "epoch": source.epoch}
    return list(source.dataset.batches(source.partition, transform=transform, drop_last=source.drop_last, **how))


def same(ones: list[dict[str, Any]], others: list[dict[str, Any]]) -> bool:
    return len(ones) == len(others) and all(
        one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
        for one, other in zip(ones, others, strict=True)
    )


def sources(data: Any) -> list[UnitBatches]:
    return [UnitBatches(data, 1, 4, 7, 2), UnitBatches(data, 1, 4, 7, 1, drop_last=True), UnitBatches(data, 0, 4)]


class Closely(SharedBatchCache):
    """Counts what is put into it."""

    puts = 0

    def put(self, unit: str, number: int, batch: Any) -> int:
        self.puts += 1
        return super().put(unit, number, batch)


# ---------------------------------------------------------------------------------------------- shared batch cache


def test_what_is_put_in_comes_out(tmp_path):
    batch_cache = SharedBatchCache(tmp_path, 10**6)
    grid = np.arange(12.0).reshape(3, 4)
    batch = {
        "plain": grid,
        "turned": grid.T,
        "backwards": grid[::-1],
        "empty": np.empty((0, 3), "uint8"),
        "texts": ["a", "üb", ""],
        "rows": [np.arange(2), np.arange(5, dtype="int8")],
        "bytes": [b"a", b"", bytes(200)],
        "words": np.array(["one", "three"]),
        "flags": np.array([True, False]),
        "scalar": np.array(2.5),
    }
    assert batch_cache.get("u", 3) is None and not batch_cache.has("u", 3)
    assert batch_cache.put("u", 3, batch) > 12 * 8 * 3
    assert batch_cache.has("u", 3)
    for _ in range(2):
        found = batch_cache.get("u", 3)
        assert found is not None and list(found) == list(batch)
        for name in ("plain", "turned", "backwards", "empty", "words", "flags", "scalar"):
            assert np.array_equal(found[name], batch[name]) and found[name].dtype == batch[name].dtype
            assert found[name].shape == batch[name].shape
        assert found["texts"] == batch["texts"] and found["bytes"] == batch["bytes"]
        assert all(np.array_equal(*pair) for pair in zip(found["rows"], batch["rows"], strict=True))
        assert found["plain"].ctypes.data % 64 == 0
        found["plain"][:] = 0  # one's own: the next one must not see it
    batch_cache.drop("u", 3)
    batch_cache.drop("u", 3)
    assert batch_cache.get("u", 3) is None
    assert np.array_equal(found["turned"], grid.T)  # what was mapped stays


def test_what_cannot_travel_is_not_kept(tmp_path):
    batch_cache = SharedBatchCache(tmp_path, 10**6)
    for strange in (None, 1.5, torch.zeros(3), np.array([None]), np.ma.masked_array([1]), [{}]):
        assert batch_cache.put("u", 0, {"x": strange}) == 0
    assert [path.name for path in tmp_path.iterdir()] == []
    (tmp_path / "file").write_text("")
    nowhere = SharedBatchCache(tmp_path / "file", 10)
    assert nowhere.put("u", 0, {}) == 0 and not nowhere.reserve("u", 1)


def test_the_oldest_makes_room(tmp_path):
    batch_cache = SharedBatchCache(tmp_path, 1000)
    for number, unit in enumerate(("old", "new")):
        assert batch_cache.reserve(unit, 400)
        assert batch_cache.put(unit, 0, {"x": np.zeros(250, "uint8")})
        os.utime(tmp_path / unit, (number + 1, number + 1))
    assert not batch_cache.reserve("huge", 1001)
    assert {path.name for path in tmp_path.iterdir()} == {"huge"}
    assert batch_cache.put("huge", 0, {"x": np.zeros(250, "uint8")})
    os.utime(tmp_path / "huge", (1, 1))
    assert batch_cache.reserve("new", 500)
    assert {path.name for path in tmp_path.iterdir()} == {"huge", "new"}
    assert batch_cache.reserve("other", 900)
    assert {path.name for path in tmp_path.iterdir()} == {"other", "new"}


def test_what_the_dead_left_goes(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f"{ended.pid}-1", f"{os.getpid()}-1"):
        (tmp_path / name).write_text("half")
    assert SharedBatchCache(tmp_path, 1000).reserve("u", 10)
    assert {path.name for path in tmp_path.iterdir()} == {"u", f"{os.getpid()}-1"}


def test_shared_memory_is_given_back(tmp_path):
    memory = SharedMemory(tmp_path / "checkpoints", tmp_path)
    folder = memory.batches("run")
    assert folder is not None
    SharedBatchCache(folder, 10**6).put("u", 0, {"x": np.zeros(3)})
    assert folder.exists()
    memory.clear_batches()
    assert not folder.exists()
    assert SharedMemory(tmp_path / "checkpoints", tmp_path / "nowhere").batches("run") is None


# ----------------------------------------------------------------------------------------------------------- the pace


def test_a_mean_forgets():
    mean = Mean()
    assert mean.value == 0.0
    for _ in range(100):
        mean.add(1.0)
    assert mean.value == pytest.approx(1.0) and mean.count == 16
    for _ in range(100):
        mean.add(3.0)
    assert mean.value == pytest.approx(3.0, abs=0.01)


def paced(making: float, using: float, waiting: float) -> Pace:
    pace = Pace()
    for _ in range(3):
        pace.made(making, {"x": np.zeros(125_000)})
        pace.using.add(using)
        pace.waiting.add(waiting)
    return pace


def test_only_what_takes_long_is_passed_on():
    assert paced(0.012, 0.01, 0.0).heavy  # a megabyte: 1.1 ms
    assert not paced(0.010, 0.01, 0.0).heavy
    assert not Pace().heavy


@pytest.mark.parametrize(
    ("making", "using", "waiting", "present", "most", "wanted"),
    [
        (0.04, 0.01, 0.03, 0, 8, 4),  # it waits: four of them bring one every 10 ms
        (0.04, 0.01, 0.03, 0, 2, 2),
        (0.04, 0.01, 0.03, 0, 0, 0),  # no processor is free
        (0.012, 0.01, 0.002, 0, 8, 2),
        (0.009, 0.01, 0.0005, 0, 8, 0),  # it hardly waits
        (0.04, 0.01, 0.0, 4, 8, 4),  # it does not wait because of them
        (0.02, 0.01, 0.0, 4, 8, 2),  # there are too many
        (0.04, 0.0, 0.0, 0, 8, 0),  # nothing is known
    ],
)
def test_as_many_helpers_as_are_needed(making, using, waiting, present, most, wanted):
    assert paced(making, using, waiting).helpers(present, most) == wanted


def test_cores_to_spare():
    assert spare_cores(Machine(16, 1), device="cuda", workers=1, threads=1) == 15
    assert spare_cores(Machine(16, 1), device="cpu", workers=3, threads=2) == 3
    assert spare_cores(Machine(2, 1), device="cpu", workers=2, threads=1) == 0
    assert spare_cores(Machine(2, 1), device="cuda", workers=4, threads=1) == 0


@pytest.mark.parametrize("transform_workers", [-1, "many", 1.5, True, None])
def test_a_number_of_transform_workers_that_makes_no_sense(transform_workers):
    with pytest.raises(UsageError, match=r"transform_workers=.*must be 'auto'"):
        hop.WorkerOptions(transform_workers=transform_workers)


# ----------------------------------------------------------------------------------------------------------- the feed


def test_the_same_batches_alone_and_with_a_larder(data, tmp_path):
    task = Noisy()
    batch_cache = Closely(tmp_path / "cache", 10**8)
    plain, sharing = Feed(task), Feed(task, batch_cache=batch_cache)
    for source in sources(data):
        wanted = expected(source, task)
        assert same(list(plain.batches(source, None)), wanted)
        for _ in range(2):
            assert same(list(sharing.batches(source, None)), wanted)
    made = batch_cache.puts
    assert made > 60
    others = Feed(task, batch_cache=batch_cache)  # another worker: it has to find out that this takes long
    assert same(list(others.batches(sources(data)[0], None)), expected(sources(data)[0], task))
    assert batch_cache.puts == made


def test_what_does_not_stay_is_made_again(data, tmp_path):
    batch_cache = Closely(tmp_path / "cache", 100)
    feed, source = Feed(Noisy(), batch_cache=batch_cache), sources(data)[0]
    for _ in range(2):
        assert same(list(feed.batches(source, None)), expected(source, Noisy()))
    assert batch_cache.puts == 0


def test_a_batch_that_needs_the_configuration_is_its_trials_own(data, tmp_path):
    batch_cache = Closely(tmp_path / "cache", 10**8)
    task, source = Private(), sources(data)[0]
    feed = Feed(task, batch_cache=batch_cache)
    for rate in (0.5, 0.25):
        found = list(feed.batches(source, {"lr": rate}))
        assert np.array_equal(found[5]["x"], list(source.batches())[5]["x"] * rate)
    assert batch_cache.puts == 0
    with pytest.raises(IsolationError, match=r"transform\(\) reads self.config"):
        list(feed.batches(source, None))


def test_a_transform_sees_the_attributes_of_its_task(data):
    class Late(Noisy):
        seconds = 0.0

        def transform(self, batch, rng):
            assert isinstance(self, Late) and len(self.config) == 2 and set(self.config) == {"lr", "b"}
            self.calls = getattr(self, "calls", 0) + 1
            return {"x": batch["x"] * self.factor}

    task = Late()
    feed = Feed(task)
    task.factor = 3  # as build() may do
    found = list(feed.batches(sources(data)[0], {"lr": 1, "b": 2}))
    assert np.array_equal(found[0]["x"], next(sources(data)[0].batches())["x"] * 3)
    assert task.calls == len(found)


# ------------------------------------------------------------------------------------------- twice the same


class Late(Noisy):
    """Each of its transforms is another one than before."""

    seconds = 0.0

    def __init__(self, column: str) -> None:
        self.column, self.calls = column, 0

    def transform(self, batch, rng):
        self.calls += 1
        texts = [["a", np.arange(2)], ["b"]]
        made = {**batch, "texts": texts, "objects": np.array(["a", None], object), "tensor": torch.zeros(2)}
        now = {
            "none": {},
            "evaluation": {} if rng is not None else {"x": batch["x"] + self.calls},
            "global": {"x": batch["x"] + np.random.random()},
            "type": {"x": batch["x"].astype("float32" if self.calls % 2 else "float64")},
            "list": {"texts": [["a", np.arange(2) + self.calls], ["b"]]},
            "length": {"texts": texts * self.calls},
            "object": {"objects": np.array(["a", self.calls], object)},
            "torch": {"tensor": torch.full((2,), float(self.calls))},
            "new": {f"new{self.calls}": batch["y"]},
        }[self.column]
        return {**made, **now}


@pytest.mark.parametrize(
    ("column", "found"),
    [
        ("none", ("", "")),
        ("evaluation", ("", "x")),
        ("global", ("x", "x")),
        ("type", ("x", "x")),
        ("list", ("texts", "texts")),
        ("length", ("texts", "texts")),
        ("object", ("objects", "objects")),
        ("torch", ("tensor", "tensor")),
        ("new", ("new1", "new3")),
    ],
)
def test_a_transform_that_is_not_the_same_each_time_is_found(data, column, found):
    feed = Feed(Late(column))
    assert tuple(feed.unsteady(source, {}) for source in (sources(data)[0], sources(data)[2])) == found


def small(task: Any, **how: Any) -> hop.Experiment:
    settings: dict[str, Any] = {"search": hop.Grid(max_epochs=1), "batch_size": 4, "partitions": 1, **how}
    space = {"lr": hop.grid_search([0.01, 0.02])}
    return hop.Experiment(task, train=arrays(16), backend="inline", **{"space": space, **settings})


def said(capfd: Any) -> str:
    captured = capfd.readouterr()
    return " ".join((captured.out + captured.err).split())


@pytest.mark.parametrize("valid", [None, arrays(8)])
def test_it_is_said_once_and_the_run_goes_on(capfd, valid):
    results = small(Late("global"), valid=valid).fit()
    assert {trial.state.value for trial in results.trials} == {"completed"}
    text = said(capfd)
    assert text.count("Late.transform is not reproducible: column 'x' differs") == 1
    assert "let it draw from its rng alone" in text
    small(Late("none"), valid=valid).fit()
    assert "not reproducible" not in said(capfd)


def test_a_preview_says_it_too():
    assumed = small(Late("global"), valid=arrays(8)).preview(quiet=True).assumed
    assert [text for text in assumed if "transform() is not reproducible: column 'x'" in text]


# ----------------------------------------------------------------------------------------------- who cannot sail


class Owner(Noisy):
    seconds = 0.0

    def train(self, model, batches, config):
        return {"loss": sum(float(self.loss(model, batch).detach()) for batch in batches)}


def test_a_task_that_owns_its_loop_is_told_so_once(capfd):
    small(Owner()).fit()
    assert said(capfd).count("trials of Owner train one at a time, not together: it owns its training loop") == 1
    small(Owner(), worker_options=hop.WorkerOptions(fuse="off")).fit()
    assert "one by one" not in said(capfd)
    with pytest.raises(UsageError, match="fuse='fast': trials of Owner cannot train together: it owns"):
        small(Owner(), worker_options=hop.WorkerOptions(fuse="fast"))


def test_nobody_fits_anybody(capfd):
    sizes = {"lr": 0.01, "batch_size": hop.grid_search([4, 8]), "width": 3}
    small(Late("none"), space=sizes, worker_options=hop.WorkerOptions(fuse="fast")).fit()
    assert "fuse='fast': no two trials can be stacked, since stacking needs the same batch_size" in said(capfd)
    sizes |= {"batch_size": 4, "width": hop.grid_search([3, 4])}
    small(Late("none"), space=sizes, worker_options=hop.WorkerOptions(fuse="fast")).fit()
    assert "fuse='fast': any two trials differ in width; they can be stacked only if" in said(capfd)
    small(Late("none"), space=sizes, worker_options=hop.WorkerOptions(fuse="exact")).fit()
    small(Late("none"), worker_options=hop.WorkerOptions(fuse="fast")).fit()
    assert "two trials" not in said(capfd)


@pytest.mark.parametrize("fast", [True, False])
def test_batches_of_different_sizes_that_are_not_on_the_device(spec, capfd, fast):
    """Units that are sent out together, over a partition that is not on the device, train one size after another."""
    events: list[Any] = []
    spec = replace(spec, task=Late("none"), fast=fast, checkpoints=spec.logs)
    worker = Worker("w1", spec, CPU, events.extend, capture=copied, guest=True)
    for number, size in enumerate((4, 8)):
        trial = Trial(f"t{number}", number, {"lr": 0.1, "batch_size": size}, 0, 1)
        worker.execute(
            RunUnit("w1", Unit(trial.id, 1, 0), number + 1, VersionRef(trial.id, 0, None), flotilla=1, more=not number),
            trial,
        )
    worker.close()
    assert [type(event).__name__ for event in events] == ["UnitFinished"] * 2
    assert events[0].ended <= events[1].started and "one by one" not in said(capfd)


# -------------------------------------------------------------------------------------------------- transform workers


@contextlib.contextmanager
def transform_server(make: Any, log: Path) -> Any:
    one = TransformServer(make, log=str(log))
    try:
        yield one
    finally:
        one.close()
        os.waitpid(one.pid, 0)


def fed(spec: WorkerSpec, batch_cache: SharedBatchCache, one: TransformServer) -> tuple[Feed, TransformWorkers]:
    transform_workers = TransformWorkers(one.fork)
    feed = Feed(spec.task, batch_cache=batch_cache, transform_workers=transform_workers, most=2)
    for source in sources(spec.train)[1:]:
        pace = feed.pace(source)
        for _ in range(3):
            pace.made(0.004, {"x": np.zeros(12)})
            pace.using.add(0.001)
            pace.waiting.add(0.003)
    return feed, transform_workers


@pytest.mark.parametrize("room", [10**8, 100])
def test_the_same_batches_from_transform_workers(spec, tmp_path, room):
    batch_cache = Closely(tmp_path / "cache", room)
    with transform_server(batch_maker(spec, batch_cache), tmp_path / "log") as one:
        feed, transform_workers = fed(spec, batch_cache, one)
        for source in sources(spec.train):
            for _ in range(2):
                assert same(list(feed.batches(source, None)), expected(source, spec.task))
        assert len(transform_workers) == 2
        transform_workers.staff(0)
    assert batch_cache.puts == 0  # all of them by others
    assert transform_workers.refused == 0
    left = list((tmp_path / "cache").glob("*/*"))
    assert bool(left) == (room > 100)


class Flickering:
    """Items that draw from two generators of the process, and take a while."""

    def __len__(self):
        return 203

    def __getitem__(self, row):
        time.sleep(0.001)
        return {"x": np.random.normal(size=3) + random.random(), "y": row}


@pytest.mark.parametrize("transform", [None, Noisy.transform])
def test_live_items_from_transform_workers(spec, tmp_path, transform):
    live = hop.partition(hop.live(Flickering()), tmp_path / "live", partitions=2)
    task = type("Live", (Noisy,), {"transform": transform, "seconds": 0.0})()
    spec = replace(spec, task=task, train=live, valid=live)
    batch_cache = Closely(tmp_path / "cache", 10**8)
    with transform_server(batch_maker(spec, batch_cache), tmp_path / "log") as one:
        feed, transform_workers = fed(spec, batch_cache, one)
        for source in sources(live):
            how = {"batch_size": 4, "seed": 7, "epoch": source.epoch, "drop_last": source.drop_last}
            wanted = expected(source, task) if transform else list(live.batches(source.partition, **how))
            assert same(list(feed.batches(source, None)), wanted)
        assert len(transform_workers) == 2
        transform_workers.staff(0)
    assert (batch_cache.puts, transform_workers.refused) == (0, 0)


@pytest.mark.parametrize(("returned", "words"), [(None, "returned None"), ((1, 2), "returned a tuple")])
def test_a_transform_must_return_the_batch(data, returned, words):
    task = type("Forgetful", (Noisy,), {"transform": lambda self, batch, rng: returned})()
    with pytest.raises(TaskError, match=rf"transform\(\) {words}; return the batch, a dict of arrays"):
        list(Feed(task).batches(sources(data)[0], None))


def pids_of_transform_workers(one: TransformServer, count: int = 2) -> list[int]:
    """Their process ids, when all of them are there."""
    pids: list[int] = []
    while len(pids) < count:
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(one.pid)], capture_output=True, text=True)
        pids = [int(word) for word in listed.stdout.split()]
    return pids


def test_a_feeder_that_dies_is_missed_by_nobody(spec, tmp_path):
    batch_cache = SharedBatchCache(tmp_path / "cache", 10**8)
    with transform_server(batch_maker(spec, batch_cache), tmp_path / "log") as one:
        feed, transform_workers = fed(spec, batch_cache, one)
        source = sources(spec.train)[0]
        batches = feed.batches(source, None)
        found = [next(batches)]
        for pid in pids_of_transform_workers(one):
            os.kill(pid, signal.SIGKILL)
        found += batches
        assert same(found, expected(source, spec.task))
        assert len(transform_workers) == 0
        # For the next unit there are others.
        source = sources(spec.train)[1]
        assert same(list(feed.batches(source, None)), expected(source, spec.task))
        assert len(transform_workers) == 2


def test_no_transform_server_no_transform_workers(spec, tmp_path):
    batch_cache = SharedBatchCache(tmp_path / "cache", 10**8)
    with transform_server(batch_maker(spec, batch_cache), tmp_path / "log") as one:
        os.kill(one.pid, signal.SIGKILL)
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        feed, transform_workers = fed(spec, batch_cache, one)
        source = sources(spec.train)[0]
        assert same(list(feed.batches(source, None)), expected(source, spec.task))
        assert len(transform_workers) == 0


def test_who_stops_in_the_middle_begins_with_others(spec, tmp_path):
    batch_cache = SharedBatchCache(tmp_path / "cache", 10**8)
    with transform_server(batch_maker(spec, batch_cache), tmp_path / "log") as one:
        feed, transform_workers = fed(spec, batch_cache, one)
        source = sources(spec.train)[0]
        batches: Any = feed.batches(source, None)
        next(batches)
        batches.close()
        assert len(transform_workers) == 0
        assert same(list(feed.batches(source, None)), expected(source, spec.task))


def test_a_transform_worker_that_is_no_longer_needed_ends_without_a_word(tmp_path, capsys):
    gate, log = tmp_path / "gate", tmp_path / "log"

    def make(unit: Any, number: int) -> float:
        while number and not gate.exists():
            time.sleep(0.001)
        return 0.0

    with capsys.disabled(), transform_server(make, log) as one:  # as in a worker, whose errors go to the log
        transform_workers = TransformWorkers(one.fork)
        transform_workers.staff(1)
        made: Any = transform_workers.make(["unit"], range(9))
        assert next(made) == (0, 0.0)
        (pid,) = pids_of_transform_workers(one, 1)
        made.close()
        gate.touch()
        while _exists(pid):
            time.sleep(0.001)
    assert log.read_text() == ""


def _exists(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_what_transform_workers_cannot_make_the_worker_makes(spec, tmp_path):
    class Built(Noisy):
        def transform(self, batch, rng):
            time.sleep(self.seconds)
            return {"x": batch["x"] * self.made_in_build}

    spec = replace(spec, task=Built())
    batch_cache = SharedBatchCache(tmp_path / "cache", 10**8)
    with transform_server(batch_maker(spec, batch_cache), tmp_path / "log") as one:
        spec.task.made_in_build = 2
        feed, transform_workers = fed(spec, batch_cache, one)
        for epoch in (1, 2):
            source = UnitBatches(spec.train, 0, 4, 7, epoch)
            assert same(list(feed.batches(source, None)), expected(source, spec.task))
        assert transform_workers.refused >= 3 and len(transform_workers) == 0


def test_what_a_transform_raises_is_raised_here(spec, tmp_path):
    class Broken(Noisy):
        def transform(self, batch, rng):
            time.sleep(self.seconds)
            raise ValueError("no such image")

    spec = replace(spec, task=Broken())
    batch_cache = SharedBatchCache(tmp_path / "cache", 10**8)
    with transform_server(batch_maker(spec, batch_cache), tmp_path / "log") as one:
        feed, _ = fed(spec, batch_cache, one)
        with pytest.raises(ValueError, match="no such image"):
            list(feed.batches(sources(spec.train)[0], None))


def test_a_feed_only_for_what_there_is_to_do(spec, tmp_path):
    class Simple(hop.TorchTask):
        pass

    assert open_feed(replace(spec, task=Simple()), tmp_path, []) is None
    source = sources(spec.train)[0]
    for feed in (open_feed(spec, None, []), open_feed(replace(spec, transform_workers=0), tmp_path, [])):
        assert feed is not None and feed._transform_workers is None
        assert same(list(feed.batches(source, None)), expected(source, spec.task))


ORPHANS = """
import os, sys, time
from hopfleet.worker.feeding.transform_workers import TransformServer, TransformWorkers

transform_server = TransformServer(lambda unit, number: time.sleep(60))
transform_workers = TransformWorkers(transform_server.fork)
transform_workers.staff(2)
made = transform_workers.make(0, range(5))
while len(os.popen(f"ps -o pid= --ppid {transform_server.pid}").read().split()) < 2:
    time.sleep(0.01)
children = os.popen(f"ps -o pid= --ppid {transform_server.pid}").read().split()
print(os.getpid(), transform_server.pid, *children, flush=True)
next(made)
"""


def test_nobody_outlives_the_worker():
    worker = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    pids = [int(word) for word in worker.stdout.readline().split()]
    assert len(pids) == 4 and pids[0] == worker.pid
    worker.kill()
    worker.wait()
    worker.stdout.close()
    deadline = time.monotonic() + 60
    while any(_works(pid) for pid in pids[1:]):
        assert time.monotonic() < deadline, "somebody is left"
        time.sleep(0.01)


def _works(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of one that ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# ----------------------------------------------------------------------------------------------- whole experiments


def fitted(name: str, **how: Any) -> list[bytes]:
    settings: dict[str, Any] = {"workers": 1, "backend": "local", **how}
    experiment = hop.Experiment(
        Noisy(),
        train=arrays(400),
        valid=arrays(600),
        space={"lr": hop.grid_search([0.01, 0.02, 0.03])},
        search=hop.Grid(max_epochs=2),
        partitions=2,
        run_options=hop.RunOptions(order="fixed"),
        batch_size=8,
        name=name,
        **settings,
    )
    results = experiment.fit(quiet=True)
    assert results.verify().ok
    shared = Versions(experiment.folder.checkpoints).shared_folder
    assert not list(shared.glob("batches-*"))
    return [trial.checkpoint.read_bytes() for trial in results.trials]


def test_whole_experiments_have_the_same_bits():
    wanted = fitted("alone", backend="inline", worker_options=hop.WorkerOptions(fuse="off"))
    assert fitted("shared", worker_options=hop.WorkerOptions(transform_workers=1), workers=2) == wanted


class Unclean(hop.TorchTask):
    """Changes its process in each transform, and depends on it."""

    def transform(self, batch, rng):
        seen = np.geterr()["over"] == "ignore", os.environ.get("OWN_VARIABLE"), Path.cwd() == Path("/")
        np.seterr(over="ignore")
        os.environ["OWN_VARIABLE"] = str(rng)
        os.chdir("/")
        return {**batch, "x": batch["x"] + zlib.crc32(repr(seen).encode())}


def test_batches_do_not_depend_on_which_others_a_transform_worker_has_made(spec, tmp_path):
    spec = replace(spec, task=Unclean())
    source = sources(spec.train)[1]
    unit = [source.epoch, source.partition, source.batch_size]

    def made(name: str, numbers: list[int]) -> dict[str, Any]:
        cache = SharedBatchCache(tmp_path / name, 1 << 20)
        make = batch_maker(spec, cache)
        for number in numbers:
            make(unit, number)
        return cache.get(source.name, numbers[-1])

    assert same([made("alone", [1])], [made("after", [0, 1])])
    assert "OWN_VARIABLE" not in os.environ
