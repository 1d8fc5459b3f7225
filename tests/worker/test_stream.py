"""Batches picked from a partition that stays on the device are those that are read from its file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU, Placement
from hopfleet.worker.feeding.stream import DeviceCache, Stream, valid_batch


class Task(hop.TorchTask):
    def build(self, config):
        model = torch.nn.Linear(3, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(50, 3)).astype("float32"), "y": rng.integers(0, 9, 50)}
    return hop.partition(arrays, tmp_path / "data", partitions=2)


def stream(data, free, device_cache=None, **how):
    session = Task().framework.open({}, seed=0, placement=CPU, threads=1)
    device_cache = device_cache or DeviceCache(lambda: free)
    return Stream(data, 1, session=session, device_cache=device_cache, batch_size=8, **how)


@pytest.mark.parametrize("how", [{}, {"epoch": 2, "seed": 5}, {"epoch": 1, "drop_last": True}])
def test_the_same_batches(data, how):
    read, picked = list(stream(data, 0, **how)), list(stream(data, 10**9, **how))
    assert len(read) == len(picked) == len(stream(data, 0, **how))
    for one, other in zip(read, picked, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)


def test_writing_into_a_batch_does_not_reach_what_is_kept(data):
    device_cache = DeviceCache(lambda: 10**9)
    for _ in range(2):
        first = next(iter(stream(data, 0, device_cache)))
        assert torch.equal(first["x"], next(iter(stream(data, 0)))["x"])
        first["x"].zero_()


def test_what_does_not_fit_is_read(data, tmp_path):
    assert data.partition_bytes(0) == 25 * (3 * 4 + 8)
    asked: list[int] = []
    device_cache = DeviceCache(lambda: asked.append(1) or 1000)
    assert device_cache.find(data, 0, lambda batch, dtypes: pytest.fail("moved")) is None
    texts = hop.partition({"x": ["a", "bc", "d"], "y": np.arange(3)}, tmp_path / "texts", partitions=1)
    assert texts.partition_bytes(0) is None
    assert device_cache.find(texts, 0, lambda batch, dtypes: pytest.fail("moved")) is None
    assert asked == [1]


def test_what_is_kept_is_prepared_once_and_can_be_given_back(data):
    device_cache = DeviceCache(lambda: 10**9)
    calls: list[int] = []
    prepare = lambda batch, dtypes: calls.append(len(batch["y"])) or batch  # noqa: E731
    assert device_cache.find(data, 0, prepare) is device_cache.find(data, 0, prepare)
    device_cache.clear()
    device_cache.find(data, 0, prepare)
    assert calls == [25, 25]


def test_small_rows_are_evaluated_many_at_once(tmp_path):
    small = hop.partition({"x": np.zeros((4096, 8), np.float32)}, tmp_path / "small", partitions=2)
    large = hop.partition({"x": np.zeros((64, 16384), np.float32)}, tmp_path / "large", partitions=2)
    assert 4096 < valid_batch(small) <= 8192
    assert valid_batch(large) == valid_batch(large, Placement.on("cuda:0")) == 256
    assert valid_batch(small, Placement.on("cuda:0")) == valid_batch(small)
    medium = hop.partition({"x": np.zeros((64, 1024), np.float32)}, tmp_path / "medium", partitions=2)
    assert valid_batch(medium) == 256
    assert valid_batch(medium, Placement.on("cuda:0")) == 1024
