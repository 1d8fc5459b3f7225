"""Limits that metrics must keep, and which of several results no other one beats in everything."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopfleet.errors import UsageError

PARAMS = "params"
"""The metric that Hopfleet counts itself where it is asked for: the number of trainable parameters."""

_LIMIT = re.compile(r"\s*([^\s<>=]+)\s*(<=|>=|<|>)\s*([^\s<>=]+)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on a metric."""

    metric: str
    relation: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Limit:
        """A limit from text such as ``params <= 100000``."""
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
            "for anything else give a function of the configuration"
        )

    def excess(self, metrics: Mapping[str, float]) -> float:
        """How far beyond the bound a metric is: not above 0 where the limit is kept; infinite if it is missing."""
        value = metrics.get(self.metric, math.nan)
        if math.isnan(value):
            return math.inf
        beyond = value - self.bound if self.relation[0] == "<" else self.bound - value
        return beyond if beyond or "=" in self.relation else math.ulp(0.0)

    def __str__(self) -> str:
        return f"{self.metric} {self.relation} {str(self.bound).removesuffix('.0')}"


def feasible(limits: Sequence[Limit], metrics: Mapping[str, float]) -> bool:
    """Whether metrics keep all limits."""
    return all(limit.excess(metrics) <= 0 for limit in limits)


def costs(objectives: Sequence[tuple[str, str]], metrics: Mapping[str, float]) -> tuple[float, ...] | None:
    """All objectives as numbers to be made small; None if one is missing or not a number."""
    values = [metrics.get(name, math.nan) for name, _ in objectives]
    if any(math.isnan(value) for value in values):
        return None
    return tuple(-value if mode == "max" else value for value, (_, mode) in zip(values, objectives, strict=True))


def front(points: Sequence[tuple[float, ...]]) -> list[int]:
    """Which points no other one beats: is at least as small in everything, and smaller in something. In their order."""
    kept: list[int] = []
    # Whoever beats a point comes before it in this order.
    for place in sorted(range(len(points)), key=lambda place: points[place]):
        point = points[place]
        if not any(points[other] != point and _no_worse(points[other], point) for other in kept):
            kept.append(place)
    return sorted(kept)


def _no_worse(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
