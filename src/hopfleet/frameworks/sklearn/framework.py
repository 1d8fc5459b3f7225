"""The adapter of scikit-learn: opens sessions and returns fitted estimators."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hopfleet.domain.placement import CPU, Placement
from hopfleet.domain.trial import Config
from hopfleet.frameworks.base import EngineCache, Flotilla, Framework
from hopfleet.frameworks.in_turn import InTurn
from hopfleet.frameworks.sklearn.scores import Estimator
from hopfleet.frameworks.sklearn.session import Hooks, SklearnSession


class SklearnFramework(Framework):
    """scikit-learn, for one task. ``own_metrics`` tells whether the task overrides ``metrics``."""

    session = SklearnSession

    def __init__(self, task: Hooks, *, own_metrics: bool) -> None:
        self._task, self._own_metrics = task, own_metrics

    def open(
        self, config: Config, *, seed: int, placement: Placement, threads: int, cache: EngineCache | None = None
    ) -> SklearnSession:
        cache = EngineCache() if cache is None else cache
        own = self._own_metrics
        return self.session(self._task, config, seed=seed, threads=threads, cache=cache, own_metrics=own)

    def model(self, config: Config, checkpoint: Path) -> Estimator:
        session = self.open(config, seed=0, placement=CPU, threads=os.cpu_count() or 1)
        session.load(checkpoint)
        return session.model

    @property
    def fusion_blocker(self) -> str:
        return ""

    def flotilla(self, sessions: Sequence[SklearnSession], *, fast: bool = False) -> Flotilla:
        return InTurn(sessions)

    def devices(self) -> tuple[str, int]:
        return "cpu", 1
