"""What users put on a model besides its variables, which travels with it: further optimizers, and plain values.

A GAN has two optimizers, and only one of them is ``model.optimizer``; a model may count its steps in an attribute.
Keras saves neither. Optimizers are found by the attributes of the model, its layers and the task, and plain values by
those of the model and its layers.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from hopfleet.errors import TaskError
from hopfleet.frameworks.state.tree import PLAIN, Tree

MISSING = object()


class Belongings:
    """The belongings of one model, each known by the place where it is."""

    def __init__(self, model: Any, task: object) -> None:
        self._model = model
        self._task = task
        #: The plain values as ``build`` left them: those that are the same are not saved.
        self._built = {place: _digest(found) for place, found in self._values().items()}

    def state(self) -> Tree:
        values = self._values()
        changed = {place: found for place, found in values.items() if _digest(found) != self._built.get(place)}
        places = {id(each): place for place, each in enumerate(self._model.variables)}
        return {
            "optimizers": {name: _saved(each, places, name) for name, each in self.optimizers().items()},
            "values": changed,
        }

    def restore(self, state: Tree) -> None:
        optimizers, variables = self.optimizers(), self._model.variables
        for name, saved in state["optimizers"].items():
            if name not in optimizers:
                raise TaskError(f"build() returned a model without the optimizer {name!r}, which the saved version has")
            _restored(optimizers[name], saved, variables, name)
        layers = self._layers()
        for place, found in state["values"].items():
            number, _, name = place.partition(" ")
            setattr(layers[int(number)], name, found)

    def optimizers(self) -> dict[str, Any]:
        """Return the optimizers besides ``model.optimizer``, by the attributes that lead to them."""
        own = self._model.optimizer
        seen = {id(own), id(getattr(own, "inner_optimizer", None)), *map(id, getattr(own, "optimizers", ()))}
        found: dict[str, Any] = {}
        # Keras numbers the names of layers by what the process made before, so they are known by their places.
        layers = [(f"layer {number}" if number else "model", layer) for number, layer in enumerate(self._layers())]
        holders = [*layers, ("task", self._task)]
        for holder, each in holders:
            for name, optimizer in _optimizers(getattr(each, "__dict__", {})):
                if id(optimizer) not in seen:
                    seen.add(id(optimizer))
                    found[f"{holder}.{name}"] = optimizer
        return found

    def finish(self) -> None:
        """Give variables the values that training ends with: the averages of optimizers with ``use_ema``."""
        own = self._model.optimizer
        if own.built:
            own.finalize_variable_values(self._model.trainable_variables)
        for each in self.optimizers().values():
            if each.built:
                each.finalize_variable_values(_targets(each))

    def _layers(self) -> list[Any]:
        return [self._model, *self._model._flatten_layers(include_self=False)]

    def _values(self) -> dict[str, Any]:
        """Return the plain values of the user's own classes, by the number of the layer and the name."""
        found = {}
        for number, layer in enumerate(self._layers()):
            if type(layer).__module__.partition(".")[0] == "keras":
                continue
            for name, value in vars(layer).items():
                if name.startswith("_") or name in _usual():
                    continue
                if (plain := plain_value(value)) is not MISSING:
                    found[f"{number} {name}"] = plain
        return found


@functools.cache
def _usual() -> frozenset[str]:
    """Return the attributes that Keras itself sets on any model."""

    class Bare(keras.Model):  # type: ignore[misc]
        pass

    model = Bare()
    model.compile(optimizer="sgd", loss="mse")
    return frozenset([*vars(model), *vars(keras.layers.Dense(1)), "stop_training", "optimizer"])


def _optimizers(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the optimizers in nested containers, with the attributes and keys that lead to them."""
    pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
    for key, value in list(pairs):
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, keras.optimizers.Optimizer):
            yield name, value
        elif isinstance(value, list | tuple | dict) and not name.startswith("_"):
            yield from _optimizers(value, name)


def _targets(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer was built for."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return list(inner._trainable_variables)


def _saved(optimizer: Any, places: Mapping[int, int], name: str) -> Tree:
    targets = [places.get(id(each)) for each in _targets(optimizer)] if optimizer.built else []
    if None in targets:
        raise TaskError(
            f"optimizer {name}: trains a variable that the model does not have, so it cannot hop with it; assign the "
            "layer or the variable to an attribute of the model"
        )
    values = [np.array(keras.ops.convert_to_numpy(each.value)) for each in optimizer.variables]
    return {"built": bool(optimizer.built), "targets": targets, "variables": values}


def _restored(optimizer: Any, saved: Tree, variables: list[Any], name: str) -> None:
    if saved["built"] and not optimizer.built:
        optimizer.build([variables[place] for place in saved["targets"]])
    if [tuple(each.shape) for each in optimizer.variables] != [each.shape for each in saved["variables"]]:
        raise TaskError(f"build() returned a model with another optimizer {name} for the same configuration")
    for each, value in zip(optimizer.variables, saved["variables"], strict=True):
        each.assign(value)


def plain_value(value: Any) -> Any:
    """Return a value of numbers, texts and arrays in Python's own containers; MISSING for any other."""
    if type(value) in PLAIN or isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        found = {key: plain_value(each) for key, each in value.items()}
        return found if all(type(key) in PLAIN for key in found) and MISSING not in _ids(found.values()) else MISSING
    for kind in (list, tuple, set):
        if isinstance(value, kind) and (kind is not tuple or type(value) is tuple):
            items = [plain_value(each) for each in value]
            return MISSING if MISSING in _ids(items) else kind(items)
    return MISSING


def _ids(values: Any) -> list[Any]:
    """Return which values are missing; arrays cannot be compared with ``in``."""
    return [value for value in values if value is MISSING]


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(pickle.dumps(value, protocol=5)).digest()
