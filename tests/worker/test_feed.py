"""Transformed batches are the same in whichever process they are made, even if one dies, and no process remains."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.errors import UsageError
from hopfleet.frameworks.base import IsolationError
from hopfleet.store.versions.local import Versions
from hopfleet.support.machine import Machine, spare_cores
from hopfleet.worker.feeding.feed import Feed, Mean, Pace
from tests.helpers.feeding import Closely, Noisy, arrays, expected, same, sources

# A process of pytest has threads; the children of these tests use none of what those hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


class Private(Noisy):
    def transform(self, batch, rng):
        time.sleep(self.seconds)
        return {**batch, "x": batch["x"] * self.config["lr"]}


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


def test_the_same_batches_alone_and_with_a_shared_cache(data, tmp_path):
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


@pytest.mark.slow
def test_whole_experiments_have_the_same_bits():
    wanted = fitted("alone", backend="inline", worker_options=hop.WorkerOptions(fuse="off"))
    assert fitted("shared", worker_options=hop.WorkerOptions(transform_workers=1), workers=2) == wanted
