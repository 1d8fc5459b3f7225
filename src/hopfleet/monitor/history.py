"""The history of an experiment: a fold over its journal, and the only source of all views.

The history is separate from the views, because it knows no terminal, chart or data frame, and from the controller,
because it decides nothing. So it also works on a journal that another process is still writing.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hopfleet.domain.choices import Mode
from hopfleet.domain.expectation import Expectation
from hopfleet.domain.messages import (
    RELEASED,
    DropVersion,
    EpochEnded,
    Finish,
    Message,
    PartitionsMissing,
    RunHeld,
    RunStalled,
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
    UnitOverdue,
    UnitStopped,
    VersionLost,
    VersionSaved,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.objectives import Limit, costs, feasible, front
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import UsageError
from hopfleet.monitor.observer import Observer
from hopfleet.monitor.progress import SUGGESTED, UnitCounts, measure
from hopfleet.monitor.records import Dropped
from hopfleet.monitor.records import EpochRow as EpochRow
from hopfleet.monitor.records import Span as Span
from hopfleet.monitor.records import TrialHistory as TrialHistory
from hopfleet.monitor.records import WorkerView as WorkerView
from hopfleet.monitor.steps import Curves, LoggedSteps
from hopfleet.phrases import listed


class History(Observer):
    """The fold: ``apply`` takes the messages in the order of the journal and is the only mutator.

    A history belongs into the list of observers before the observers that read it.

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
        expected: Expectation | None = None,
    ) -> None:
        self.metric = metric
        self.mode: Mode = mode
        #: All optimised metrics with their modes; limits are bounds on metrics.
        self.objectives: list[tuple[str, str]] = [(metric, mode), *others]
        self.limits = limits
        self.expected = expected  #: the search's expectation; None if unknown
        self.partitions = partitions
        self.name = name
        self.trials: dict[str, TrialHistory] = {}
        self.workers: dict[str, WorkerView] = {}
        self.spans: list[Span] = []  #: in the order in which they ended
        self.gaps: list[tuple[float, float]] = []  #: from the last message of a run to the start of the next
        self.runs = 0
        self.definition: Mapping[str, Any] = {}  #: of the experiment; empty if no run has told it
        self.hops = 0
        self.started: float | None = None
        self.updated: float | None = None
        self.finished: bool | None = None  #: ``complete`` of Finish; None while running or after an interruption
        self.held = False  #: whether the run is paused on request
        self.holds: list[tuple[float, float]] = []  #: when the run was paused on request; the last may have no end yet
        self.delayed: dict[VersionRef, SaveDelayed] = {}  #: saves that a disk does not take for now
        #: Training and validation partitions on no worker that trials wait for.
        self.missing: tuple[int, ...] = ()
        self.missing_valid: tuple[int, ...] = ()
        self._limit = limit
        self._let_go: Counter[TrialState] = Counter()  #: dropped trials by state
        self.dropped = Dropped()
        self._metric_names: dict[str, None] = {name: None for name, _ in self.objectives}  #: an ordered set
        self.trained = 0  #: finished units, including undone ones
        self.faults: Counter[str] = Counter()  #: by worker; an empty name for those of no worker
        self._evaluations: dict[tuple[str, int, int], Span] = {}  #: by trial, epoch and validation partition

    @property
    def waits_for(self) -> str:
        """Why the run waits, if a version cannot be written to disk; empty otherwise."""
        return next((delay.error for delay in self.delayed.values() if not delay.on_node), "")

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
        handler = _HANDLERS.get(type(message))
        if handler is not None:
            handler(self, time, message)
        self.started = time if self.started is None else self.started
        self.updated = time if self.updated is None else max(self.updated, time)

    def recall(self, time: float, message: Message) -> None:
        self.apply(time, message)

    def update(self, time: float, message: Message) -> None:
        self.apply(time, message)

    def _tidy(self, ended: TrialHistory) -> None:
        if self._limit is None:
            return
        self.spans.clear()
        for key in [key for key in self._evaluations if key[0] == ended.id]:
            del self._evaluations[key]
        kept = [trial for trial in self.trials.values() if trial.state.ended]
        for trial in sorted(kept, key=self._rank)[self._limit :] if len(kept) > self._limit else ():
            self._let_go[trial.state] += 1
            self.dropped.units += trial.units_done
            self.dropped.planned += trial.epochs * self.partitions if trial.origin in SUGGESTED else 0
            del self.trials[trial.id]

    def _trial(self, name: str) -> TrialHistory:
        """Return a trial, or a throw-away record for a trial that was dropped or deleted."""
        return self.trials.get(name) or TrialHistory(name, 0, {}, 0, 0)

    def _add(self, time: float, message: TrialAdded) -> None:
        self.trials[message.trial] = TrialHistory(
            *(message.trial, message.number, message.config, message.seed, message.epochs),
            *(message.origin, message.parent, message.visits, len(message.visits) // self.partitions),
            logged=LoggedSteps(message.visits),
            chosen=message.chosen,
        )

    def _end_trial(self, time: float, message: TrialEnded) -> None:
        trial = self._trial(message.trial)
        trial.state, trial.reason, trial.traceback = message.state, message.reason, message.traceback
        self._tidy(trial)

    def _pause(self, time: float, message: TrialPaused) -> None:
        self._trial(message.trial).state = TrialState.PAUSED

    def _delete(self, time: float, message: TrialDeleted) -> None:
        self.trials.pop(message.trial, None)

    def _resume(self, time: float, message: TrialResumed) -> None:
        trial = self._trial(message.trial)
        if message.epochs > trial.epochs:
            trial.milestones.append(trial.epochs)
        trial.epochs = message.epochs
        trial.reason = trial.traceback = ""
        if trial.state is not TrialState.PENDING:
            trial.state = TrialState.RUNNING

    def _start_run(self, time: float, message: RunStarted) -> None:
        if self.updated is not None:
            for worker in self.live_workers():
                self._lose(self.updated, worker)
            if self.runs:
                self.gaps.append((self.updated, time))
        self.runs += 1
        self.definition = message.definition or self.definition
        self.finished = None
        if self.held and self.updated is not None:
            self._release(self.updated)
        self.held = False
        self.delayed.clear()
        self.missing = self.missing_valid = ()

    def _join(self, time: float, message: WorkerJoined) -> None:
        worker = self.workers.setdefault(message.worker, WorkerView(message.worker, str(message.placement), time))
        worker.device, worker.joined, worker.lost = str(message.placement), time, None

    def _fault(self, time: float, message: Message) -> None:
        self.faults[getattr(message, "worker", "") or ""] += 1

    def _lose_worker(self, time: float, message: WorkerLost) -> None:
        if message.reason != RELEASED:
            self._fault(time, message)
        self._lose(time, self.workers[message.worker])

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

    def _record(self, message: UnitFinished | UnitFailed | UnitStopped) -> Span:
        unit = message.unit
        names = sys.intern(message.worker), sys.intern(unit.trial)  # a journal has each name in every message
        span = Span(*names, unit.epoch, unit.partition, unit.work, message.started, message.ended)
        self.spans.append(span)
        self._free(self.workers[message.worker], unit, span)
        return span

    def _fail_unit(self, time: float, message: UnitFailed) -> None:
        self._fault(time, message)
        self._record(message).failed = True

    def _stop_unit(self, time: float, message: UnitStopped) -> None:
        self._record(message).undone = True

    def _finish_unit(self, time: float, message: UnitFinished) -> None:
        span = self._record(message)
        if not message.unit.trains:
            self._finish_evaluation(message.unit, span)
            return
        span.hopped = message.hopped
        self.hops += message.hopped
        self.trained += 1
        trial = self._trial(message.trial)
        trial.units.append(span)
        trial.logged.add(message.version, message.unit.partition, message.logged)
        self.workers[message.worker].units += 1
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
        worker.busy += max(0.0, span.ended - max(span.started, worker.busy_until))
        worker.busy_until = max(worker.busy_until, span.ended)

    def _roll_back(self, time: float, message: TrialRolledBack) -> None:
        trial = self._trial(message.trial)
        own = message.version - len(trial.inherited)
        for span in trial.units[own:]:
            span.undone = True
            self.workers[span.worker].units -= 1
        del trial.units[own:]
        trial.logged.roll_back(message.version)

    def _end_epoch(self, time: float, message: EpochEnded) -> None:
        trial, metrics = self._trial(message.trial), message.metrics
        # A rolled-back epoch ends a second time, with the same metrics.
        trial.epochs_done.add(message.epoch, message.version, metrics, time)
        if message.best:
            trial.best = EpochRow(message.epoch, message.version, dict(metrics), time)
        if not metrics.keys() <= self._metric_names.keys():
            self._metric_names.update(dict.fromkeys(metrics))

    def _save(self, time: float, message: VersionSaved) -> None:
        self.delayed.pop(message.ref, None)
        if message.durable:
            self._trial(message.trial).saved[message.ref.version] = message

    def _delay(self, time: float, message: SaveDelayed) -> None:
        self._fault(time, message)
        self.delayed[message.ref] = message

    def _drop(self, time: float, message: VersionLost | DropVersion) -> None:
        if isinstance(message, VersionLost):
            self._fault(time, message)
        ref, saved = message.ref, self._trial(message.ref.trial).saved
        if ref.version in saved and saved[ref.version].ref == ref:
            del saved[ref.version]

    def _hold(self, time: float, message: RunHeld) -> None:
        if message.held and not self.held:
            self.holds.append((time, math.inf))
        elif self.held and not message.held:
            self._release(time)
        self.held = message.held

    def _release(self, time: float) -> None:
        begin, _ = self.holds.pop()
        self.holds.append((begin, time))

    def _miss(self, time: float, message: PartitionsMissing) -> None:
        self.missing, self.missing_valid = message.partitions, message.valid

    def _finish(self, time: float, message: Finish) -> None:
        self.finished = message.complete

    # -------------------------------------------------------------------------------------------- derived values

    @property
    def elapsed(self) -> float:
        """Seconds in which the experiment was running and not paused, according to the messages."""
        if self.started is None or self.updated is None:
            return 0.0
        breaks = [*self.gaps, *((start, min(end, self.updated)) for start, end in self.holds)]
        return self.updated - self.started - sum(end - start for start, end in breaks)

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
        return sorted(self.trials.values(), key=self._rank)

    def _rank(self, trial: TrialHistory) -> tuple[bool, bool, float, int]:
        value = self.value(trial)
        if value is None:
            return (True, True, 0.0, trial.number)
        return (False, not self.feasible(trial), value if self.mode == "min" else -value, trial.number)

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

    @property
    def failed(self) -> str:
        """``all 8 trials failed`` if there are trials and all of them have failed, else empty."""
        counts = self.counts()
        failed, trials = counts[TrialState.FAILED], sum(counts.values())
        if not failed or failed < trials:
            return ""
        return f"all {trials} trials failed" if trials > 1 else "the trial failed"

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

    def logged(self, trial: TrialHistory) -> Curves:
        """Return the values of single steps that a trial logged, by name, with their steps."""
        return trial.logged.curves(self.definition, trial.config)

    def logged_names(self) -> list[str]:
        """Return the names of all values of single steps, in alphabetical order."""
        return sorted(set[str]().union(*(trial.logged.names for trial in self.trials.values())))

    def reported(self, metric: str | None) -> str:
        """Return ``metric``, by default the experiment's. Raise UsageError if no trial reports it."""
        if metric is not None and metric not in self._metric_names:
            raise UsageError(
                f"metric={metric!r}: no trial reports it; choose one of {listed(metric, self._metric_names)}"
            )
        return metric or self.metric

    def progress(self) -> UnitCounts:
        """Return the progress so far, and the remaining time."""
        return measure(self)

    def busy_fraction(self) -> dict[str, float]:
        """Return for each worker the fraction of its time spent on units, including the current unit."""
        return {worker.name: self._busy_fraction(worker) for worker in self.workers.values()}

    def _busy_fraction(self, worker: WorkerView) -> float:
        assert self.updated is not None, "a worker has joined, so a message was applied"
        stay = self.updated - worker.joined if worker.lost is None else 0.0
        current = self.updated - worker.since if worker.doing else 0.0
        present = worker.earlier + stay
        return min(1.0, (worker.busy + current) / present) if present > 0 else 0.0


_HANDLERS: Mapping[type[Any], Callable[[History, float, Any], None]] = {
    RunStarted: History._start_run,
    WorkerJoined: History._join,
    WorkerLost: History._lose_worker,
    RunUnit: History._assign,
    UnitFinished: History._finish_unit,
    UnitFailed: History._fail_unit,
    UnitStopped: History._stop_unit,
    TrialAdded: History._add,
    TrialRolledBack: History._roll_back,
    EpochEnded: History._end_epoch,
    TrialEnded: History._end_trial,
    TrialPaused: History._pause,
    TrialResumed: History._resume,
    TrialDeleted: History._delete,
    VersionSaved: History._save,
    SaveDelayed: History._delay,
    VersionLost: History._drop,
    DropVersion: History._drop,
    UnitOverdue: History._fault,
    RunStalled: History._fault,
    RunHeld: History._hold,
    PartitionsMissing: History._miss,
    Finish: History._finish,
}
"""The methods that apply messages, by type. Messages of other types only advance the clock."""
