"""The engine cache: a worker hands one cache to all of its sessions and frees it when it closes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.domain.trial import Trial
from hopfleet.frameworks.base import EngineCache, Framework, Session
from hopfleet.testing.tasks import CountingFramework, CountingTask
from hopfleet.worker.logs import copied
from hopfleet.worker.spec import WorkerSpec
from hopfleet.worker.worker import Worker


class Cached(CountingTask):
    """Notes the cache of each session that is opened."""

    def __init__(self) -> None:
        self.caches: list[EngineCache] = []

    @property
    def framework(self) -> Framework:
        return CachedFramework(self)


class CachedFramework(CountingFramework):
    def open(self, config: Any, *, cache: EngineCache | None = None, **rest: Any) -> Session:
        assert cache is not None
        cache.part(list).append(config)
        self._task.caches.append(cache)  # type: ignore[attr-defined]
        return super().open(config, **rest)


def test_a_worker_has_one_engine_cache_and_frees_it(tmp_path: Path) -> None:
    data = hop.partition({"x": np.arange(8.0)}, tmp_path / "data", partitions=1)
    task = Cached()
    places: dict[str, Any] = {"checkpoints": tmp_path, "logs": tmp_path}
    spec = WorkerSpec(task, data, None, **places, seed=0, device="cpu", threads=1, batch_size=4, drop_last=False)
    one, other = (Worker(name, spec, CPU, lambda events: None, capture=copied, guest=True) for name in ("w1", "w2"))
    for worker, number in ((one, 0), (one, 1), (other, 2)):
        worker.probe(Trial(f"t{number}", number, {"n": number}, 0, 1), 1)
    first, second, third = task.caches
    assert first is second is not third
    assert first.part(list) == [{"n": 0}, {"n": 1}] and third.part(list) == [{"n": 2}]
    one.close()
    assert first.part(list) == [] and third.part(list) == [{"n": 2}]
    other.close()
