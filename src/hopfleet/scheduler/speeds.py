"""Classes of workers by speed, as expected beforehand and measured since."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hopfleet.scheduler.estimates import Estimates

EQUAL = 1.1
"""Ratio of unit times up to which all workers are taken for equally fast."""

ALIKE = 1.02
"""Ratio of unit times up to which two workers are of one class, unless all are."""

SAMPLE = 3
"""Trials whose expected times are compared."""

Classes = tuple[tuple[str, ...], ...]
"""The workers of each class, the fastest class first."""


def classes(estimates: Estimates, workers: Sequence[str], trials: Sequence[int]) -> Classes:
    """Divide workers into classes; ``trials`` are the numbers of some trials."""
    slowness = {
        worker: median(estimates.slowness_to(worker, workers[0], number) for number in trials or (0,))
        for worker in workers
    }
    if not workers or max(slowness.values()) <= EQUAL * min(slowness.values()):
        return (tuple(workers),)
    found: list[list[str]] = []
    for worker in sorted(workers, key=slowness.__getitem__):
        if not found or slowness[worker] > ALIKE * slowness[found[-1][0]]:
            found.append([])
        found[-1].append(worker)
    # Within a class, differences may be due to rounding.
    joined = {worker: number for number, worker in enumerate(workers)}
    return tuple(tuple(sorted(members, key=joined.__getitem__)) for members in found)
