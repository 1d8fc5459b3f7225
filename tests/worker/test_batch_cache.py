"""Transformed batches in shared memory: what is kept, for how long, and what is given back."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest
import torch

from hopfleet.store.shared_memory import SharedMemory
from hopfleet.worker.feeding.shared_batch_cache import SharedBatchCache

# A process of pytest has threads; the children of these tests use none of what those hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


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
