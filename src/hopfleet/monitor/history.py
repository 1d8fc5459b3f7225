"""The history of an experiment: a fold over its journal, and the only source of all views.

The history is separate from the views, because it knows no terminal, chart or data frame, and from the controller,
because it decides nothing. So it also works on a journal that another process is still writing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from hopfleet.domain.messages import (
    DropVersion,
    EpochEnded,
    Finish,
    Message,
    PartitionsMissing,
    RunHeld,
    RunStarted,
    RunUnit,
    SaveDelayed,
    TrialAdded,
    TrialDeleted,
    TrialEnded,
    TrialPaused,
    TrialResumed,
    TrialRolledBack,
    UnitFailed,
    UnitFinished,
    VersionLost,
    VersionSaved,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.objectives import Limit, costs, feasible, front
from hopfleet.domain.trial import Config, TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import UsageError

Mode = Literal["min", "max"]


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
    epochs_done: list[EpochRow] = field(default_factory=list)
    best: EpochRow | None = None
    reason: str = ""  #: why the trial ended, unless it completed
    traceback: str = ""
    units: list[Span] = field(default_factory=list)  #: units that count, in order, without those inherited
    saved: dict[int, VersionSaved] = field(default_factory=dict)  #: durable versions that still exist

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
    units: int = 0  #: units and evaluations finished
    busy: float = 0.0  #: seconds of finished work, overlaps counted once
    busy_until: float = -math.inf
    earlier: float = 0.0  #: seconds present before the current period


@dataclass(frozen=True, slots=True)
class Progress:
    """Units of all known trials. Units that an ended trial left out count as done; ``eta`` is in seconds."""

    done: int
    planned: int
    eta: float | None

    @property
    def fraction(self) -> float:
        return self.done / self.planned if self.planned else 0.0


class History:
    """The fold: ``apply`` takes the messages in the order of the journal and is the only mutator.

    With ``limit``, the history keeps only the best ``limit`` ended trials and no spans, so that its size stays bounded.
    Dropped trials still count in ``counts`` and ``progress``.
    """

    def __init__(
        self,
        *,
        metric: str,
        mode: Mode,
        partitions: int,
        name: str,
        limit: int | None = None,
        others: Sequence[tuple[str, str]] = (),
        limits: Sequence[Limit] = (),
    ) -> None:
        self.metric = metric
        self.mode: Mode = mode
        #: All optimised metrics with their modes; limits are bounds on metrics.
        self.objectives: list[tuple[str, str]] = [(metric, mode), *others]
        self.limits = limits
        self.partitions = partitions
        self.name = name
        self.trials: dict[str, TrialHistory] = {}
        self.workers: dict[str, WorkerView] = {}
        self.spans: list[Span] = []  #: in the order in which they ended
        self.gaps: list[tuple[float, float]] = []  #: from the last message of a run to the start of the next
        self.runs = 0
        self.hops = 0
        self.started: float | None = None
        self.updated: float | None = None
        self.finished: bool | None = None  #: ``complete`` of Finish; None while running or after an interruption
        self.held = False  #: whether the run is paused on request
        self.delayed: dict[VersionRef, SaveDelayed] = {}  #: saves that a disk does not take for now
        self.missing: tuple[int, ...] = ()  #: partitions on no worker that trials wait for
        self._limit = limit
        self._let_go: Counter[TrialState] = Counter()  #: dropped trials by state
        self._epochs_let_go = 0  #: planned epochs of dropped trials
        self._metric_names: dict[str, None] = {name: None for name, _ in self.objectives}  #: an ordered set
        self._trained = 0  #: finished units, including undone ones
        self._evaluations: dict[tuple[str, int, int], Span] = {}  #: by trial, epoch and validation partition

    @property
    def waits_for(self) -> str:
        """Why the run waits, if a version cannot be written to disk; empty otherwise."""
        return next((delay.error for delay in self.delayed.values()), "")

    @classmethod
    def of(
        cls, records: Iterable[tuple[float, Message]], *, metric: str, mode: Mode, partitions: int, name: str
    ) -> History:
        """Return the history of a whole journal."""
        history = cls(metric=metric, mode=mode, partitions=partitions, name=name)
        for time, message in records:
            history.apply(time, message)
        return history

    # ------------------------------------------------------------------------------------------ the fold

    def apply(self, time: float, message: Message) -> None:
        """Apply the next message of the journal."""
        match message:
            case RunStarted():
                self._start_run(time)
            case WorkerJoined():
                self._join(time, message)
            case WorkerLost(worker=worker):
                self._lose(time, self.workers[worker])
            case RunUnit():
                self._assign(time, message)
            case UnitFinished():
                self._finish_unit(message)
            case UnitFailed():
                self._record(message).failed = True
            case TrialAdded():
                self.trials[message.trial] = TrialHistory(
                    *(message.trial, message.number, message.config, message.seed, message.epochs),
                    *(message.origin, message.parent, message.visits, len(message.visits) // self.partitions),
                )
            case TrialRolledBack(trial=trial, version=version):
                self._roll_back(self._trial(trial), version)
            case EpochEnded():
                self._end_epoch(time, message)
            case TrialEnded():
                trial_history = self._trial(message.trial)
                trial_history.state = message.state
                trial_history.reason = message.reason
                trial_history.traceback = message.traceback
                self._tidy(trial_history)
            case TrialPaused(trial=trial):
                self._trial(trial).state = TrialState.PAUSED
            case TrialResumed():
                self._resume(message)
            case TrialDeleted(trial=trial):
                self.trials.pop(trial, None)
            case VersionSaved():
                self.delayed.pop(message.ref, None)
                if message.durable:
                    self._trial(message.trial).saved[message.ref.version] = message
            case SaveDelayed():
                self.delayed[message.ref] = message
            case VersionLost(ref=ref) | DropVersion(ref=ref):
                saved = self._trial(ref.trial).saved
                if ref.version in saved and saved[ref.version].ref == ref:
                    del saved[ref.version]
            case RunHeld(held=held):
                self.held = held
            case PartitionsMissing(partitions=partitions):
                self.missing = partitions
            case Finish(complete=complete):
                self.finished = complete
        self.started = time if self.started is None else self.started
        self.updated = time if self.updated is None else max(self.updated, time)

    def _tidy(self, ended: TrialHistory) -> None:
        if self._limit is None:
            return
        self.spans.clear()
        for key in [key for key in self._evaluations if key[0] == ended.id]:
            del self._evaluations[key]
        kept = [trial for trial in self.leaderboard() if trial.state.ended]
        for trial in kept[self._limit :]:
            self._let_go[trial.state] += 1
            self._epochs_let_go += trial.epochs
            del self.trials[trial.id]

    def _trial(self, name: str) -> TrialHistory:
        """Return a trial, or a throw-away record for a trial that was dropped or deleted."""
        return self.trials.get(name) or TrialHistory(name, 0, {}, 0, 0)

    def _resume(self, message: TrialResumed) -> None:
        trial = self._trial(message.trial)
        if message.epochs > trial.epochs:
            trial.milestones.append(trial.epochs)
        trial.epochs = message.epochs
        trial.reason = trial.traceback = ""
        if trial.state is not TrialState.PENDING:
            trial.state = TrialState.RUNNING

    def _start_run(self, time: float) -> None:
        if self.updated is not None:
            for worker in self.live_workers():
                self._lose(self.updated, worker)
            if self.runs:
                self.gaps.append((self.updated, time))
        self.runs += 1
        self.finished = None
        self.held = False
        self.delayed.clear()
        self.missing = ()

    def _join(self, time: float, message: WorkerJoined) -> None:
        worker = self.workers.setdefault(message.worker, WorkerView(message.worker, str(message.placement), time))
        worker.device, worker.joined, worker.lost = str(message.placement), time, None

    def _lose(self, time: float, worker: WorkerView) -> None:
        if worker.doing is not None:
            unit = worker.doing
            span = Span(worker.name, unit.trial, unit.epoch, unit.partition, unit.work, worker.since, time, undone=True)
            self.spans.append(span)
        worker.doing = worker.next = None
        self.delayed = {number: delay for number, delay in self.delayed.items() if delay.worker != worker.name}
        worker.lost = time
        worker.earlier += time - worker.joined

    def _assign(self, time: float, message: RunUnit) -> None:
        worker = self.workers[message.worker]
        if message.lookahead:
            worker.next = message.unit
        else:
            worker.doing, worker.since = message.unit, time

    def _record(self, message: UnitFinished | UnitFailed) -> Span:
        unit = message.unit
        span = Span(message.worker, unit.trial, unit.epoch, unit.partition, unit.work, message.started, message.ended)
        self.spans.append(span)
        self._free(self.workers[message.worker], unit, span)
        return span

    def _finish_unit(self, message: UnitFinished) -> None:
        span = self._record(message)
        if not message.unit.trains:
            self._finish_evaluation(message.unit, span)
            return
        span.hopped = message.hopped
        self.hops += message.hopped
        self._trained += 1
        trial = self._trial(message.trial)
        trial.units.append(span)
        if trial.state is TrialState.PENDING:
            trial.state = TrialState.RUNNING

    def _finish_evaluation(self, unit: Unit, span: Span) -> None:
        key = (unit.trial, unit.epoch, unit.partition)
        if key in self._evaluations:
            self._evaluations[key].undone = True
        self._evaluations[key] = span

    def _free(self, worker: WorkerView, unit: Unit, span: Span) -> None:
        if worker.doing == unit:
            worker.doing, worker.since, worker.next = worker.next, span.ended, None
        worker.units += 1
        worker.busy += max(0.0, span.ended - max(span.started, worker.busy_until))
        worker.busy_until = max(worker.busy_until, span.ended)

    def _roll_back(self, trial: TrialHistory, version: int) -> None:
        own = version - len(trial.inherited)
        for span in trial.units[own:]:
            span.undone = True
        del trial.units[own:]

    def _end_epoch(self, time: float, message: EpochEnded) -> None:
        trial = self._trial(message.trial)
        row = EpochRow(message.epoch, message.version, dict(message.metrics), time)
        # A rolled-back epoch ends a second time, with the same metrics.
        trial.epochs_done = [*(earlier for earlier in trial.epochs_done if earlier.epoch != row.epoch), row]
        if message.best:
            trial.best = row
        self._metric_names.update(dict.fromkeys(row.metrics))

    # -------------------------------------------------------------------------------------------- derived values

    @property
    def elapsed(self) -> float:
        """Seconds in which the experiment was running, according to the messages."""
        if self.started is None or self.updated is None:
            return 0.0
        return self.updated - self.started - sum(end - start for start, end in self.gaps)

    def live_workers(self) -> list[WorkerView]:
        return [worker for worker in self.workers.values() if worker.lost is None]

    def value(self, trial: TrialHistory) -> float | None:
        """Return the metric at the trial's best epoch, or None if there is none or the value is NaN."""
        value = trial.best.metrics.get(self.metric) if trial.best else None
        return None if value is None or math.isnan(value) else value

    def feasible(self, trial: TrialHistory) -> bool:
        """Whether the trial satisfies all limits at its best epoch."""
        return trial.best is not None and feasible(self.limits, trial.best.metrics)

    def leaderboard(self) -> list[TrialHistory]:
        """Return all trials, best first, then those beyond a limit, then those without a value; ties by number."""
        sign = 1 if self.mode == "min" else -1

        def key(trial: TrialHistory) -> tuple[bool, bool, float, int]:
            value = self.value(trial)
            if value is None:
                return (True, True, 0.0, trial.number)
            return (False, not self.feasible(trial), sign * value, trial.number)

        return sorted(self.trials.values(), key=key)

    def best(self) -> TrialHistory | None:
        """Return the leader, or None if no trial has a value within all limits."""
        leaders = self.leaderboard()[:1]
        return leaders[0] if leaders and self.value(leaders[0]) is not None and self.feasible(leaders[0]) else None

    def pareto(self) -> list[TrialHistory]:
        """Return the trials within all limits that no other trial beats in all objectives, at their best epochs."""
        trials = sorted(filter(self.feasible, self.trials.values()), key=lambda trial: trial.number)
        points = [(trial, costs(self.objectives, trial.best.metrics)) for trial in trials if trial.best]
        known = [(trial, point) for trial, point in points if point is not None]
        return [known[place][0] for place in front([point for _, point in known])]

    def counts(self) -> dict[TrialState, int]:
        """Count the trials in each state."""
        counts = dict.fromkeys(TrialState, 0)
        for trial in self.trials.values():
            counts[trial.state] += 1
        for state, number in self._let_go.items():
            counts[state] += number
        return counts

    def metric_names(self) -> list[str]:
        """Return the experiment's metrics, then all others in the order of their first appearance."""
        return list(self._metric_names)

    def reported(self, metric: str | None) -> str:
        """Return ``metric``, by default the experiment's. Raise UsageError if no trial reports it."""
        if metric is not None and metric not in self._metric_names:
            raise UsageError(f"metric={metric!r}: no trial reports it; choose one of {', '.join(self._metric_names)}")
        return metric or self.metric

    def progress(self) -> Progress:
        """Return the progress of all known trials.

        ``eta`` is a lower bound from measured times: workers share the remaining units evenly, but the units of one
        trial run one after another. The cost of a unit includes evaluations.
        """
        planned = self._epochs_let_go * self.partitions + sum(self._planned(trial) for trial in self.trials.values())
        ahead = [self._planned(trial) - trial.units_done for trial in self.trials.values() if not trial.state.ended]
        return Progress(planned - sum(ahead), planned, self._seconds_for(ahead))

    def _planned(self, trial: TrialHistory) -> int:
        return trial.epochs * self.partitions - len(trial.inherited)

    def _seconds_for(self, ahead: list[int]) -> float | None:
        if not any(ahead):
            return 0.0 if self.trials else None
        workers = len(self.live_workers())
        if not workers or not self._trained:
            return None
        seconds_per_unit = sum(worker.busy for worker in self.workers.values()) / self._trained
        return seconds_per_unit * max(sum(ahead) / workers, max(ahead))

    def busy_fraction(self) -> dict[str, float]:
        """Return for each worker the fraction of its time spent on units, including the current unit."""
        return {worker.name: self._busy_fraction(worker) for worker in self.workers.values()}

    def _busy_fraction(self, worker: WorkerView) -> float:
        assert self.updated is not None, "a worker has joined, so a message was applied"
        stay = self.updated - worker.joined if worker.lost is None else 0.0
        current = self.updated - worker.since if worker.doing else 0.0
        present = worker.earlier + stay
        return min(1.0, (worker.busy + current) / present) if present > 0 else 0.0
