"""Trials that may train now, by who can take them and by what they have left.

A policy asks for the longest trial, or for any, that a certain worker can take. With thousands of trials it must not
look at all of them to find out, so they stand in lines: one for each set of partitions that workers can read, and one
for each worker, of the trials whose models it holds. ``Schedule`` puts a trial anew whenever something about it changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hopfleet.scheduler.progress import Progress, Readable


class Place(NamedTuple):
    """Where a trial stands; the least comes first. A trial that is put anew gets another place."""

    #: What it has left, negative: in seconds, or in units before any was measured.
    left: float
    #: Counts the trials as they become ready.
    since: int
    #: Counts the places, so that no two are equal.
    number: int
    progress: Progress
    #: The worker that held its model.
    holder: str | None


class Candidate(NamedTuple):
    progress: Progress
    held: bool
    since: int


class Heap:
    """The first place, in logarithmic time. Places given up go when they come first or are the most of them."""

    def __init__(self, current: Mapping[str, Place]) -> None:
        self._current = current
        self._places: list[Place] = []

    def push(self, place: Place) -> None:
        heapq.heappush(self._places, place)
        if len(self._places) > 2 * len(self._current) + 16:
            self._places = [place for place in self._places if self._holds(place)]
            heapq.heapify(self._places)

    def first(self) -> Place | None:
        while self._places and not self._holds(self._places[0]):
            heapq.heappop(self._places)
        return self._places[0] if self._places else None

    def _holds(self, place: Place) -> bool:
        return self._current.get(place.progress.trial.id) is place


class Pool:
    """A set of trials to draw from: each has an index, in no order that means anything."""

    def __init__(self) -> None:
        self.members: list[Progress] = []
        self._index: dict[str, int] = {}

    def add(self, progress: Progress) -> None:
        self._index[progress.trial.id] = len(self.members)
        self.members.append(progress)

    def discard(self, trial: str) -> None:
        index = self._index.pop(trial, None)
        if index is not None:
            last = self.members.pop()
            if index < len(self.members):
                self.members[index] = last
                self._index[last.trial.id] = index


class Line:
    """The trials that every worker that reads certain partitions can take."""

    def __init__(self, current: Mapping[str, Place]) -> None:
        self.pool = Pool()
        #: All trials without a measured unit expect the same time for each; it changes, their order does not.
        self.measured, self.unmeasured = Heap(current), Heap(current)

    def add(self, place: Place) -> None:
        self.pool.add(place.progress)
        (self.measured if place.progress.measured else self.unmeasured).push(place)


@dataclass(slots=True)
class Desk:
    """One worker."""

    readable: Readable
    #: Trials that it can take and whose models it holds.
    held: Heap
    #: Those of them that no other worker can load.
    own: Pool = field(default_factory=Pool)


class Ready:
    """All the lines of a schedule."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._lines: dict[Readable, Line] = {}
        self._desks: dict[str, Desk] = {}
        self._since = 0
        self._number = 0

    def join(self, worker: str, readable: Readable) -> None:
        self._desks[worker] = Desk(readable, Heap(self._places))
        if readable not in self._lines:
            line = self._lines[readable] = Line(self._places)
            for place in self._places.values():
                if place.progress.loadable and place.progress.owed_to(readable):
                    line.add(place)

    def leave(self, worker: str) -> None:
        readable = self._desks.pop(worker).readable
        if all(desk.readable != readable for desk in self._desks.values()):
            del self._lines[readable]

    def put(self, progress: Progress) -> None:
        """A trial is ready, or something about one that is ready has changed."""
        before = self._places.get(progress.trial.id)
        self.remove(progress.trial.id)
        if before is None:
            self._since += 1
        self._number += 1
        left = progress.unit_seconds * progress.units_left
        since = self._since if before is None else before.since
        place = self._places[progress.trial.id] = Place(-left, since, self._number, progress, progress.holder)
        if progress.loadable:
            for readable, line in self._lines.items():
                if progress.owed_to(readable):
                    line.add(place)
        if progress.holder is not None:
            desk = self._desks[progress.holder]
            if progress.owed_to(desk.readable):
                desk.held.push(place)
                if not progress.loadable:
                    desk.own.add(progress)

    def remove(self, trial: str) -> None:
        """A trial is not ready, if it ever was."""
        place = self._places.pop(trial, None)
        if place is not None:
            for line in self._lines.values():
                line.pool.discard(trial)
            if place.holder in self._desks:
                self._desks[place.holder].own.discard(trial)

    def able(self, worker: str) -> tuple[Sequence[Progress], Sequence[Progress]]:
        """The trials that a worker can take: those that others could load too, and its own."""
        desk = self._desks[worker]
        return self._lines[desk.readable].pool.members, desk.own.members

    def longest(self, worker: str) -> Iterator[Candidate]:
        """Up to three trials that a worker can take; one of them has the most left of all."""
        desk = self._desks[worker]
        line = self._lines[desk.readable]
        for heap in (line.measured, line.unmeasured, desk.held):
            place = heap.first()
            if place is not None:
                yield Candidate(place.progress, heap is desk.held, place.since)
