"""How many devices each trial of a search gets next, and for how many epochs: FLEET's rounds in whole epochs.

An allocation depends on profiled rates, on the epochs that trials have left and on the present teams, never on a clock.
So a run that is killed and resumed allocates as one that was not. A trial has the same number of devices in all epochs
of an allocation, and hops between the teams of that size. An allocation lasts as long as the planned rounds need no
other teams, so trials wait for one another only before teams are formed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hopfleet.domain.trial import Trial
from hopfleet.planner.fleet.rounds import next_round
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import CLEAR, Scaling

CROWD = 8
"""Trials for each device above which most trials train on one device, and only the shortest are planned for later."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is known about the trials of a run before it starts: their rates, and what a restart costs."""

    scaling: Scaling
    #: Returns the rates of a trial, in rows per second on 1, 2, 3 ... devices.
    rates: Callable[[Trial], Rates]
    #: Rows of an epoch.
    rows: float

    def epoch_seconds(self, trial: Trial, devices: int) -> list[float]:
        """Return the seconds of an epoch on 1 to ``devices`` devices."""
        rates, most = self.rates(trial), self.scaling.most or devices
        return [self.rows / rates(min(count, most)) for count in range(1, devices + 1)]


@dataclass(frozen=True, slots=True)
class Allocation:
    """Teams, as their numbers of devices, the number of devices of each trial, and its epochs on as many."""

    teams: tuple[int, ...]
    devices: dict[str, int]
    epochs: dict[str, int]

    def fits(self, teams: Sequence[int]) -> bool:
        """Whether some teams include all teams of this allocation."""
        return not Counter(self.teams) - Counter(teams)


@dataclass(frozen=True, slots=True)
class RemainingWork:
    """The epochs that trials have left, and the seconds of each trial's epochs on 1, 2, 3 ... devices."""

    epochs: Mapping[str, int]
    seconds: Mapping[str, Sequence[float]]

    def alone(self, trial: str) -> float:
        """Return the seconds of a trial on one device."""
        return self.epochs[trial] * self.seconds[trial][0]


def allocate(
    work: RemainingWork, devices: int, present: tuple[int, ...], move_seconds: float, *, lap: bool = False
) -> Allocation:
    """Return the next allocation of some devices, at present divided into the teams ``present``.

    New teams cost ``move_seconds``, the time to save all models and to load them in other processes, and are formed
    only if all trials clearly end sooner in spite of that. If trials may be stopped early, a ``lap`` is enough: one
    epoch of the slowest trial, and as many of each other as fit into it.
    """
    chosen = _chosen(work, devices, present, move_seconds)
    if not lap:
        return chosen
    seconds = {trial: work.seconds[trial][count - 1] for trial, count in chosen.devices.items()}
    slowest = max(seconds.values())
    epochs = {trial: min(count, max(1, int(slowest / seconds[trial]))) for trial, count in chosen.epochs.items()}
    return Allocation(chosen.teams, chosen.devices, epochs)


def _chosen(work: RemainingWork, devices: int, present: tuple[int, ...], move_seconds: float) -> Allocation:
    if (crowd := _crowd(work, devices)) is not None:
        return crowd
    options = [[_on_teams(work, present)]] if sum(present) <= devices else []
    each, more = divmod(devices, min(devices, len(work.epochs)))
    even = tuple(each + (number < more) for number in range(min(devices, len(work.epochs))))
    options += [[_on_teams(work, even)], list(_allocations(work, devices, move_seconds))]

    def end(option: Sequence[Allocation]) -> float:
        seconds, teams = 0.0, present
        for each in option:
            seconds += _seconds(each, work) + (0.0 if each.fits(teams) else move_seconds)
            teams = each.teams
        return seconds if option[0].fits(present) else CLEAR * seconds

    return min(options, key=end)[0]


def _crowd(work: RemainingWork, devices: int) -> Allocation | None:
    """Return an allocation of one device to each of many trials, all but the shortest; None if they are not many."""
    order = sorted(work.epochs, key=lambda trial: (-work.alone(trial), trial))
    if len(order) <= CROWD * devices:
        return None
    now = order[: -CROWD * devices // 2]
    if work.alone(now[0]) * devices > sum(map(work.alone, now)):
        return None  # the longest trial needs more devices
    return Allocation((1,) * devices, dict.fromkeys(now, 1), {trial: work.epochs[trial] for trial in now})


def _allocations(work: RemainingWork, devices: int, move_seconds: float) -> Iterator[Allocation]:
    """Yield the allocations until all trials have ended, each as long as the planned rounds need no other teams."""
    names = list(work.epochs)
    rates = [[1.0 / seconds for seconds in work.seconds[name]] for name in names]
    left = {number: float(work.epochs[name]) for number, name in enumerate(names)}
    while left:
        teams: tuple[int, ...] = ()
        sizes, epochs = dict[int, int](), Counter[int]()
        while left:
            chosen = next_round(left, rates, devices, move_seconds)
            layout = tuple(sorted(chosen.gpus.values(), reverse=True))
            other = any(sizes.get(number, count) != count for number, count in chosen.gpus.items())
            if teams and (other or Counter(layout) - Counter(teams)):
                break
            teams = teams or layout
            sizes |= chosen.gpus
            for number, count in chosen.gpus.items():
                trained = min(left[number], max(1.0, round(chosen.seconds * rates[number][count - 1])))
                epochs[number] += int(trained)
                left[number] -= trained
            left = {number: rest for number, rest in left.items() if rest}
        yield Allocation(
            teams,
            {names[number]: count for number, count in sizes.items()},
            {names[number]: count for number, count in epochs.items()},
        )


def _on_teams(work: RemainingWork, teams: Sequence[int]) -> Allocation:
    """Return an allocation of all epochs to some teams, each trial where it ends first."""
    free = [0.0] * len(teams)
    devices = {}
    for trial in sorted(work.epochs, key=lambda trial: (-work.alone(trial), trial)):
        seconds = [work.epochs[trial] * work.seconds[trial][count - 1] for count in teams]
        team = min(range(len(teams)), key=lambda number: (free[number] + seconds[number], number))
        free[team] += seconds[team]
        devices[trial] = teams[team]
    return Allocation(tuple(teams), devices, dict(work.epochs))


def _seconds(given: Allocation, work: RemainingWork) -> float:
    """Return the seconds of an allocation whose trials hop between the teams of their size."""
    end = 0.0
    for size, count in Counter(given.teams).items():
        lengths = [
            given.epochs[trial] * work.seconds[trial][size - 1] for trial, own in given.devices.items() if own == size
        ]
        end = max(end, sum(lengths) / count, *lengths)
    return end
