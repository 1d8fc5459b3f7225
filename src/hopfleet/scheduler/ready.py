"""Trials that may train now, indexed by the workers that can take them and by the work they have left.

A policy asks for the longest trial, or for a random trial, that a certain worker can take. With thousands of trials
the answer must not require a scan, so trials are kept in queues: one pair for each set of partitions that workers read,
and one pair for each worker, for trials whose models the worker holds. ``Schedule`` puts a trial again whenever the
trial changes.
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
"""Consecutive draws of outdated entries after which the queues are purged; most of their entries are outdated then."""


class Entry(NamedTuple):
    """A queue entry of a trial; the smallest comes first. A trial that is put again gets a new entry."""

    #: The negated work left: in seconds, or in units while no unit of the trial was measured.
    left: float
    #: The number of the entry that the trial got when it became ready.
    since: int
    #: A running number, which makes entries distinct.
    number: int
    progress: Progress


class Queue:
    """A heap of entries. Outdated entries remain until they come first, or until they are the majority."""

    def __init__(self, current: Mapping[str, Entry]) -> None:
        self._current = current
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        heapq.heappush(self.entries, entry)
        if len(self.entries) > 2 * len(self._current) + DRAWS:
            self.purge()

    def first(self) -> Entry | None:
        while self.entries and not self.is_current(self.entries[0]):
            heapq.heappop(self.entries)
        return self.entries[0] if self.entries else None

    def is_current(self, entry: Entry) -> bool:
        return self._current.get(entry.progress.trial.id) is entry

    def purge(self) -> None:
        self.entries = [entry for entry in self.entries if self.is_current(entry)]
        heapq.heapify(self.entries)


@dataclass(frozen=True, slots=True)
class SharedQueues:
    """Trials that every worker with access to the same partitions can take."""

    known: Queue
    #: Unmeasured trials share one expected unit time, which changes with every finished unit; their order does not.
    unknown: Queue

    def add(self, entry: Entry) -> None:
        (self.known if entry.progress.known else self.unknown).add(entry)


@dataclass(frozen=True, slots=True)
class LocalQueues:
    """Trials that one worker can take and whose models it holds."""

    readable: Readable
    #: Trials whose models other workers can load too.
    held: Queue
    #: Trials whose models no other worker can load.
    own: Queue


class Ready:
    """All queues of a schedule."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._shared: dict[Readable, SharedQueues] = {}
        self._local: dict[str, LocalQueues] = {}
        self._number = 0

    def join(self, worker: str, readable: Readable) -> None:
        """Add a worker that can read these partitions."""
        self._local[worker] = LocalQueues(readable, Queue(self._entries), Queue(self._entries))
        if readable not in self._shared:
            shared = self._shared[readable] = SharedQueues(Queue(self._entries), Queue(self._entries))
            for entry in self._entries.values():
                if entry.progress.loadable and entry.progress.owed_to(readable):
                    shared.add(entry)

    def leave(self, worker: str) -> None:
        """Remove a worker."""
        readable = self._local.pop(worker).readable
        if all(local.readable != readable for local in self._local.values()):
            del self._shared[readable]

    def put(self, progress: Progress) -> None:
        """Add a trial that became ready, or update a ready trial that has changed."""
        trial = progress.trial.id
        before = self._entries.get(trial)
        self._number += 1
        since = self._number if before is None else before.since
        entry = Entry(-progress.unit_seconds * progress.units_left, since, self._number, progress)
        self._entries[trial] = entry
        if progress.loadable:
            for readable, shared in self._shared.items():
                if progress.owed_to(readable):
                    shared.add(entry)
        if progress.holder is not None:
            local = self._local[progress.holder]
            if progress.owed_to(local.readable):
                (local.held if progress.loadable else local.own).add(entry)

    def remove(self, trial: str) -> None:
        """Remove a trial if it is ready."""
        self._entries.pop(trial, None)

    def longest(self, worker: str, unit_seconds: float) -> Progress | None:
        """Return the trial with the most work left that a worker can take; unmeasured units take ``unit_seconds``.

        Ties go to a trial whose model the worker holds, then to the trial that has been ready the longest.
        """
        local = self._local[worker]
        shared = self._shared[local.readable]
        queues = ((shared.known, 1.0, 0), (shared.unknown, unit_seconds, 0), (local.held, 1.0, 1), (local.own, 1.0, 1))
        candidates = [
            (-entry.left * seconds, held, -entry.since, entry.progress)
            for queue, seconds, held in queues
            if (entry := queue.first()) is not None
        ]
        return max(candidates, key=itemgetter(0, 1, 2))[3] if candidates else None

    def longest_held(self, worker: str) -> Progress | None:
        """Return the trial with the most work left that a worker can take and whose model it holds."""
        local = self._local[worker]
        entries = [entry for queue in (local.held, local.own) if (entry := queue.first()) is not None]
        return min(entries).progress if entries else None

    def draw(self, worker: str, rng: random.Random) -> Progress | None:
        """Draw one of the trials that a worker can take, with equal probability."""
        queues = [queue for queue in self._queues(worker) if queue.first() is not None]
        sizes = [len(queue.entries) for queue in queues]
        for _ in range(DRAWS if queues else 0):
            queue = rng.choices(queues, sizes)[0]
            entry = rng.choice(queue.entries)
            if queue.is_current(entry):
                return entry.progress
        for queue in queues:
            queue.purge()
        return rng.choice(self.able(worker)) if queues else None

    def able(self, worker: str) -> list[Progress]:
        """Return all trials that a worker can take."""
        return [entry.progress for queue in self._queues(worker) for entry in queue.entries if queue.is_current(entry)]

    def _queues(self, worker: str) -> tuple[Queue, ...]:
        """Return the queues that together hold each trial that a worker can take once."""
        local = self._local[worker]
        shared = self._shared[local.readable]
        return shared.known, shared.unknown, local.own
