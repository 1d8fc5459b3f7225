"""The one that decides: search and scheduler behind ``handle(event) -> messages``.

It knows no clock, file, process, socket or framework. Its state is a fold over the journal: ``handle`` applies an
event, then decides until nothing is left to decide, and applies each decision and command as it makes it; so
``restore`` rebuilds the state from a journal by applying alone, without deciding anything a second time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from functools import singledispatchmethod

from hopfleet.domain import messages as m
from hopfleet.domain.rowsum import add, means
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.scheduler.dispatch import Policy, next_assignment
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.orders import fixed_order
from hopfleet.scheduler.progress import Outcome, Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.search.base import Search, Verdict

MAX_LIVE = 256
"""How many trials are under way at once. Enough for any schedule to be dense, few enough to bound disk and memory."""

MAX_LOSSES = 3
"""After so many lost workers in a row a unit is taken for poison and its trial fails."""


class Controller:
    """Turns events into decisions and commands."""

    def __init__(
        self,
        search: Search,
        policy: Policy,
        *,
        partitions: int,
        valid_partitions: int,
        seed: int = 0,
        max_live: int = MAX_LIVE,
        estimates: Estimates | None = None,
        fixed_order: bool = False,
    ) -> None:
        self.search = search
        self.policy = policy
        self.seed = seed
        self.max_live = max_live
        self.fixed_order = fixed_order
        self.schedule = Schedule(partitions, valid_partitions, estimates)
        self.finished = False
        self.draining = False
        self._rng = random.Random(derive(seed, "policy"))
        self._next_number = 0
        self._next_attempt = 1
        self._exhausted = False
        #: Live trials that changed since the last decision.
        self._touched: dict[str, None] = {}
        # Bound once: binding it for each message takes longer than most messages do.
        self._take = self._apply

    # ------------------------------------------------------------------------------------------- the two doors

    def handle(self, event: m.Event) -> list[m.Message]:
        """Take in an event; return the decisions and commands that follow, in the order to journal and to obey.

        A report of an attempt that is no longer current, or about a trial that has ended, changes nothing;
        ``refuses`` tells which those are.
        """
        if self.refuses(event):
            return []
        self._tell_time(event)
        self._take(event)
        return list(self._decide())

    def restore(self, messages: Iterable[m.Message]) -> None:
        """Become what the controller was that wrote these messages."""
        for message in messages:
            self._tell_time(message)
            self._take(message)

    def _tell_time(self, message: m.Message) -> None:
        ended = getattr(message, "ended", None)
        if ended is not None:
            self.schedule.now = max(self.schedule.now, ended)

    def refuses(self, event: m.Event) -> bool:
        """Whether an event comes too late to count."""
        match event:
            case m.UnitFinished():
                unit = Unit(event.trial, event.epoch, event.partition)
                return not self.schedule.accepts(event.worker, unit, event.attempt)
            case m.Evaluated():
                unit = Unit(event.trial, event.epoch, event.partition, Work.EVALUATE)
                return not self.schedule.accepts(event.worker, unit, event.attempt)
            case m.UnitFailed():
                unit = Unit(event.trial, event.epoch, event.partition, event.work)
                return not self.schedule.accepts(event.worker, unit, event.attempt)
            case m.VersionSaved():
                progress = self.schedule.trials.get(event.trial)
                return progress is None or event.version > progress.version
            case m.VersionLost() | m.SaveFailed():
                return event.trial not in self.schedule.trials
            case m.WorkerLost():
                return event.worker not in self.schedule.slots
            case _:
                return False

    # ------------------------------------------------------------------------------------ applying a message

    @singledispatchmethod
    def _apply(self, message: object) -> None:
        """Commands and decisions that change no state come here."""

    @_apply.register
    def _(self, message: m.RunStarted) -> None:
        for worker in list(self.schedule.slots):
            self._forget_worker(worker)
        for progress in self.schedule.trials.values():
            progress.saving = (0, False)
            self._touch(progress)
        self.finished = self.draining = False

    @_apply.register
    def _(self, message: m.WorkerJoined) -> None:
        self.schedule.join(message.worker, message.partitions)

    @_apply.register
    def _(self, message: m.WorkerLost) -> None:
        unit = self._forget_worker(message.worker)
        if unit is not None:
            progress = self.schedule.trials[unit.trial]
            progress.losses += 1
            if progress.losses >= MAX_LOSSES:
                reason = f"{progress.losses} workers in a row were lost while {unit}; the last one: {message.reason}"
                self.schedule.settle(unit.trial, Outcome(TrialState.FAILED, reason))

    def _forget_worker(self, worker: str) -> Unit | None:
        held = [progress for progress in self.schedule.trials.values() if progress.holder == worker]
        unit = self.schedule.leave(worker)
        for progress in held:
            self._touch(progress)
        if unit is not None:
            self._touch(self.schedule.trials[unit.trial])
        return unit

    @_apply.register
    def _(self, message: m.UnitFinished) -> None:
        self.schedule.finish_training(message.worker, message.ended - message.started, message.sums)
        self._touch(self.schedule.trials[message.trial])

    @_apply.register
    def _(self, message: m.Evaluated) -> None:
        self.schedule.finish_evaluation(message.worker, message.sums)
        self._touch(self.schedule.trials[message.trial])

    @_apply.register
    def _(self, message: m.UnitFailed) -> None:
        self.schedule.abandon(message.worker)
        self.schedule.settle(message.trial, Outcome(TrialState.FAILED, message.error, message.traceback))
        self._touch(self.schedule.trials[message.trial])

    @_apply.register
    def _(self, message: m.VersionSaved) -> None:
        self.schedule.saved(message.trial, message.version, message.durable)
        self._touch(self.schedule.trials[message.trial])

    @_apply.register
    def _(self, message: m.VersionLost) -> None:
        progress = self.schedule.trials[message.trial]
        slot = self.schedule.slots.get(message.worker or "")
        running = slot is not None and slot.unit is not None and slot.unit.trial == message.trial
        # A second report of a version that is rolled back already says nothing about what runs now.
        if slot is not None and running and message.version == progress.version:
            self.schedule.abandon(slot.worker)
        self.schedule.lost(message.trial, message.version, message.worker)
        self._touch(progress)

    @_apply.register
    def _(self, message: m.SaveFailed) -> None:
        self.schedule.settle(message.trial, Outcome(TrialState.FAILED, message.error, message.traceback))
        self._touch(self.schedule.trials[message.trial])

    @_apply.register
    def _(self, message: m.OperatorAsked) -> None:
        self.draining = True
        for progress in self.schedule.trials.values():
            self._touch(progress)

    @_apply.register
    def _(self, message: m.TrialAdded) -> None:
        trial = Trial(message.trial, message.number, message.config, message.seed, message.epochs)
        self._next_number = message.number + 1
        self.schedule.add(trial, self._order(trial) if self.fixed_order else ())

    def _order(self, trial: Trial) -> list[int]:
        return fixed_order(self.seed, trial.number, partitions=self.schedule.partitions, epochs=trial.epochs)

    @_apply.register
    def _(self, message: m.TrialRolledBack) -> None:
        self.schedule.roll_back(message.trial, message.version)

    @_apply.register
    def _(self, message: m.EpochEnded) -> None:
        progress = self.schedule.trials[message.trial]
        value = message.metrics.get(self.search.goal.metric, math.nan)
        if message.best:
            progress.best = (message.version, value)
        verdict = self.search.observe(progress.trial, message.epoch, message.metrics)
        self.schedule.end_epoch(message.trial)
        if message.epoch == progress.trial.epochs:
            self.schedule.settle(message.trial, Outcome(TrialState.COMPLETED))
        elif verdict is Verdict.STOP:
            reason = f"stopped by the search after epoch {message.epoch}"
            self.schedule.settle(message.trial, Outcome(TrialState.STOPPED, reason))
        self._touch(progress)

    @_apply.register
    def _(self, message: m.TrialEnded) -> None:
        self.schedule.remove(message.trial, message.state)
        self._touched.pop(message.trial, None)

    @_apply.register
    def _(self, message: m.RunUnit) -> None:
        self._next_attempt = message.attempt + 1
        self.schedule.start(message.worker, Unit(message.trial, message.epoch, message.partition), message.attempt)

    @_apply.register
    def _(self, message: m.Evaluate) -> None:
        self._next_attempt = message.attempt + 1
        unit = Unit(message.trial, message.epoch, message.partition, Work.EVALUATE)
        self.schedule.start(message.worker, unit, message.attempt)

    @_apply.register
    def _(self, message: m.SaveVersion) -> None:
        self.schedule.trials[message.trial].saving = (message.version, message.durable)

    @_apply.register
    def _(self, message: m.DropVersion) -> None:
        self.schedule.dropped(message.trial, message.version)

    @_apply.register
    def _(self, message: m.Finish) -> None:
        self.finished = True

    def _touch(self, progress: Progress) -> None:
        self._touched[progress.trial.id] = None

    # ------------------------------------------------------------------------------------------------ deciding

    def _decide(self) -> Iterator[m.Message]:
        """Decide until nothing is left to decide. Each message is applied before the next one is thought of."""
        touched = self._touched
        self._touched = {}
        yield from self._each(touched, self._roll_back_or_end)
        yield from self._add_trials()
        starts = list(self._dispatch())
        # A save goes out before the start that would make its worker forget the model.
        yield from self._each(touched, self._keep_versions)
        yield from starts
        yield from self._finish()

    def _each(self, trials: Iterable[str], decide: Callable[[Progress], Iterator[m.Message]]) -> Iterator[m.Message]:
        for trial in trials:
            progress = self.schedule.trials.get(trial)
            if progress is not None:
                yield from decide(progress)

    def _decided(self, message: m.Decision | m.Command) -> m.Message:
        self._take(message)
        return message

    def _roll_back_or_end(self, progress: Progress) -> Iterator[m.Message]:
        trial = progress.trial.id
        if progress.trains_on is not None or progress.evaluates_on:
            return
        if progress.outcome is not None and progress.outcome.state is TrialState.FAILED:
            yield from self._end(progress, progress.outcome)
            return
        if progress.holder is None and progress.version and progress.version not in progress.saved:
            yield self._decided(m.TrialRolledBack(trial, max(progress.saved, default=0)))
        if progress.awaits_evaluation and len(progress.evaluated) == self.schedule.valid_partitions:
            yield from self._end_epoch(progress)
        if progress.outcome is not None and not progress.can_train and progress.saved.get(progress.version, False):
            yield from self._end(progress, progress.outcome)

    def _end_epoch(self, progress: Progress) -> Iterator[m.Message]:
        goal = self.search.goal
        metrics = means(add([add(progress.trained.values()), add(progress.evaluated.values())]))
        if goal.metric not in metrics:
            known = ", ".join(sorted(metrics)) or "none"
            reason = f"metric={goal.metric!r}: is not among those that the task returned ({known})"
            yield from self._end(progress, Outcome(TrialState.FAILED, reason))
            return
        best = progress.best is None or goal.better(metrics[goal.metric], progress.best[1])
        epoch = progress.epochs_ended + 1
        yield self._decided(m.EpochEnded(progress.trial.id, epoch, progress.version, metrics, best))

    def _end(self, progress: Progress, outcome: Outcome) -> Iterator[m.Message]:
        trial = progress.trial.id
        needed = _needed(progress)
        for version in [version for version, durable in progress.saved.items() if not durable or version not in needed]:
            yield self._decided(m.DropVersion(trial, version))
        yield self._decided(m.TrialEnded(trial, outcome.state, outcome.reason, outcome.traceback))

    def _add_trials(self) -> Iterator[m.Message]:
        while len(self.schedule.trials) < self.max_live and not self.draining and not self._exhausted:
            number = self._next_number
            config = self.search.suggest(number)
            if config is None:
                self._exhausted = True
                return
            name = f"t{number + 1:04d}"
            seed = derive(self.seed, "trial", number)
            yield self._decided(m.TrialAdded(name, number, config, seed, self.search.max_epochs))

    def _dispatch(self) -> Iterator[m.Message]:
        while not self.draining:
            assignment = next_assignment(self.schedule, self.policy, self._rng)
            if assignment is None:
                return
            worker, unit = assignment.worker, assignment.unit
            progress = self.schedule.trials[unit.trial]
            where = (worker, unit.trial, unit.epoch, unit.partition, self._next_attempt, progress.version)
            if unit.work is Work.EVALUATE:
                yield self._decided(m.Evaluate(*where))
            else:
                closes = (progress.version + 1) % self.schedule.partitions == 0
                yield self._decided(m.RunUnit(*where, last=closes))

    def _keep_versions(self, progress: Progress) -> Iterator[m.Message]:
        """Save the newest version unless its worker goes straight on with it; drop what nobody needs."""
        version, trial = progress.version, progress.trial.id
        boundary = version > 0 and version % self.schedule.partitions == 0
        goes_on = progress.trains_on is not None and progress.trains_on == progress.holder
        durable = boundary or self.draining
        enough = version in progress.saved and (progress.saved[version] or not durable)
        told = progress.saving[0] == version and (progress.saving[1] or not durable)
        if version and progress.holder is not None and not enough and not told and (boundary or not goes_on):
            yield self._decided(m.SaveVersion(progress.holder, trial, version, durable))
        needed = _needed(progress)
        for number in [number for number in progress.saved if number not in needed]:
            yield self._decided(m.DropVersion(trial, number))

    def _finish(self) -> Iterator[m.Message]:
        if self.finished:
            return
        live = self.schedule.trials.values()
        if not live and self._exhausted:
            yield self._decided(m.Finish(complete=True))
        elif self.draining and len(self.schedule.idle) == len(self.schedule.slots):
            saved = all(p.holder is None or not p.version or p.saved.get(p.version, False) for p in live)
            if saved:
                yield self._decided(m.Finish(complete=False))


def _needed(progress: Progress) -> set[int]:
    """The saved versions that must stay: the newest, the newest durable one and the best."""
    durable = (version for version, is_durable in progress.saved.items() if is_durable)
    best = 0 if progress.best is None else progress.best[0]
    return {max(progress.saved, default=0), max(durable, default=0), best}
