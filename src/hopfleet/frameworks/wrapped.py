"""Adapters around another adapter: questions about devices, settings and errors go to the inner one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache, Framework, Task
from hopfleet.frameworks.process_settings import ProcessSetting


class WrappedTask(Task):
    """A task around another task."""

    def __init__(self, task: Task) -> None:
        self.inner = task
        self.preload = task.preload
        self.transform = task.transform

    def initialize_worker(self) -> None:
        self.inner.initialize_worker()


class WrappedFramework(Framework):
    """An adapter around another adapter."""

    def __init__(self, inner: Framework) -> None:
        self.inner = inner

    def devices(self) -> tuple[str, int]:
        return self.inner.devices()

    def settings(self) -> dict[str, Any]:
        return self.inner.settings()

    def apply(self, settings: Mapping[str, Any]) -> None:
        self.inner.apply(settings)

    def begin_worker(self) -> None:
        self.inner.begin_worker()

    def process_settings(self) -> Sequence[ProcessSetting]:
        return self.inner.process_settings()

    def modules(self, strategy: str) -> Sequence[str]:
        return self.inner.modules(strategy)

    def check_shared(self, cache: EngineCache) -> None:
        self.inner.check_shared(cache)

    def spare_memory(self, placement: Placement) -> int:
        return self.inner.spare_memory(placement)

    def peak_memory(self, placement: Placement) -> int:
        return self.inner.peak_memory(placement)

    def used_memory(self, placement: Placement) -> int:
        return self.inner.used_memory(placement)

    def out_of_memory(self, error: BaseException) -> bool:
        return self.inner.out_of_memory(error)

    def broken(self, error: BaseException) -> bool:
        return self.inner.broken(error)

    def explain(self, error: BaseException) -> None:
        self.inner.explain(error)

    def free_memory(self) -> None:
        self.inner.free_memory()
