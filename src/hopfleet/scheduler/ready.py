"""Trials that may train now, by who can take them and by what they have left.

A policy asks for the longest trial, or for any, that a certain worker can take. With thousands of trials it must not
look at all of them to find out, so they stand in lines: for each set of partitions that workers can read, and for each
worker, if it holds their models. ``Schedule`` puts a trial anew whenever something about it changes.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from hopfleet.scheduler.progress import Progress, Readable

DRAWS = 16
"""So many draws in a row that miss are a sign that most places are given up."""


class Place(NamedTuple):
    """Where a trial stands; the least comes first. A trial that is put anew has another place."""

    #: What it has left, negative: in seconds, or in units while nothing is known of them.
    left: float
    #: The number of the place that it got when it became ready.
    since: int
    #: Counts all places, so that no two are equal.
    number: int
    progress: Progress


class Line:
    """A heap of places. Those given up stay until they come first, or until they are the most of them."""

    def __init__(self, current: Mapping[str, Place]) -> None:
        self._current = current
        self.places: list[Place] = []

    def add(self, place: Place) -> None:
        heapq.heappush(self.places, place)
        if len(self.places) > 2 * len(self._current) + DRAWS:
            self.tidy()

    def first(self) -> Place | None:
        while self.places and not self.keeps(self.places[0]):
            heapq.heappop(self.places)
        return self.places[0] if self.places else None

    def keeps(self, place: Place) -> bool:
        return self._current.get(place.progress.trial.id) is place

    def tidy(self) -> None:
        self.places = [place for place in self.places if self.keeps(place)]
        heapq.heapify(self.places)


@dataclass(frozen=True, slots=True)
class Hall:
    """The trials that every worker that reads the same partitions can take."""

    known: Line
    #: These expect the same time for each unit. It changes with every unit that ends; their order does not.
    unknown: Line

    def add(self, place: Place) -> None:
        (self.known if place.progress.known else self.unknown).add(place)


@dataclass(frozen=True, slots=True)
class Desk:
    """One worker, and the trials that it can take and whose models it holds."""

    readable: Readable
    #: Trials that any worker could load.
    held: Line
    #: Trials that no other worker can load.
    own: Line


class Ready:
    """All the lines of a schedule."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._halls: dict[Readable, Hall] = {}
        self._desks: dict[str, Desk] = {}
        self._number = 0

    def join(self, worker: str, readable: Readable) -> None:
        self._desks[worker] = Desk(readable, Line(self._places), Line(self._places))
        if readable not in self._halls:
            hall = self._halls[readable] = Hall(Line(self._places), Line(self._places))
            for place in self._places.values():
                if place.progress.loadable and place.progress.owed_to(readable):
                    hall.add(place)

    def leave(self, worker: str) -> None:
        readable = self._desks.pop(worker).readable
        if all(desk.readable != readable for desk in self._desks.values()):
            del self._halls[readable]

    def put(self, progress: Progress) -> None:
        """A trial is ready, or something about one that is ready has changed."""
        trial = progress.trial.id
        before = self._places.get(trial)
        self._number += 1
        since = self._number if before is None else before.since
        place = Place(-progress.unit_seconds * progress.units_left, since, self._number, progress)
        self._places[trial] = place
        if progress.loadable:
            for readable, hall in self._halls.items():
                if progress.owed_to(readable):
                    hall.add(place)
        if progress.holder is not None:
            desk = self._desks[progress.holder]
            if progress.owed_to(desk.readable):
                (desk.held if progress.loadable else desk.own).add(place)

    def remove(self, trial: str) -> None:
        """A trial is not ready, if it ever was."""
        self._places.pop(trial, None)

    def longest(self, worker: str, unit_seconds: float) -> Progress | None:
        """The trial with the most left that a worker can take, if a unit of an unknown one takes ``unit_seconds``.

        Ties go to a trial whose model the worker holds, then to the one that has been ready for the longest time.
        """
        desk = self._desks[worker]
        hall = self._halls[desk.readable]
        lines = ((hall.known, 1.0, 0), (hall.unknown, unit_seconds, 0), (desk.held, 1.0, 1), (desk.own, 1.0, 1))
        candidates = [
            (-place.left * seconds, held, -place.since, place.progress)
            for line, seconds, held in lines
            if (place := line.first()) is not None
        ]
        return max(candidates, key=itemgetter(0, 1, 2))[3] if candidates else None

    def longest_held(self, worker: str) -> Progress | None:
        """The trial with the most left among those that a worker can take and whose models it holds."""
        desk = self._desks[worker]
        places = [place for line in (desk.held, desk.own) if (place := line.first()) is not None]
        return min(places).progress if places else None

    def draw(self, worker: str, rng: random.Random) -> Progress | None:
        """Each trial that a worker can take with the same chance."""
        lines = [line for line in self._lines(worker) if line.first() is not None]
        sizes = [len(line.places) for line in lines]
        for _ in range(DRAWS if lines else 0):
            line = rng.choices(lines, sizes)[0]
            place = rng.choice(line.places)
            if line.keeps(place):
                return place.progress
        for line in lines:
            line.tidy()
        return rng.choice(self.able(worker)) if lines else None

    def able(self, worker: str) -> list[Progress]:
        """All trials that a worker can take."""
        return [place.progress for line in self._lines(worker) for place in line.places if line.keeps(place)]

    def _lines(self, worker: str) -> tuple[Line, ...]:
        """Where those stand that a worker can take, each of them once."""
        desk = self._desks[worker]
        hall = self._halls[desk.readable]
        return hall.known, hall.unknown, desk.own
