"""The policy for workers of unequal speed that read all partitions: list scheduling by expected ends.

A trial may wait for a faster worker that is busy, and moves there between two units; the worker that it leaves takes a
shorter trial, or none (``planner.unequal``). What to do is found anew at each event from the measured speeds. How units
are placed is chosen by placing all of them in several styles: at first, when workers or trials come, when speeds turn
out otherwise, and each time that a part of the units has ended.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Mapping

from hopfleet.planner.unequal import STYLES, Chains, Placed, Style, best, place
from hopfleet.scheduler.policies.longest_remaining import longest_remaining, next_unit
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.shop_state import TICK
from hopfleet.scheduler.slots import Assignment

MANY = 16
"""Trials per worker; with more, the end is far, and every worker may start the longest trial."""
UNITS = 10_000
"""Units to place at most; with more, the end is far, and the usual style will do."""
EFFORT = 60_000
"""Units to place in all styles together, about, ..."""
FEW = 3
"""... in at least this many."""
PART = 0.2
"""Part of all units after which the style is chosen again."""
LOOSE = 0.02
"""Noise above which units are placed anew at each event."""
DRIFT = 0.02
"""Mean relative change of expected times up to which a plan is kept."""


class Unequal:
    """The policy's state for one controller."""

    def __init__(self) -> None:
        self._style = STYLES[0]
        #: The units left when the style was chosen.
        self._units = 0
        self._plan: _Plan | None = None
        #: The starts of the last choice still to be made, and when they are valid: ends of units, idle ones.
        self._starts: list[tuple[Progress, str]] = []
        self._moment: object = None

    def __call__(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        if len(schedule.trials) > MANY * len(schedule.slots):
            return longest_remaining(schedule, rng)
        if self._moment != _moment(schedule):
            self._starts = self._choose(schedule)
            self._moment = _moment(schedule)
        for progress, worker in self._starts:
            slot = schedule.idle[worker]
            if schedule.options(progress, slot):
                self._starts.remove((progress, worker))
                if self._plan is not None:
                    self._plan.begin(progress.trial.id, worker)
                self._moment = _moment(schedule, {progress.trial.id}, {worker})
                return next_unit(schedule, progress, slot)
        # The starts that are left wait for a model that is being saved; all other trials wait for a running unit.
        return None

    def _choose(self, schedule: Schedule) -> list[tuple[Progress, str]]:
        """Return which trials should start on which idle workers."""
        shop = _Shop(schedule)
        units = sum(shop.chains.units)
        # A plan does not say which trials start together to share batches.
        shared = any(slot.flotilla for slot in schedule.slots.values())
        loose = shared or schedule.estimates.speeds.noise > LOOSE
        now = self._placed_anew(schedule, shop, units) if loose else self._planned(schedule, shop, units)
        return _at_home(schedule, [(schedule.trials[trial], worker) for trial, worker in now])

    def _planned(self, schedule: Schedule, shop: _Shop, units: int) -> list[tuple[str, str]]:
        """Follow a plan, made again when it no longer fits, and in the best style when a part of it is done."""
        kept = self._plan is not None and self._plan.fits(shop)
        anew = self._plan is None or units > self._units or self._units - units > PART * self._units
        if not kept or self._units - units > PART * self._units:
            self._renew(shop, units, anew=anew, kept=kept)
        assert self._plan is not None
        return self._plan.starts(schedule)

    def _placed_anew(self, schedule: Schedule, shop: _Shop, units: int) -> list[tuple[str, str]]:
        """Place units by what is measured by now, in a style that is chosen again when many units came or went."""
        self._plan = None
        if abs(self._units - units) > PART * self._units:
            self._units = units
            if units <= UNITS:
                self._style, _ = best(shop.chains, _styles(units))
        idle = {number for number, worker in enumerate(shop.workers) if worker in schedule.idle}
        return [(shop.trials[t], shop.workers[w]) for t, w in place(shop.chains, self._style, idle=idle).now]

    def _renew(self, shop: _Shop, units: int, *, anew: bool, kept: bool) -> None:
        """Make a plan, in the best style if ``anew``; a plan that was ``kept`` may be better."""
        if anew:
            self._units = units
        if anew and units <= UNITS:
            style, placed = best(shop.chains, _styles(units))
        else:
            style, placed = self._style, place(shop.chains, self._style, most=UNITS)
        if self._plan is None or not kept or placed.end < self._plan.end:
            self._style, self._plan = style, _Plan(shop, placed)


def _styles(units: int) -> tuple[Style, ...]:
    """Return the styles in which to try to place this number of units."""
    return STYLES[: max(FEW, EFFORT // max(1, units))]


class _Shop:
    """The trials and workers of a schedule as they are now, without workers that get no more units."""

    def __init__(self, schedule: Schedule) -> None:
        self.workers, self.trials, self.classes = list(schedule.slots), list(schedule.trials), schedule.classes
        number = {worker: index for index, worker in enumerate(self.workers)}
        now, idle, live = schedule.now, schedule.idle, schedule.trials.values()
        seconds = schedule.estimates.table(
            [(progress.trial.id, progress.trial.number) for progress in live],
            [members[0] for members in self.classes],
        )
        kind = {worker: number for number, members in enumerate(self.classes) for worker in members}
        rows = dict(zip(self.trials, seconds, strict=True))
        # A worker that is about to leave is of no class.
        free = {
            worker: now if worker in idle else _end(schedule, worker, rows, kind.get(worker, 0))
            for worker in self.workers
        }
        self.chains = Chains(now, [[(free[worker], number[worker]) for worker in each] for each in self.classes])
        for progress, row in zip(live, seconds, strict=True):
            name, ready = progress.trial.id, now
            units = max(progress.units_left, int(name in schedule.ready))
            if progress.trains_on is not None:
                units -= sum(unit.trial == name for unit in schedule.slots[progress.trains_on].told)
            if name not in schedule.ready:
                ready = max((free[worker] for worker in _workers(progress)), default=now + TICK)
            self.chains.add(row, units, ready, progress.onward * schedule.partitions)

    @property
    def units(self) -> dict[str, int]:
        """Return the units of each trial that were not started."""
        return {trial: units for trial, units in zip(self.trials, self.chains.units, strict=True) if units}

    @property
    def seconds(self) -> dict[str, list[float]]:
        """Return the expected seconds of a unit, by trial and class."""
        return dict(zip(self.trials, self.chains.seconds, strict=True))


class _Plan:
    """Placed units, as each worker and each trial should run them in turn."""

    def __init__(self, shop: _Shop, placed: Placed) -> None:
        self.end = placed.end
        self._seconds = shop.seconds
        self._classes = shop.classes
        #: The units of each trial that were not started.
        self._units = shop.units
        #: The trials of each lane in turn, and the lanes of each trial. A worker may exchange its lane with another.
        self._lanes: dict[str, deque[str]] = {worker: deque() for members in shop.classes for worker in members}
        self._trials: dict[str, deque[str]] = {trial: deque() for trial in self._units}
        self._worker = {lane: lane for lane in self._lanes}
        for trial, worker in placed.units:
            self._lanes[shop.workers[worker]].append(shop.trials[trial])
            self._trials[shop.trials[trial]].append(shop.workers[worker])
        self._partial = len(placed.units) < sum(shop.chains.units)

    def fits(self, shop: _Shop) -> bool:
        """Whether what has happened was planned, units take as long as planned, and the plan tells what follows."""
        if shop.units != self._units or shop.classes != self._classes:
            return False
        if self._partial and not all(self._lanes.values()):
            return False
        moved = total = 0.0
        for trial, row in shop.seconds.items():
            before = self._seconds[trial]
            moved += sum(abs(new - old) for new, old in zip(row, before, strict=True))
            total += sum(before)
        return moved <= DRIFT * total

    def starts(self, schedule: Schedule) -> list[tuple[str, str]]:
        """Return the units that can start now, by trial and worker."""
        return [
            (trials[0], self._worker[lane])
            for lane, trials in self._lanes.items()
            if trials
            and self._worker[lane] in schedule.idle
            and trials[0] in schedule.ready
            and self._trials[trials[0]][0] == lane
        ]

    def begin(self, trial: str, worker: str) -> None:
        """Note that a trial starts its next unit, on the planned worker or on one that is as fast and as idle."""
        lane = self._trials[trial].popleft()
        self._lanes[lane].popleft()
        self._units[trial] -= 1
        if not self._units[trial]:
            del self._units[trial]
        other = next(lane for lane, its in self._worker.items() if its == worker)
        self._worker[other], self._worker[lane] = self._worker[lane], worker


def _moment(schedule: Schedule, trials: Collection[str] = (), workers: Collection[str] = ()) -> object:
    """Return for which state a choice holds, once ``trials`` have started on ``workers``."""
    return schedule.ends, schedule.classes, schedule.ready.keys() - trials, schedule.idle.keys() - workers


def _end(schedule: Schedule, worker: str, seconds: Mapping[str, list[float]], kind: int) -> float:
    """Return when a worker will be done with its units: after this moment, even if it is late."""
    slot, size = schedule.slots[worker], schedule.estimates.size
    took = sum(size(unit.partition) * seconds[unit.trial][kind] for unit in slot.told if unit.trains)
    return max(schedule.now + TICK, slot.started + took)


def _workers(progress: Progress) -> list[str]:
    """Return the workers that train or evaluate a trial."""
    training = [] if progress.trains_on is None else [progress.trains_on]
    return [*training, *progress.evaluates_on.values()]


def _at_home(schedule: Schedule, starts: list[tuple[Progress, str]]) -> list[tuple[Progress, str]]:
    """Let trials go on where their models are, if the worker there is idle and as fast as the chosen one."""
    kind = {worker: number for number, members in enumerate(schedule.classes) for worker in members}
    room: list[dict[str, None]] = [{} for _ in schedule.classes]
    for worker in [*(worker for _, worker in starts), *schedule.idle]:
        room[kind[worker]][worker] = None
    found: list[tuple[Progress, str]] = []
    for progress, chosen in sorted(starts, key=lambda start: start[0].holder not in room[kind[start[1]]]):
        here = room[kind[chosen]]
        worker = progress.holder if progress.holder in here else next(iter(here))
        assert worker is not None
        del here[worker]
        found.append((progress, worker))
    return found
