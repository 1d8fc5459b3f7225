"""The model of a trial, or the models of several as one, and a few rows to try it on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch, Task
from hopfleet.runs.guest import Guest, transformed
from hopfleet.runs.opened_run import OpenedRun, as_one
from hopfleet.runs.verify import find_data

EXAMPLES = 8
"""Rows with which an exported model is compared."""

TOLERANCE = 1e-3
"""The largest deviation of outputs that is taken for rounding."""


def joined_model(results: OpenedRun[Any], members: Mapping[str, float], task: Task, *, logits: bool) -> Any:
    """Return the model of a trial, or one model of several."""
    if len(members) == 1:
        return results[next(iter(members))].model(task)
    return joined(results, members, task, logits=logits)[0]


def joined(results: OpenedRun[Any], members: Mapping[str, float], task: Task, *, logits: bool) -> tuple[Any, Guest]:
    """Return the models of trials as one, and the first trial, whose hooks run with the model."""
    results.check_shared_folds()
    found = [(*results[name].built(task), weight) for name, weight in members.items()]
    models = [model for each, _, _ in found for model in each]
    shares = [weight / len(each) for each, _, weight in found for _ in each]
    return as_one(task, models, shares, logits=logits), found[0][1]


def calling(results: OpenedRun[Any], members: Mapping[str, float], task: Task) -> Callable[[Any], object]:
    """Return a function that runs the task's code with a model on a few training rows."""
    data = find_data(results.folder, "train")
    batch = example(results, task)
    if type(task).predict is not Task.predict:
        return lambda model: task.predict(model, batch)
    dtypes = {name: column.dtype for name, column in data.columns.items()}
    with results[next(iter(members))].opened(task) as (framework, config, _):
        measure = framework.measuring(config, dtypes)
    return lambda model: measure(model, batch)


def example(results: OpenedRun[Any], task: Task) -> Batch:
    """Return the first training rows, as the task's hooks get them in evaluation."""
    return next(transformed(task, [find_data(results.folder, "train").head(EXAMPLES)]))


def check_deviation(path: Path, deviation: float) -> None:
    """Raise TaskError if outputs differ by more than rounding."""
    if not deviation <= TOLERANCE:
        raise TaskError(
            f"{path}: is not written: read back, its outputs on {EXAMPLES} rows deviate by {deviation:.3g}, and "
            f"rounding explains at most {TOLERANCE:g}; check that the model computes the same each time in evaluation"
        )
