"""Whether some workers should make room for other teams of their devices, by dry runs of both.

The others train on meanwhile. A dry run places whole units (``planner.unequal``), so it knows what it costs to wait for
the units that run, to form teams, and to leave a long unit on a slow worker.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hopfleet.planner.divisions import Division, divisions, least_seconds
from hopfleet.planner.teams import Scaling
from hopfleet.planner.unequal import STYLES, Chains, Placed, Start, Style, best, place

CLEAR = 1.02
"""How much sooner all trials must end to make a change worth while: short measurements vary by some percent."""

TRIED = 4
"""Divisions that are tried by dry runs."""

UNITS = 200
"""Units of a dry run at most, about; several units of a long experiment count as one."""

ENDS = 2
"""Ends of jobs after which a dry run may go on with other teams."""

USUAL = STYLES[:2]


class Job(NamedTuple):
    """A trial: the seconds of its units on one device, the units that have not started, and when the next one may."""

    seconds: float
    units: int
    ready: float


class BusyWorker(NamedTuple):
    """A worker: its devices, and when it will have ended what it runs."""

    devices: int
    free: float


@dataclass(frozen=True, slots=True)
class Change:
    """The workers that should leave, by number, and the teams to form of their devices."""

    leave: tuple[int, ...]
    form: Division
    style: Style = STYLES[0]


def better_division(
    jobs: Sequence[Job], workers: Sequence[BusyWorker], spare: int, scaling: Scaling, now: float, *, whole: bool = False
) -> Change | None:
    """Return a change after which all jobs end clearly sooner; None if there is none.

    ``spare`` devices are of no worker. If the change must be a ``whole`` one, no worker stays.
    """
    work = [job.seconds * job.units for job in jobs]
    devices = spare + sum(worker.devices for worker in workers)
    if devices < 2 or not any(work):
        return None
    stay, _ = _end(jobs, workers, scaling, now)
    if stay - now <= CLEAR * least_seconds(work, devices, scaling.speed):
        return None
    found: Change | None = None
    least = now + (stay - now) / CLEAR
    for division in divisions(work, devices, scaling.speed, scaling.most or devices, TRIED):
        change = _change(workers, division)
        if not change.form:
            continue
        if whole:
            change = Change(tuple(range(len(workers))), division)
        end, style = _end(jobs, _after(workers, change, scaling, now), scaling, now)
        if end < least:
            found, least = replace(change, style=style), end
    return found


def teams_for(work: Sequence[float], kept: Sequence[int], room: int, scaling: Scaling) -> Division:
    """Return teams of ``room`` devices with which, beside the ``kept`` teams, all work ends soonest."""
    stay, most = Counter(kept), scaling.most or room
    for division in divisions(work, room + sum(kept), scaling.speed, most, TRIED):
        if stay <= Counter(division):
            return tuple(sorted((Counter(division) - stay).elements(), reverse=True))
    return divisions(sorted(work)[: max(1, len(work) - len(kept))], room, scaling.speed, most, 1)[0]


def _change(workers: Sequence[BusyWorker], division: Division) -> Change:
    """Return the change to a division; of workers with as many devices, those stay that run the longest."""
    wanted = Counter(division)
    leave = []
    for number in sorted(range(len(workers)), key=lambda number: -workers[number].free):
        size = workers[number].devices
        if wanted[size]:
            wanted[size] -= 1
        else:
            leave.append(number)
    return Change(tuple(sorted(leave)), tuple(sorted(wanted.elements(), reverse=True)))


def _after(workers: Sequence[BusyWorker], change: Change, scaling: Scaling, now: float) -> list[BusyWorker]:
    """Return the workers after a change. Teams form once all workers that make room have ended what they run."""
    formed = max((workers[number].free for number in change.leave), default=now) + scaling.form_seconds
    stay = [worker for number, worker in enumerate(workers) if number not in change.leave]
    return [*stay, *(BusyWorker(size, formed) for size in change.form)]


def starts(
    jobs: Sequence[Job],
    workers: Sequence[BusyWorker],
    idle: Collection[int],
    scaling: Scaling,
    now: float,
    style: Style,
) -> list[Start]:
    """Return the jobs that should start now on ``idle`` workers, where some of the others are yet to form."""
    return place(_chains(jobs, workers, scaling, now), style, idle=idle).now


def _end(jobs: Sequence[Job], workers: Sequence[BusyWorker], scaling: Scaling, now: float) -> tuple[float, Style]:
    """Return when all jobs end if they begin on these workers, by a dry run, and in which style.

    When a job has ended, the others may go on on other teams. They never end if there is no worker.
    """
    if not workers:
        return math.inf, STYLES[0]
    several = max(1, math.ceil(sum(job.units for job in jobs) / UNITS))
    fewer = [(math.ceil(job.units / several), job) for job in jobs if job.units]
    longer = [Job(job.seconds * job.units / units, units, job.ready) for units, job in fewer]
    style, placed = best(_chains(longer, workers, scaling, now), USUAL)
    later = _later(longer, workers, placed, scaling)
    return min([placed.end, *later]), style


def _later(jobs: Sequence[Job], workers: Sequence[BusyWorker], placed: Placed, scaling: Scaling) -> Iterator[float]:
    """Yield when all jobs end if one of the first jobs to end is waited for, and all devices are shared anew then."""
    free, ready, left = [each.free for each in workers], [job.ready for job in jobs], [job.units for job in jobs]
    spans, ended = list[tuple[float, float, int]](), list[float]()
    for job, worker in placed.units:
        begin = max(free[worker], ready[job])
        free[worker] = ready[job] = end = begin + jobs[job].seconds / scaling.speed(workers[worker].devices)
        spans.append((begin, end, job))
        left[job] -= 1
        if not left[job]:
            ended.append(end)
    devices = sum(worker.devices for worker in workers)
    for moment in sorted(ended)[: min(ENDS, len(ended) - 1)]:
        work = [0.0] * len(jobs)
        for begin, _, job in spans:
            work[job] += jobs[job].seconds * (begin >= moment)
        if any(work):
            rest = max((end for begin, end, _ in spans if begin < moment), default=moment)
            yield rest + scaling.form_seconds + CLEAR * least_seconds(work, devices, scaling.speed)


def _chains(jobs: Sequence[Job], workers: Sequence[BusyWorker], scaling: Scaling, now: float) -> Chains:
    sizes = sorted({worker.devices for worker in workers}, reverse=True)
    free = [
        [(worker.free, number) for number, worker in enumerate(workers) if worker.devices == size] for size in sizes
    ]
    chains = Chains(now, free)
    for job in jobs:
        chains.add([job.seconds / scaling.speed(size) for size in sizes], job.units, max(now, job.ready))
    return chains
