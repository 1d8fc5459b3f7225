"""Numbers of GPUs that let all networks end together, as far as their rates and what is known of their ends allow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence

STEPS = 30
"""Halvings of the interval in which the end of all networks lies."""

ROUNDING = 1e-12
"""The part of a rate that may be missing, since rates are rounded."""


class Balance:
    """The plan of who trains on how many GPUs, made again as networks converge."""

    def __init__(self, rates: Sequence[Sequence[float]], rows: int, gpus: int) -> None:
        self._rates = rates
        self._rows = rows
        self._gpus = gpus
        #: Epochs of the networks that have converged, sorted.
        self._converged: list[int] = []

    def learn(self, epochs: int) -> None:
        """Note the epochs after which a network has converged."""
        self._converged.insert(bisect_left(self._converged, epochs), epochs)

    def remaining(self, done: int) -> float:
        """Return the expected number of epochs until a network converges that has not after ``done`` epochs."""
        longer = self._converged[bisect_left(self._converged, done + 1) :]
        if longer:
            return sum(longer) / len(longer) - done
        # None has taken longer: expect a tenth more.
        return max(1.0, done / 10)

    def plan(self, networks: Collection[int], done: Sequence[int]) -> dict[int, tuple[float, int]]:
        """Return the expected rows that are left for each network, and its number of GPUs."""
        work = {network: self._rows * self.remaining(done[network]) for network in networks}
        end = even_end(work, self._rates, self._gpus)
        return {network: (rows, self._needed(network, rows, end)) for network, rows in work.items()}

    def _needed(self, network: int, rows: float, end: float) -> int:
        """Return the fewest GPUs with which a network ends in time; 1 if it cannot."""
        table = self._rates[network]
        count = bisect_left(table, rows / end) + 1
        return count if count <= len(table) else 1

    def start(
        self, plan: Mapping[int, tuple[float, int]], waiting: Collection[int], free: int
    ) -> Iterator[tuple[int, int]]:
        """Yield the networks to start now, each with its number of GPUs: those first that have most time to go."""

        def seconds(network: int) -> float:
            rows, count = plan[network]
            return rows / self._rates[network][count - 1]

        for network in sorted(waiting, key=lambda network: (-seconds(network), network)):
            if not free:
                return
            count = min(plan[network][1], free)
            yield network, count
            free -= count


def even_end(work: Mapping[int, float], rates: Sequence[Sequence[float]], gpus: int) -> float:
    """Return the earliest time at which all networks can have ended, if they can be cut anywhere."""
    low, high = 0.0, sum(rows / rates[network][0] for network, rows in work.items())
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if _fits(work, rates, gpus, middle) else (middle, high)
    return high


def _fits(work: Mapping[int, float], rates: Sequence[Sequence[float]], gpus: int, end: float) -> bool:
    area, room = 0.0, gpus * end
    for network, rows in work.items():
        table = rates[network]
        count = bisect_left(table, rows / end, 0, gpus) + 1
        if count > min(gpus, len(table)):
            return False
        area += count * rows / table[count - 1]
        if area > room:
            return False
    return True


def fewest(table: Sequence[float], rate: float) -> int:
    """Return the fewest GPUs that reach a rate, or else the highest rate of a table."""
    return bisect_left(table, min(rate * (1 - ROUNDING), table[-1])) + 1
