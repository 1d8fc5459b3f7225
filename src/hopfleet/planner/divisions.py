"""Divisions of devices into teams: how soon trials end on them, and which divisions are worth a dry run.

A trial on k devices is at most k times as fast as on one, and each further device adds less. So devices are used best
one by one, as long as no trial is left alone at the end; a trial with more work than the others needs a team. If units
were infinitely short, trials could share devices in any proportion, and ``least_seconds`` would be reached. A division
is fixed for some time, and trials hop between teams of different sizes, so it comes close where its sizes are about
those that trials need on average.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

Speed = Callable[[int], float]
"""Returns how many times faster a team of some devices is than one device."""

Division = tuple[int, ...]
"""The numbers of devices of teams, the largest first."""

STEPS = 40
"""Halvings of the time in ``least_seconds``."""

IMPROVED = 3
"""Divisions that are improved step by step."""


def least_seconds(work: Sequence[float], devices: int, speed: Speed) -> float:
    """Return a lower bound on the time in which any teams on some devices, formed anew at any time, end all trials.

    ``work`` holds the seconds of each trial on one device.
    """
    return _needs(work, devices, speed)[0]


def divisions(work: Sequence[float], devices: int, speed: Speed, most: int, count: int) -> list[Division]:
    """Return some divisions on which trials may end soonest, the best first; no team is larger than ``most``."""
    end = _Ends(work, speed)
    largest = max(range(1, min(most, devices) + 1), key=lambda size: (speed(size), -size))
    found = {division: end(division) for division in _first(work, devices, speed, largest)}
    for division in sorted(found, key=found.__getitem__)[:IMPROVED]:
        while True:
            near = {each: found.get(each) or end(each) for each in _near(division, largest)}
            found |= near
            better = min(near, key=near.__getitem__, default=division)
            if near.get(better, math.inf) >= found[division]:
                break
            division = better
    return sorted(found, key=lambda division: (found[division], len(division)))[:count]


def _needs(work: Sequence[float], devices: int, speed: Speed) -> tuple[float, list[float]]:
    """Return the least seconds, and the devices that each trial needs on average to end by then."""
    corners = _corners(devices, speed)
    least, enough = max(work) / corners[-1][1], sum(work) / corners[1][1] * corners[1][0]
    if _used(work, least, corners) <= devices:
        enough = least
    for _ in range(STEPS):
        middle = (least + enough) / 2
        if _used(work, middle, corners) <= devices:
            enough = middle
        else:
            least = middle
    return enough, [_need(seconds / enough, corners) for seconds in work]


def _corners(devices: int, speed: Speed) -> list[tuple[int, float]]:
    """Return the numbers of devices between which a trial should alternate, and their speeds; from 0 up."""
    corners: list[tuple[int, float]] = [(0, 0.0)]
    for size in range(1, devices + 1):
        here = size, speed(size)
        if here[1] <= corners[-1][1]:
            continue
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-2], here):
            corners.pop()
        corners.append(here)
    return corners


def _slope(one: tuple[int, float], other: tuple[int, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])


def _need(pace: float, corners: Sequence[tuple[int, float]]) -> float:
    """Return the devices that a trial needs on average for a speed."""
    pairs = itertools.pairwise(corners)
    one, other = next(pair for pair in pairs if pace <= pair[1][1] or pair[1] is corners[-1])
    return one[0] + (pace - one[1]) / _slope(one, other)


def _used(work: Sequence[float], seconds: float, corners: Sequence[tuple[int, float]]) -> float:
    return sum(_need(each / seconds, corners) for each in work)


class _Ends:
    """How soon trials end on a division, if units were infinitely short."""

    def __init__(self, work: Sequence[float], speed: Speed) -> None:
        self._longest = list(itertools.accumulate(sorted(work, reverse=True)))
        self._speed = speed

    def __call__(self, division: Division) -> float:
        fastest = list(itertools.accumulate(map(self._speed, division)))
        # No k trials are faster than on the k fastest teams, and all trials not faster than on all teams.
        few = zip(self._longest, fastest, strict=False)
        return max(self._longest[-1] / fastest[-1], *(some / pace for some, pace in few))


def _first(work: Sequence[float], devices: int, speed: Speed, largest: int) -> Iterator[Division]:
    """Yield even divisions, and what trials need rounded up and down."""
    yield (1,) * devices
    for teams in range(1, min(len(work), devices) + 1):
        each, more = divmod(devices, teams)
        yield _capped([each + (number < more) for number in range(teams)], largest)
    _, needs = _needs(work, devices, speed)
    for wanted in (sorted(needs, reverse=True), _shares(needs, devices)):
        left, sizes = devices, list[int]()
        for need in wanted:
            size = min(left, largest, max(1, round(need)))
            if size:
                sizes.append(size)
                left -= size
        yield _capped([*sizes, *(1,) * left], largest)


def _shares(needs: Sequence[float], devices: int) -> list[int]:
    """Return teams that are used all the time, if trials alternate between the sizes next to what they need."""
    sizes: Counter[int] = Counter()
    parts: dict[int, float] = {}
    for need in needs:
        low = math.floor(need)
        for size, part in ((low, low + 1 - need), (low + 1, need - low)):
            if size:
                parts[size] = parts.get(size, 0.0) + part
    for size, part in sorted(parts.items(), reverse=True):
        sizes[size] = round(part)
    return sorted(sizes.elements(), reverse=True)


def _capped(sizes: Iterable[int], largest: int) -> Division:
    return tuple(sorted((min(size, largest) for size in sizes), reverse=True))


def _near(division: Division, largest: int) -> Iterator[Division]:
    """Yield the divisions that differ by a device that passes from one team to another, or by a team that splits."""
    sizes = sorted(set(division))
    for take in sizes:
        rest = list(division)
        rest.remove(take)
        if take > 1:
            yield _capped([*rest, take - 1, 1], largest)
            yield _capped([*rest, (take + 1) // 2, take // 2], largest)
        for give in set(rest):
            if give < largest:
                others = rest.copy()
                others.remove(give)
                yield _capped([*others, give + 1, *([take - 1] if take > 1 else [])], largest)
