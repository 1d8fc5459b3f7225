"""Vector rearrangement: the approximation algorithm that the Cerebro paper compares with (after Sevastyanov and Fiala).

All workers run the configurations in the same circular order, each from a different starting place. If the order keeps
the workers' accumulated loads about equal at every place, and the circle is long enough for the starting places to lie
well apart, then no two workers ever need the same configuration, and no worker waits. With p workers, Lmax the largest
load of a worker and Tmax the longest time of one configuration on one worker, this works if Lmax >= (p² + p - 1) Tmax;
then the timetable is optimal. Otherwise the places on the circle serve as priorities only, and the makespan is at most
C* + (p - 1) Tmax, as for every rule that keeps workers busy. Both statements hold for shops whose workers and
configurations are all ready at 0; several units of a pair count as one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopfleet.planner.grid import Grid, Order
from hopfleet.planner.rules import by_priority
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable

Matrix = NDArray[np.float64]

TINY = 1e-9
"""Weights this close to 0 or 1 count as 0 or 1."""
BLOCK = 48
"""Weights moved per computation of the null space; more would take longer and accumulate rounding errors."""


def rearrange(shop: Shop) -> Timetable:
    """Return the timetable of vector rearrangement."""
    grid = Grid.of(shop)
    if not any(grid.ticks):
        return Timetable.of_order(shop, range(len(grid)))
    times = np.zeros((shop.configs, shop.workers))
    np.add.at(times, (grid.config, grid.worker), grid.ticks)
    starts = _circle(times)
    if optimal(shop):
        order = sorted(range(len(grid)), key=lambda u: (starts[grid.config[u], grid.worker[u]], grid.ticks[u]))
    else:
        order = by_priority(grid, [-starts[c, w] for c, w in zip(grid.config, grid.worker, strict=True)])
    return Timetable.of_order(shop, order)


def optimal(shop: Shop) -> bool:
    """Whether the circle is long enough, so that ``rearrange`` gives an optimal timetable."""
    times = np.zeros((shop.configs, shop.workers))
    for unit in shop.units:
        times[unit.config, unit.worker] += unit.seconds
    p = shop.workers
    ready = not any(shop.config_ready) and not any(shop.worker_ready)
    return ready and float(times.sum(axis=0).max(initial=0.0)) >= (p * p + p - 1) * float(times.max(initial=0.0))


def _circle(times: Matrix) -> Matrix:
    """Return when each worker would start each configuration: shape (configs, workers), as ``times``."""
    workers = times.shape[1]
    longest, raised = times.max(), _raise(times)
    around = raised.sum(axis=0).max()
    order = steinitz((raised[:, :-1] - raised[:, -1:]) / longest)
    places = np.zeros_like(raised)  # where on the circle each configuration begins, by worker
    places[order] = np.cumsum(raised[order], axis=0) - raised[order]
    offset = 0.0
    starts = np.empty_like(places)
    for worker in range(workers):
        column = places[:, worker]
        # Move to the next boundary between units, so that no unit is cut in two; TINY allows for rounding.
        boundaries = column[column >= offset - TINY * around]
        offset = float(boundaries.min(initial=around)) % around
        starts[:, worker] = np.where(column >= offset, column - offset, column - offset + around)
        offset += workers * longest
    return starts


def _raise(times: Matrix) -> Matrix:
    """Return times raised so that all workers have equal loads, none above the longest time."""
    loads, longest = times.sum(axis=0), times.max()
    room = longest - times
    missing = loads.max() - loads
    spare = room.sum(axis=0)
    share = np.divide(missing, spare, out=np.zeros_like(missing), where=spare > 0)
    raised: Matrix = times + room * share
    return raised


def steinitz(vectors: Matrix) -> Order:
    """Order vectors with sum 0 such that all partial sums are short (Grinberg and Sevastyanov).

    In any norm in which all vectors have at most length 1, no partial sum is longer than their dimension d. The last
    places are filled first. For the k vectors left there are weights from 0 to 1 with sum k - d and weighted sum 0; at
    a corner of the polytope of weights with sum k - d - 1, one of the weights is 0, and its vector comes k-th.
    """
    count, dimension = vectors.shape
    left = np.arange(count)
    weights = np.full(count, (count - dimension) / count if count else 0.0)
    order: Order = []
    for k in range(count, dimension, -1):
        weights = _corner(vectors[left], weights * (k - 1 - dimension) / (k - dimension))
        last = int(np.argmin(weights))
        order.append(int(left[last]))
        left, weights = np.delete(left, last), np.delete(weights, last)
    return [*map(int, left), *reversed(order)]


def _corner(vectors: Matrix, weights: Matrix) -> Matrix:
    """Return weights with the same sums, at most d + 1 of them strictly between 0 and 1."""
    weights = weights.copy()
    rows = np.column_stack([vectors, np.ones(len(vectors))])
    equations = rows.shape[1]
    while len(between := np.flatnonzero((weights > TINY) & (weights < 1 - TINY))) > equations:
        some = between[: equations + BLOCK]
        # With more weights than equations, some directions change no sum; along each, a weight reaches 0 or 1.
        ways = np.linalg.svd(rows[some].T)[2][equations:]
        here = weights[some]
        while len(ways):
            way = ways[0]
            up, down = way > TINY, way < -TINY
            limits = np.full(len(here), np.inf)
            limits[up], limits[down] = (1 - here[up]) / way[up], here[down] / -way[down]
            arrived = int(np.argmin(limits))
            here = np.clip(here + limits[arrived] * way, 0.0, 1.0)
            # The remaining directions must not move that weight again.
            pivot = int(np.argmax(np.abs(ways[:, arrived])))
            ways = np.delete(ways - np.outer(ways[:, arrived] / ways[pivot, arrived], ways[pivot]), pivot, axis=0)
        weights[some] = here
    return weights
