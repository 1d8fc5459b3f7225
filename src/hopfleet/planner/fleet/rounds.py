"""Flotillas for networks that are known to have some number of rows left to train on.

The published algorithm knows rates alone, since its networks train until they converge. A search says how many epochs a
trial has, so flotillas can be chosen such that all networks end together: each candidate is continued by a dry run, and
the one whose run ends first is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hopfleet.planner.fleet.balance import even_end, fewest
from hopfleet.planner.fleet.flotillas import Table, spread

ENDS = (1.0, 1.05, 1.15, 1.3, 1.6, 2.0, 3.0, 0.9, 0.8)
"""Candidates: flotillas for this multiple of the earliest end that all networks could have together."""

CONTINUED = 40
"""Networks times GPUs up to which candidates are continued by dry runs; above, only the first one is made."""

DONE = 1e-9
"""The part of a network's rows that may remain when it has ended, since times are rounded."""


@dataclass(frozen=True, slots=True)
class Round:
    """A flotilla, as the number of GPUs of each member, and the seconds for which it trains."""

    gpus: dict[int, int]
    seconds: float


def next_round(left: Mapping[int, float], rates: Table, gpus: int, move_seconds: float = 0.0) -> Round:
    """Return the next flotilla of networks with some rows left each, and how long it should train."""
    if len(left) * gpus > CONTINUED:
        return _usual(left, rates, gpus, move_seconds)
    return min(
        _candidates(left, rates, gpus),
        key=lambda each: each.seconds + _remaining(after(each, left, rates), rates, gpus, move_seconds),
    )


def after(given: Round, left: Mapping[int, float], rates: Table) -> dict[int, float]:
    """Return the rows that networks have left after a round."""
    found = {}
    for network, rows in left.items():
        trained = given.seconds * rates[network][given.gpus[network] - 1] if network in given.gpus else 0.0
        if rows - trained > DONE * rows:
            found[network] = rows - trained
    return found


def _candidates(left: Mapping[int, float], rates: Table, gpus: int) -> Iterator[Round]:
    """Yield flotillas that train until one of their members has ended."""
    end = even_end(left, rates, gpus)
    for flotilla in {tuple(_flotilla(left, rates, gpus, factor * end).items()): None for factor in ENDS}:
        counts = dict(flotilla)
        for seconds in _ends(counts, left, rates):
            yield Round(counts, seconds)


def _usual(left: Mapping[int, float], rates: Table, gpus: int, move_seconds: float) -> Round:
    """Return a flotilla that goes on until another would cost less than its idle GPUs do."""
    counts = _flotilla(left, rates, gpus, even_end(left, rates, gpus))
    ends = _ends(counts, left, rates)
    lost = 0.0
    for end, later in itertools.pairwise(ends):
        in_use = sum(count for network, count in counts.items() if left[network] / rates[network][count - 1] > end)
        lost += (gpus - in_use) * (later - end)
        if lost > gpus * move_seconds:
            return Round(counts, end)
    return Round(counts, ends[-1])


def _remaining(left: Mapping[int, float], rates: Table, gpus: int, move_seconds: float) -> float:
    """Return the seconds of usual rounds until all networks have ended."""
    seconds = 0.0
    while left:
        following = _usual(left, rates, gpus, move_seconds)
        seconds += following.seconds + move_seconds
        left = after(following, left, rates)
    return seconds


def _ends(counts: Mapping[int, int], left: Mapping[int, float], rates: Table) -> list[float]:
    return sorted({left[network] / rates[network][count - 1] for network, count in counts.items()})


def _flotilla(left: Mapping[int, float], rates: Table, gpus: int, end: float) -> dict[int, int]:
    """Return members, those first that have most time to go, with the GPUs that they need to end at ``end``."""
    wanted = {network: fewest(rates[network][:gpus], rows / end) for network, rows in left.items()}

    def seconds(network: int) -> float:
        return left[network] / rates[network][wanted[network] - 1]

    counts, free = dict[int, int](), gpus
    for network in sorted(left, key=lambda network: (-seconds(network), network)):
        if free:
            counts[network] = fewest(rates[network][: min(wanted[network], free)], rates[network][wanted[network] - 1])
            free -= counts[network]
    return spread(counts, free, rates, {network: 1 / left[network] for network in counts})
