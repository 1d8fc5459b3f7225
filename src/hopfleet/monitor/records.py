"""The records of a history: spans of work, trials with their epochs, and workers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import overload

from hopfleet.domain.messages import VersionSaved
from hopfleet.domain.trial import Config, TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.monitor.steps import LoggedSteps


@dataclass(slots=True)
class Span:
    """A unit or an evaluation on one worker, from ``started`` to ``ended``."""

    worker: str
    trial: str
    epoch: int
    partition: int
    work: Work
    started: float
    ended: float
    hopped: bool = False  #: the model came from another worker
    failed: bool = False  #: the user's code raised
    undone: bool = False  #: the work does not count: rolled back, repeated, or its worker was lost


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One finished epoch of a trial."""

    epoch: int
    version: int
    metrics: dict[str, float]
    time: float


class EpochRows(Sequence[EpochRow]):
    """The finished epochs of a trial in the order in which they ended, as numbers in arrays.

    A thousand trials with 500 epochs each have half a million rows. In arrays, a row takes 50 bytes instead of 400.
    """

    __slots__ = ("_begins", "_epochs", "_layouts", "_of", "_times", "_values", "_versions")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._epochs, self._versions, self._times = array("I"), array("Q"), array("d")
        self._layouts: list[tuple[str, ...]] = []  #: the different lists of metrics
        self._of = array("H")  #: the layout of each row
        self._begins = array("I")  #: where the values of each row begin
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._epochs)

    @overload
    def __getitem__(self, place: int) -> EpochRow: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[EpochRow]: ...
    def __getitem__(self, place: int | slice) -> EpochRow | Sequence[EpochRow]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        place = range(len(self))[place]
        names, begin = self._layouts[self._of[place]], self._begins[place]
        metrics = dict(zip(names, self._values[begin : begin + len(names)], strict=True))
        return EpochRow(self._epochs[place], self._versions[place], metrics, self._times[place])

    def __iter__(self) -> Iterator[EpochRow]:
        return (self[place] for place in range(len(self)))

    def add(self, epoch: int, version: int, metrics: Mapping[str, float], time: float) -> None:
        """Append a row. An earlier row of the same epoch, which was rolled back, goes."""
        if self._epochs and epoch <= self._epochs[-1] and epoch in self._epochs:
            kept = [earlier for earlier in self if earlier.epoch != epoch]
            self._clear()
            for earlier in kept:
                self.add(earlier.epoch, earlier.version, earlier.metrics, earlier.time)
        names = tuple(metrics)
        if names not in self._layouts:
            self._layouts.append(names)
        self._of.append(self._layouts.index(names))
        self._begins.append(len(self._values))
        self._values.extend(metrics.values())
        self._epochs.append(epoch)
        self._versions.append(version)
        self._times.append(time)

    def column(self, metric: str) -> tuple[array[int], array[float], array[float]]:
        """Return the epochs, times and values of a metric, without rows that lack it."""
        places = [layout.index(metric) if metric in layout else -1 for layout in self._layouts]
        if len(places) == 1 and places[0] >= 0:
            return self._epochs, self._times, self._values[places[0] :: len(self._layouts[0])]
        rows = [row for row in range(len(self)) if places[self._of[row]] >= 0]
        values = array("d", (self._values[self._begins[row] + places[self._of[row]]] for row in rows))
        epochs, times = (self._epochs[row] for row in rows), (self._times[row] for row in rows)
        return array("I", epochs), array("d", times), values


@dataclass(slots=True)
class TrialHistory:
    """The journal's record of one trial."""

    id: str
    number: int
    config: Config
    seed: int
    epochs: int  #: planned
    origin: str = "search"  #: or "point", "clone", "person"
    parent: str = ""  #: the trial that this one was cloned from
    inherited: tuple[int, ...] = ()  #: the partitions visited by the parent's model
    begins: int = 0  #: the parent's epoch from which a warm clone continues; 0 for other trials
    milestones: list[int] = field(default_factory=list)  #: planned last epochs before the trial was told to continue
    state: TrialState = TrialState.PENDING
    epochs_done: EpochRows = field(default_factory=EpochRows)
    best: EpochRow | None = None
    reason: str = ""  #: why the trial ended, unless it completed
    traceback: str = ""
    units: list[Span] = field(default_factory=list)  #: units that count, in order, without those inherited
    saved: dict[int, VersionSaved] = field(default_factory=dict)  #: durable versions that still exist
    logged: LoggedSteps = field(default_factory=LoggedSteps)  #: values of single steps
    chosen: Config = field(default_factory=dict)  #: as in ``TrialAdded``

    @property
    def displayed(self) -> Config:
        """The values that views show: those that a function asked for, by name; of other spaces, the configuration."""
        return self.chosen or self.config

    @property
    def units_done(self) -> int:
        return len(self.units)

    @property
    def epochs_trained(self) -> int:
        """The last finished epoch, including inherited ones."""
        return self.epochs_done[-1].epoch if self.epochs_done else self.begins

    @property
    def source(self) -> str:
        """The parent: ``t0003``, or ``t0003 at 2`` for a warm clone from epoch 2; empty if there is no parent."""
        return f"{self.parent} at {self.begins}" if self.inherited else self.parent

    @property
    def visits(self) -> list[list[int]]:
        """The partitions in the order visited, without inherited visits, one list per epoch; the last may be short."""
        return [[unit.partition for unit in units] for _, units in groupby(self.units, key=lambda unit: unit.epoch)]

    @property
    def error(self) -> str | None:
        """Why the trial failed, or None if it did not."""
        return self.reason if self.state is TrialState.FAILED else None


@dataclass(slots=True)
class WorkerView:
    """One worker, across all periods in which a worker of this name was present."""

    name: str
    device: str
    joined: float
    lost: float | None = None  #: None while the worker is present
    doing: Unit | None = None
    since: float = 0.0  #: when the current unit was assigned
    next: Unit | None = None  #: the unit assigned to run after the current one
    units: int = 0  #: trained units that count, as in the progress of the run
    busy: float = 0.0  #: seconds of finished work, overlaps counted once
    busy_until: float = -math.inf
    earlier: float = 0.0  #: seconds present before the current period


@dataclass(slots=True)
class Dropped:
    """Units of trials that a history with a limit has dropped."""

    units: int = 0  #: trained
    planned: int = 0  #: of trials that the search suggested
