"""Teams for the end of a search: when fewer trials than devices are left, idle devices can join as teams.

Every trial that is left gets a team, all of nearly the same size: trials hop between teams of the same speed as they do
between workers, and the next trial that ends makes room for larger teams.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.errors import UsageError
from hopfleet.planner.rates import Rates

CLEAR = 1.05
"""How much faster a team must be than fewer devices: short measurements vary by some percent."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How fast teams of a strategy are, and how long it takes to form them."""

    strategy: str
    #: Rates on 1, 2, 3 ... devices; only their ratios matter.
    rates: Rates
    form_seconds: float = 0.0
    #: The largest team; 0 for no limit.
    most: int = 0
    #: The devices of each node, if all members of a team are on one; empty if they may be anywhere.
    nodes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.form_seconds < float("inf"):
            raise UsageError(f"form_seconds={self.form_seconds:g}: must be finite and at least 0")

    def speed(self, devices: int) -> float:
        """Return how many times faster a team is than one device."""
        return self.rates(min(devices, self.most or devices)) / self.rates(1)

    def shape(self, devices: int) -> TeamShape:
        return TeamShape(self.strategy, devices) if devices > 1 else SINGLE


def seconds_left(work: Sequence[float], speeds: Sequence[float]) -> float:
    """Return when all trials have ended, if the longest trains on the fastest worker, and so on.

    ``work`` holds the seconds of each trial on one device. Trials without a worker of their own share all workers.
    """
    longest, fastest = sorted(work, reverse=True), sorted(speeds, reverse=True)
    alone = (seconds / speed for seconds, speed in zip(longest, fastest, strict=False))
    shared = sum(work) / sum(speeds) if len(work) > len(speeds) else 0.0
    return max(shared, *alone)


def even_teams(trials: int, devices: int, scaling: Scaling) -> tuple[int, ...]:
    """Return the numbers of devices of teams, one team for each trial if there are enough devices; largest first.

    A team has no more devices than make it faster, so some may be left over. If nodes have come or gone since the
    scaling was found, no team fits for sure, and every worker has one device.
    """
    if not scaling.nodes:
        return _shares(min(trials, devices), devices, scaling)
    if devices != sum(scaling.nodes):
        return (1,) * devices
    return tuple(sorted(itertools.chain(*teams_on_nodes(trials, scaling)), reverse=True))


def teams_on_nodes(trials: int, scaling: Scaling) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of devices of each node's teams. Trials visit every node, and are on all nodes evenly."""
    devices = sum(scaling.nodes)
    return tuple(_shares(max(1, min(node, trials * node // devices)), node, scaling) for node in scaling.nodes)


def _shares(teams: int, devices: int, scaling: Scaling) -> tuple[int, ...]:
    each, more = divmod(devices, teams)
    shares = [each + (number < more) for number in range(teams)]
    return tuple(min(range(1, share + 1), key=lambda count: (-scaling.speed(count), count)) for share in shares)


def better_teams(
    work: Sequence[float], workers: Sequence[int], devices: int, scaling: Scaling, wait: float
) -> tuple[int, ...]:
    """Return the numbers of devices of teams that should replace the present workers; nothing if these should stay.

    ``work`` holds the seconds on one device of what no worker has begun, by trial, and ``workers`` the devices of each
    worker. No team starts before all units that run now have ended, ``wait`` seconds from now at the latest. Teams must
    end all work clearly sooner in spite of that.
    """
    teams = even_teams(len(work), devices, scaling)
    if sorted(teams) == sorted(workers):
        return ()
    stay = seconds_left(work, [scaling.speed(count) for count in workers])
    change = wait + scaling.form_seconds + seconds_left(work, _speeds(len(work), devices, teams, scaling))
    return teams if CLEAR * change < stay else ()


def _speeds(trials: int, devices: int, teams: Sequence[int], scaling: Scaling) -> list[float]:
    """Return the speeds of teams; within nodes, the mean over the rows of all nodes, since each trial visits them."""
    if not scaling.nodes or sum(scaling.nodes) != devices:
        return [scaling.speed(count) for count in teams]
    nodes = zip(scaling.nodes, teams_on_nodes(trials, scaling), strict=True)
    return [devices / sum(count / scaling.speed(min(sizes)) for count, sizes in nodes)] * len(teams)
