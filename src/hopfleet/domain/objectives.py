"""Limits on metrics, and the Pareto front of several results."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopfleet.domain.rowsum import RowSum
from hopfleet.errors import UsageError

PARAMS = "params"
"""Name of the metric that Hopfleet computes itself on request: the number of trainable parameters."""

EPOCH = "epoch"
"""Name of the metric that the controller computes on request: the number of the epoch. Maximised, the last is best."""

_LIMIT = re.compile(r"\s*([^\s<>=]+)\s*(<=|>=|<|>)\s*([^\s<>=]+)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on a metric."""

    metric: str
    relation: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Parse text such as ``params <= 100000``."""
        found = _LIMIT.fullmatch(text)
        try:
            if found is not None:
                limit = cls(found[1], found[2], float(found[3]))
                if math.isfinite(limit.bound):
                    return limit
        except ValueError:
            pass
        raise UsageError(
            f"constraint {text!r}: must be a metric, one of <=, <, >=, >, and a number, e.g. 'params <= 100000'; "
            "for other constraints, pass a function of the configuration"
        )

    def excess(self, metrics: Mapping[str, float]) -> float:
        """Return how far a metric exceeds the bound: at most 0 within the limit, infinity if the metric is missing."""
        value = metrics.get(self.metric, math.nan)
        if math.isnan(value):
            return math.inf
        beyond = value - self.bound if self.relation[0] == "<" else self.bound - value
        return beyond if beyond or "=" in self.relation else math.ulp(0.0)

    def __str__(self) -> str:
        return f"{self.metric} {self.relation} {str(self.bound).removesuffix('.0')}"


def warning_of_nan(sums: Mapping[str, RowSum], goal: str, epoch: int) -> str:
    """Return a warning if a metric is NaN after an epoch, with the rank of the trial; an empty string if none is."""
    names = sorted(name for name, total in sums.items() if math.isnan(total.mean))
    if not names:
        return ""
    if goal not in names:
        return f"the metric {names[0]!r} is NaN after epoch {epoch}"
    rank = "NaN counts as worse than every number, so the trial is ranked by its other epochs, or last"
    return f"the metric {goal!r} is NaN after epoch {epoch}; {rank}"


def feasible(limits: Sequence[Limit], metrics: Mapping[str, float]) -> bool:
    """Whether metrics are within all limits."""
    return all(limit.excess(metrics) <= 0 for limit in limits)


def costs(objectives: Sequence[tuple[str, str]], metrics: Mapping[str, float]) -> tuple[float, ...] | None:
    """Return all objectives as costs to minimise; None if one is missing or NaN."""
    values = [metrics.get(name, math.nan) for name, _ in objectives]
    if any(math.isnan(value) for value in values):
        return None
    return tuple(-value if mode == "max" else value for value, (_, mode) in zip(values, objectives, strict=True))


def front(points: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the indices of the Pareto front, in order: points that no other point dominates."""
    kept: list[int] = []
    # A point that dominates another comes before it in this order.
    for index in sorted(range(len(points)), key=lambda index: points[index]):
        point = points[index]
        if not any(points[other] != point and _no_worse(points[other], point) for other in kept):
            kept.append(index)
    return sorted(kept)


def _no_worse(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
