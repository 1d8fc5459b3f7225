"""The steps of a unit, as ``model.fit`` takes them but without an epoch.

``train_on_batch`` fetches the metrics after every batch and, on JAX, copies all variables twice. So it takes the first
step alone, which builds whatever is missing, and the model's compiled step takes all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from hopfleet.domain.rowsum import RowSum, add
from hopfleet.frameworks.example import Example

Logs = Mapping[str, Any]
"""Metrics by their names."""


def train(model: Any, first: Example, others: Iterator[Example]) -> Logs:
    """Train a model whose metrics are reset on some batches; return the metrics over all of their rows."""
    logs: Logs = model.train_on_batch(*first, return_dict=True)
    if keras.backend.backend() == "jax":
        return _flat(_train_in_jax(model, others, logs))
    for example in others:
        logs = model.train_function([tuple(example)])
    return _flat(logs)


def _train_in_jax(model: Any, others: Iterator[Example], logs: Logs) -> Logs:
    """Keep the variables outside of the model meanwhile: steps are functions of them, and return the new ones."""
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([variable.value for variable in group] for group in groups)
    try:
        for example in others:
            logs, state = model.train_function(state, iter([tuple(example)]))
    finally:
        for group, values in zip(groups, state, strict=True):
            for variable, value in zip(group, values, strict=True):
                variable.assign(value)
    return logs


def train_by_batch(
    step: Callable[..., Logs], model: Any, first: Example, others: Iterator[Example]
) -> dict[str, RowSum]:
    """Train on some batches with a step of the user's own, which returns the metrics of its batch."""
    sums = [_step(step, model, first)]
    sums += [_step(step, model, example) for example in others]
    return add(sums)


def _step(step: Callable[..., Logs], model: Any, example: Example) -> dict[str, RowSum]:
    model.reset_metrics()
    rows = len(keras.tree.flatten(example.x)[0])
    return {name: RowSum.of(float(value), rows) for name, value in step(model, *example).items()}


def _flat(logs: Logs) -> dict[str, Any]:
    """Return metrics without those inside of others: a metric may have several values."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return found
