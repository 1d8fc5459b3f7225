"""Processes that transform batches: the same batches, whatever becomes of the processes."""

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

import hopfleet as hop
from hopfleet.errors import TaskError
from hopfleet.frameworks.folds import FoldedTask
from hopfleet.worker.feeding.feed import Feed, UnitBatches, batch_maker, open_feed
from hopfleet.worker.feeding.shared_batch_cache import SharedBatchCache
from hopfleet.worker.feeding.transform_workers import TransformServer, TransformWorkers
from hopfleet.worker.spec import WorkerSpec
from tests.helpers.feeding import Closely, Noisy, arrays, expected, same, sources

# A process of pytest has threads; the children of these tests use none of what those hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


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


@pytest.mark.slow
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


def test_a_transform_worker_that_dies_changes_no_batch_and_is_replaced(spec, tmp_path):
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
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.01)


def _works(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of one that ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


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
    unit = [source.epoch, source.partition, source.batch_size, source.dataset.fingerprint]

    def made(name: str, numbers: list[int]) -> dict[str, Any]:
        cache = SharedBatchCache(tmp_path / name, 1 << 20)
        make = batch_maker(spec, cache)
        for number in numbers:
            make(unit, number)
        return cache.get(source.name, numbers[-1])

    assert same([made("alone", [1])], [made("after", [0, 1])])
    assert "OWN_VARIABLE" not in os.environ


def test_a_transform_worker_makes_the_batches_of_a_fold_from_its_own_rows(spec, tmp_path):
    rows = arrays()
    fold = hop.partition({**rows, "x": -rows["x"]}, tmp_path / "fold", partitions=len(spec.train))
    cache = SharedBatchCache(tmp_path / "cache", 1 << 20)
    make = batch_maker(replace(spec, task=FoldedTask(spec.task, 2, len(fold), [fold])), cache)
    for data in (fold, spec.train):
        source = sources(data)[0]
        make([source.epoch, source.partition, source.batch_size, data.fingerprint], 1)
        assert same([cache.get(source.name, 1)], expected(source, spec.task)[1:2])
