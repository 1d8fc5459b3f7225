"""The adapter of Keras: opens sessions, and returns and exports trained models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hopfleet.domain.placement import CPU, Placement
from hopfleet.domain.trial import Config
from hopfleet.frameworks.base import EngineCache, Flotilla, Framework
from hopfleet.frameworks.in_turn import InTurn
from hopfleet.frameworks.keras import backend
from hopfleet.frameworks.keras.session import Hooks, KerasSession, Model


class KerasFramework(Framework):
    """Keras, for one task."""

    weights_file = "model.keras"

    def __init__(self, task: Any) -> None:
        self._task: Hooks = task
        self._transforms = task.transform is not None

    def open(
        self, config: Config, *, seed: int, placement: Placement, threads: int, cache: EngineCache | None = None
    ) -> KerasSession:
        return KerasSession(self._task, config, seed=seed, threads=threads)

    def model(self, config: Config, checkpoint: Path) -> Model:
        session = self.open(config, seed=0, placement=CPU, threads=os.cpu_count() or 1)
        session.load(checkpoint)
        return session.model

    def export(self, config: Config, checkpoint: Path, path: Path) -> None:
        self.model(config, checkpoint).save(path)

    @property
    def fusion_blocker(self) -> str:
        return ""

    def flotilla(self, sessions: Sequence[KerasSession], *, fast: bool = False) -> Flotilla:
        return InTurn(sessions)

    def gains(self, session: KerasSession, *, fast: bool) -> bool:
        return self._transforms

    def devices(self) -> tuple[str, int]:
        return "cpu", 1

    def settings(self) -> dict[str, Any]:
        return backend.settings()

    def apply(self, settings: Mapping[str, Any]) -> None:
        backend.make(settings)
