"""Numbers of GPUs that let all networks end together, as far as their rates and what is known of their ends allow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence

STEPS = 30
"""Halvings of the interval in which the end of all networks lies."""


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
        low, high = 0.0, sum(rows / self._rates[network][0] for network, rows in work.items())
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._fits(work, middle) else (middle, high)
        return {network: (rows, self._needed(network, rows, high) or 1) for network, rows in work.items()}

    def _fits(self, work: Mapping[int, float], end: float) -> bool:
        """Whether all networks can have ended at ``end``, if they can be cut anywhere."""
        area, room = 0.0, self._gpus * end
        for network, rows in work.items():
            count = self._needed(network, rows, end)
            if not count:
                return False
            area += count * rows / self._rates[network][count - 1]
            if area > room:
                return False
        return True

    def _needed(self, network: int, rows: float, end: float) -> int:
        """Return the fewest GPUs with which a network ends in time; 0 if there are none."""
        table = self._rates[network]
        count = bisect_left(table, rows / end) + 1
        return count if count <= len(table) else 0

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
