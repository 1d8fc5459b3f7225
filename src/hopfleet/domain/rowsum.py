"""Metrics summed over rows without rounding.

Validation partitions are evaluated by any free worker, so partial sums arrive in any order. As exact fractions they add
up to the same mean in every order; the only rounding happens when the mean is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class RowSum:
    """The sum of a metric over ``rows`` rows. ``total`` is a float only if it is not finite."""

    total: Fraction | float
    rows: int

    @classmethod
    def of(cls, mean: float, rows: int) -> RowSum:
        """Return the sum over ``rows`` rows with mean ``mean``."""
        if not math.isfinite(mean):
            return cls(float(mean), rows)
        return cls(Fraction(mean) * rows, rows)

    @classmethod
    def over(cls, means: Sequence[float], rows: Sequence[int]) -> RowSum:
        """Return the sum over pieces, given by their means and rows; equal to adding up ``of`` of each piece."""
        everything = sum(rows)
        infinite = [mean for mean in means if not math.isfinite(mean)]
        if infinite:
            return cls(sum(infinite), everything)
        pieces: dict[int, list[float]] = {}
        for mean, count in zip(means, rows, strict=True):
            pieces.setdefault(count, []).append(mean)
        return cls(sum((_exact(some) * count for count, some in pieces.items()), Fraction(0)), everything)

    def __add__(self, other: RowSum) -> RowSum:
        rows = self.rows + other.rows
        # An exact total may be too large for a float, so it is never added to one.
        infinite = [total for total in (self.total, other.total) if isinstance(total, float)]
        return RowSum(sum(infinite), rows) if infinite else RowSum(self.total + other.total, rows)

    @property
    def mean(self) -> float:
        return float(self.total / self.rows) if self.rows else math.nan

    def encode(self) -> list[object]:
        """Return the sum as JSON: the total as text, and the rows."""
        return [str(self.total), self.rows]

    @classmethod
    def decode(cls, value: list[object]) -> RowSum:
        total, rows = value
        text = str(total)
        return cls(float(text) if text in ("nan", "inf", "-inf") else Fraction(text), int(str(rows)))


def _exact(values: list[float]) -> Fraction:
    """Return the exact sum of finite numbers: add up the remainders of ``fsum``, which rounds, until none is left."""
    total = Fraction(0)
    try:
        while part := math.fsum(values):
            total += Fraction(part)
            values = [*values, -part]
    except OverflowError:  # the sum of large numbers may exceed a float
        return sum(map(Fraction, values), total)
    return total


def add(sums: Iterable[Mapping[str, RowSum]]) -> dict[str, RowSum]:
    """Add the sums of several pieces, metric by metric."""
    result: dict[str, RowSum] = {}
    for piece in sums:
        for name, value in piece.items():
            result[name] = result[name] + value if name in result else value
    return result


def means(sums: Mapping[str, RowSum]) -> dict[str, float]:
    """Return the mean of each metric."""
    return {name: value.mean for name, value in sums.items()}
