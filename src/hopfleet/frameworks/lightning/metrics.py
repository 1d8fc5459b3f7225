"""Metrics of torchmetrics that a module logs in validation: their states, merged as on several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from hopfleet.errors import TaskError
from hopfleet.frameworks.whole_set import States

REDUCTIONS = ("dim_zero_sum", "dim_zero_cat", "dim_zero_mean", "dim_zero_min", "dim_zero_max")
"""The functions of torchmetrics that stand for the words in ``add_state(dist_reduce_fx=...)``."""


def is_metric(value: object) -> bool:
    """Whether a value is a metric of torchmetrics."""
    return not torch.is_tensor(value) and hasattr(value, "_reductions") and hasattr(value, "_forward_cache")


def state_of(name: str, metric: Any) -> States:
    """Return the state of a metric after the rows of one batch."""
    if not metric.update_called:
        raise TaskError(f"self.log({name!r}, metric): call the metric with the batch first, e.g. metric(x, y)")
    for key, reduce in metric._reductions.items():
        if not _merges(metric, key, reduce):
            raise TaskError(
                f"self.log({name!r}, metric): the state {key!r} of {type(metric).__name__} must be merged by 'sum', "
                f"'cat', 'mean', 'min' or 'max', got dist_reduce_fx={getattr(reduce, '__name__', reduce)}, which "
                "does not tell how the states of batches are joined: name one of these words in add_state()"
            )
    return States(Merged(metric), {key: getattr(metric, key) for key in metric._reductions})


def _merges(metric: Any, key: str, reduce: Any) -> bool:
    """Whether the state of a metric after several batches follows from its states after each of them.

    Metrics of torchmetrics itself also join states in compute(), as they do on several devices.
    """
    known = type(metric).__module__.startswith("torchmetrics.")
    return known or isinstance(getattr(metric, key), list) or getattr(reduce, "__name__", "") in REDUCTIONS


def place_of(name: str, metric: Any, module: torch.nn.Module) -> int:
    """Return the number of a metric among the parts of a module."""
    for place, part in enumerate(module.modules()):
        if part is metric:
            return place
    raise TaskError(f"self.log({name!r}, metric): the module does not have it; assign the metric to an attribute of it")


def check_logged(module: torch.nn.Module, values: Iterable[Any]) -> None:
    """Raise TaskError if a step has updated metrics, and neither logged one of them nor taken a value from them."""
    updated = {name: part for name, part in module.named_modules() if is_metric(part) and part.update_called}
    taken = any(part._forward_cache is not None or part._computed is not None for part in updated.values())
    if updated and not taken and not any(isinstance(value, States) for value in values):
        name = next(iter(updated))
        raise TaskError(
            f"validation_step() updates the metric self.{name}, but does not log it: partitions of the validation data "
            f"are evaluated apart, on any worker; call self.log({name!r}, self.{name}) in it"
        )


@contextlib.contextmanager
def fresh(module: torch.nn.Module) -> Iterator[None]:
    """Let the metrics of a module begin anew, and have their present states again afterwards."""
    metrics: list[Any] = [each for each in module.modules() if is_metric(each)]
    before = [_attributes(metric) for metric in metrics]
    for metric in metrics:
        for key in metric._reductions:  # reset() empties lists in place
            if isinstance(kept := getattr(metric, key), list):
                setattr(metric, key, list(kept))
        metric.reset()
    try:
        yield
    finally:
        for metric, kept in zip(metrics, before, strict=True):
            for key, value in kept.items():
                setattr(metric, key, value)


def _attributes(metric: Any) -> dict[str, Any]:
    return {key: getattr(metric, key) for key in (*metric._reductions, "_update_count", "_computed", "_forward_cache")}


class Merged:
    """Makes the value of a metric from its states after each batch."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def __call__(self, states: Sequence[Mapping[str, Any]]) -> Any:
        metric = self._metric
        before = _attributes(metric)
        metric._update_count, metric._computed = 1, None
        try:
            for key, reduce in metric._reductions.items():
                some = [state[key] for state in states]
                joined: Any
                if isinstance(some[0], list):
                    joined = [torch.from_numpy(each).to(metric.device) for one in some for each in one]
                else:
                    joined = torch.stack([torch.from_numpy(each) for each in some]).to(metric.device)
                setattr(metric, key, joined if reduce is None or isinstance(joined, list) else reduce(joined))
            return metric.compute()
        finally:
            for key, value in before.items():
                setattr(metric, key, value)
