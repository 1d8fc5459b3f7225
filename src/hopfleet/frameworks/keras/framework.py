"""The adapter of Keras: opens sessions, and returns and exports trained models."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from hopfleet.domain.placement import CPU, Placement
from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError, describe
from hopfleet.frameworks.base import EngineCache, Flotilla, Framework
from hopfleet.frameworks.in_turn import InTurn
from hopfleet.frameworks.keras import backend, surroundings
from hopfleet.frameworks.keras.session import Hooks, KerasSession, Model
from hopfleet.frameworks.process_settings import ProcessSetting
from hopfleet.support.files import move, remove_file, write_atomically


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
        session.finish()
        return session.model

    def export(self, config: Config, checkpoint: Path, path: Path) -> float:
        return self.convert(self.model(config, checkpoint), "keras", path, keras.Model.get_weights)

    formats = ("keras",)

    def convert(self, model: Model, kind: str, path: Path, call: Callable[[Model], object]) -> float:
        found: list[float] = []

        def fill(place: Path) -> None:
            named = place.with_name(f"{place.name}.keras")  # Keras writes and reads no other ending
            try:
                model.save(named)
                found.append(deviation(call(model), call(_read_back(named, model))))
                move(named, place)
            finally:
                remove_file(named)

        write_atomically(path, fill, durable=True)
        return found[0]

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

    def process_settings(self) -> Sequence[ProcessSetting]:
        return surroundings.process_settings()


def _read_back(path: Path, model: Model) -> Model:
    """Return the model in a file that was just written."""
    own = {type(layer).__name__: type(layer) for layer in model._flatten_layers()}
    own = {name: kind for name, kind in own.items() if not kind.__module__.startswith("keras.")}
    try:
        return keras.models.load_model(path, custom_objects=own, compile=False, safe_mode=False)
    except Exception as error:
        raise TaskError(
            f"Keras cannot read back the model that it wrote ({describe(error)}); decorate your own classes and "
            "functions with keras.saving.register_keras_serializable(), let get_config() return all arguments of "
            "__init__(), or use format='bundle', which takes any model"
        ) from error


def deviation(wanted: object, found: object) -> float:
    """Return the largest difference between nested outputs: infinite for other shapes and values other than numbers."""
    largest = 0.0
    for one, other in zip(*(map(np.asarray, keras.tree.flatten(each)) for each in (wanted, found)), strict=True):
        if one.shape != other.shape:
            return math.inf
        if one.dtype.kind in "fc":
            gaps = np.abs(one - other)[~(np.isnan(one) & np.isnan(other))]
            largest = max(largest, float(np.nan_to_num(gaps, nan=math.inf).max(initial=0.0)))
        elif (one != other).any():
            return math.inf
    return largest
