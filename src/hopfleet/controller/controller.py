"""The one that decides: search and scheduler behind ``handle(event) -> messages``.

It knows no clock, file, process, socket or framework. Its state is a fold over the journal: ``handle`` applies an
event, then decides until nothing is left to decide, and applies each decision and command as it makes it; so
``restore`` rebuilds the state from a journal by applying alone, without deciding anything a second time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import singledispatchmethod

from hopfleet.controller.requests import Add, Office, Refused, Step, answer
from hopfleet.domain import messages as m
from hopfleet.domain import space as spaces
from hopfleet.domain.rowsum import RowSum, add, means
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Config, Parent, Trial, TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.dispatch import Policy, foreseen, next_assignment
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.fusion import Fusion, companions
from hopfleet.scheduler.orders import fixed_order
from hopfleet.scheduler.placement import Place, lost, placements
from hopfleet.scheduler.progress import Outcome, Progress, Save
from hopfleet.scheduler.schedule import Assignment, Schedule, Slot
from hopfleet.scheduler.timeouts import Timeout, estimate, limit, shortest
from hopfleet.search.base import MAX_LIVE, Clone, Decision, Search, Stop, Suggestion, Train

AT_RISK = 0.5
"""Seconds of training that may be in the memory of one worker alone."""

MAX_LOSSES = 3
"""After so many lost workers in a row a unit is taken for poison and its trial fails."""

MANY_LOSSES = 24
"""After so many lost workers in a row, whatever they ran, it is not the trials, and the run ends; with more than eight
workers it takes three for each."""


HALF = 0.5
"""The part of a unit's expected time after which its worker is told what comes next: late enough to know who is free,
and early enough for a model to arrive."""

SLACK = 2
"""Groups of trials that there should be for each worker, so that models can travel while others train."""


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
        points: Sequence[Config] = (),
        fusion: Fusion | None = None,
        unit_timeout: Timeout = "auto",
        sticky: bool = False,
        lookahead: bool = False,
    ) -> None:
        self.search = search
        self.policy = policy
        self.seed = seed
        self.max_live = max_live
        self.fixed_order = fixed_order
        #: Configurations to try before those of the search.
        self.points = points
        self.unit_timeout: Timeout = unit_timeout
        self.fusion = fusion
        #: Whether workers are told ahead what comes next, so that models travel while others train.
        self.lookahead = lookahead
        self.schedule = Schedule(partitions, valid_partitions, estimates)
        self.schedule.sticky = sticky
        self.finished = False
        self.draining = False
        self.held = False
        #: Seconds in which a run was going on.
        self.elapsed = 0.0
        self._last_time: float | None = None
        self._rng = random.Random(derive(seed, "policy"))
        self._next_number = 0
        self._next_attempt = 1
        #: Trials that were added as points, and as the search suggested.
        self._pointed = self._suggested = 0
        #: The search had nothing to suggest, and has heard nothing since.
        self._dry = False
        #: What the search wants and nobody has done yet; wishes that nobody has answered yet.
        self._wanted: list[Decision] = []
        self._requests: list[m.RequestMade] = []
        #: Trials of which something has just been started.
        self._begun: set[str] = set()
        #: Workers that are about to join; wishes that wait for the run and are about to come.
        self._starting = self._waiting = 0
        #: Workers that were told to give up an attempt; they are lost and replaced, if that is possible.
        self._stopped: dict[str, int] = {}
        #: Workers that were lost in a row while they ran something; why it is hopeless to go on, if it is.
        self._in_a_row = 0
        self._hopeless = ""
        #: Workers and the partitions that they were told to get; those that they could not get.
        self._coming: dict[Place, None] = {}
        self._refused: set[Place] = set()
        #: Partitions that are on no worker, and that nobody can get.
        self.missing: tuple[int, ...] = ()
        #: Whether there are workers, or were, that can read some partitions only.
        self._pinned = False
        #: Live trials that changed since the last decision.
        self._touched: dict[str, None] = {}
        # Bound once: binding it for each message takes longer than most messages do.
        self._fold = self._apply

    # ------------------------------------------------------------------------------------------- the two doors

    def handle(self, event: m.Event) -> list[m.Message]:
        """Take in an event; return the decisions and commands that follow, in the order to journal and to obey.

        A report of an attempt that is no longer current, or about a trial that has ended, changes nothing;
        ``refuses`` tells which those are.
        """
        return self.take([event])[1:]

    def take(self, events: Iterable[m.Event]) -> list[m.Message]:
        """Take in what happened at one moment, and only then decide; returns what counts of it, and what follows."""
        messages: list[m.Message] = []
        for event in events:
            if not self.refuses(event):
                self._tell_time(event)
                self._fold(event)
                messages.append(event)
        return [*messages, *self._decide()] if messages else []

    def restore(self, messages: Iterable[m.Message]) -> None:
        """Become what the controller was that wrote these messages."""
        for message in messages:
            self._tell_time(message)
            self._fold(message)
        self._wanted.clear()  # what came of them is in the journal too

    def overdue(self, ages: Mapping[str, float]) -> list[m.Event]:
        """What takes far longer than it should, if workers have been at what they do for so many seconds."""
        least, found = shortest(self.unit_timeout), list[m.Event]()
        for slot in self.schedule.slots.values():
            seconds = ages.get(slot.worker, 0.0)
            if least is None or seconds <= least or slot.unit is None or slot.overdue:
                continue
            most = limit(self.schedule, slot, self.unit_timeout)
            if most is not None and seconds > most:
                expected = estimate(self.schedule, slot) or 0.0
                found.append(m.UnitOverdue(slot.worker, slot.attempt, seconds, expected))
        return found

    def look_ahead(self, ages: Mapping[str, float]) -> list[m.Message]:
        """What workers should be told ahead, if they have been at what they do for so many seconds."""
        due = {
            slot.worker: slot
            for slot in self.schedule.slots.values()
            if (half := self._half_time(slot)) is not None and ages.get(slot.worker, 0.0) >= half
        }
        messages: list[m.Message] = []
        while due:
            assignment = foreseen(self.schedule, self.policy, self._rng, due)
            if assignment is None:
                break
            slot = due.pop(assignment.worker)
            messages += [*self._save_ahead(slot), *self._begin(assignment, lookahead=True)]
        return messages

    def _save_ahead(self, slot: Slot) -> Iterator[m.Message]:
        """Have saved what a worker is about to make: it turns to something else then, before it hears of anything."""
        for unit in slot.units if slot.unit is not None and slot.unit.trains else ():
            version = self.schedule.trials[unit.trial].version + 1
            ref = VersionRef(unit.trial, version, self._next_attempt)
            yield self._decided(m.SaveVersion(slot.worker, ref, False))

    def next_look(self, ages: Mapping[str, float]) -> float:
        """Seconds until there may be more to tell ahead, as far as anybody knows now."""
        halves = ((self._half_time(slot), ages.get(slot.worker, 0.0)) for slot in self.schedule.slots.values())
        return min((half - age for half, age in halves if half is not None and age < half), default=math.inf)

    def _half_time(self, slot: Slot) -> float | None:
        """After how many seconds a worker may be told what comes next; None if it will have to wait for that."""
        stands = not self.lookahead or self._ending or self.stands
        if stands or slot.unit is None or slot.lookahead or slot.retired or slot.overdue or self.schedule.keeps(slot):
            return None
        expected = estimate(self.schedule, slot)
        return None if expected is None else HALF * expected

    def _tell_time(self, message: m.Message) -> None:
        ended: float | None = getattr(message, "ended", None)
        if ended is not None:
            self.schedule.now = max(self.schedule.now, ended)
            before: float = self._last_time if self._last_time is not None else message.started  # type: ignore[union-attr]
            self._last_time = max(before, ended)
            self.elapsed += self._last_time - before

    def refuses(self, event: m.Event) -> bool:
        """Whether an event comes too late to count."""
        match event:
            case m.UnitFinished() | m.UnitFailed():
                return not self.schedule.accepts(event.worker, event.unit, event.attempt)
            case m.VersionSaved() | m.SaveFailed() | m.SaveDelayed():
                progress = self.schedule.trials.get(event.trial)
                return progress is None or event.ref.attempt not in progress.saves
            case m.VersionLost():
                progress = self.schedule.trials.get(event.trial)
                if progress is None:
                    return True
                if event.attempt:
                    return event.attempt not in progress.saves and not self.schedule.runs(event.worker, event.attempt)
                saved = progress.saved.get(event.ref.version)
                return saved is None or saved.attempt != event.ref.attempt
            case m.WorkerLost():
                return event.worker not in self.schedule.slots
            case m.PartitionPlaced() | m.PartitionUnavailable():
                return (event.worker, event.partition) not in self._coming
            case m.UnitOverdue():
                slot = self.schedule.slots.get(event.worker)
                return slot is None or event.attempt not in slot.units.values()
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
        self.schedule.forget_saves()
        for progress in self.schedule.trials.values():
            self._touch(progress)
        self.finished = self.draining = self.held = self._dry = False
        self._starting, self._waiting = message.workers, message.requests
        self._stopped.clear()  # names of workers begin anew
        self._in_a_row, self._hopeless = 0, ""
        self._coming.clear()
        self._refused.clear()
        self.missing, self._pinned = (), False
        self._last_time = None

    @_apply.register
    def _(self, message: m.WorkerJoined) -> None:
        self.schedule.join(message.worker, message.partitions)
        self._starting = max(0, self._starting - 1)
        self._pinned = self._pinned or message.partitions is not None
        self._refused.clear()  # things have changed: who could not get a partition may be lucky now
        for progress in self.schedule.trials.values():
            if progress.outcome is not None:
                self._touch(progress)

    @_apply.register
    def _(self, message: m.WorkerLost) -> None:
        slot = self.schedule.slots[message.worker]
        stopped, overdue = self._stopped.pop(message.worker, None), slot.overdue
        running = self._forget_worker(message.worker)
        self._starting += message.replaced
        # What it was told to give up may have ended before; what came after it is not to blame, nor who went along.
        blamed = [unit for unit, attempt in running.items() if overdue or stopped in (None, attempt)]
        # If it was to end anyway, it may be that a person wanted it to stop.
        blamed = [unit for unit in blamed if self.schedule.trials[unit.trial].outcome is None]
        for unit in blamed:
            self._blame(unit, overdue or message.reason, message.log)
        if blamed:
            self._count_loss(message.reason)

    def _blame(self, unit: Unit, reason: str, log: str) -> None:
        """A worker was lost while it ran a unit, which may be why."""
        progress = self.schedule.trials[unit.trial]
        progress.losses.append(reason)
        if len(progress.losses) >= MAX_LOSSES:
            reason = f"{len(progress.losses)} workers in a row were lost while {unit}: {_all(progress.losses)}"
            last = log and f"the last lines of its log:\n{log}"
            self.schedule.settle(progress.trial.id, Outcome(TrialState.FAILED, reason, last))

    def _count_loss(self, reason: str) -> None:
        """Each trial has its own count; but if none ends well anything at all, it is rather the machine."""
        self._in_a_row += 1
        if self._in_a_row >= max(MANY_LOSSES, MAX_LOSSES * (len(self.schedule.slots) + self._starting)):
            self._hopeless = (
                f"{self._in_a_row} workers in a row were lost and nothing ended well between, whatever they ran: the "
                f"last time {reason}. It seems to be the machine rather than the trials; mend it and resume"
            )
            for progress in self.schedule.trials.values():
                self._touch(progress)

    @property
    def stands(self) -> bool:
        """Whether workers may wait through no fault of their own: for a person, or for a disk."""
        return self.held or bool(self.schedule.delayed)

    @property
    def _ending(self) -> bool:
        """Whether nothing more is to start, and the run ends when all is saved."""
        return self.draining or bool(self._hopeless)

    @_apply.register
    def _(self, message: m.PartitionPlaced) -> None:
        del self._coming[message.worker, message.partition]
        self.schedule.place(message.worker, message.partition)

    @_apply.register
    def _(self, message: m.PartitionUnavailable) -> None:
        del self._coming[message.worker, message.partition]
        self._refused.add((message.worker, message.partition))

    @_apply.register
    def _(self, message: m.PlacePartition) -> None:
        self._coming[message.worker, message.partition] = None

    @_apply.register
    def _(self, message: m.PartitionsMissing) -> None:
        self.missing = message.partitions

    @_apply.register
    def _(self, message: m.UnitOverdue) -> None:
        expected = f"; estimated {message.expected:.3g} s" if message.expected else ""
        self.schedule.slots[message.worker].overdue = f"it ran for {message.seconds:.3g} s{expected}"

    def _forget_worker(self, worker: str) -> dict[Unit, int]:
        live = self.schedule.trials.values()
        held = [p for p in live if worker in (p.holder, *(save.worker for save in p.saves.values()))]
        held += [self.schedule.trials[unit.trial] for unit in self.schedule.slots[worker].told]
        running = self.schedule.leave(worker)
        for place in [place for place in self._coming if place[0] == worker]:
            del self._coming[place]
        for progress in held:
            self._touch(progress)
        return running

    @_apply.register
    def _(self, message: m.UnitFinished) -> None:
        seconds = (message.ended - message.started) * message.share
        self.schedule.finish(message.worker, message.unit, seconds, message.sums)
        self._in_a_row, self._hopeless = 0, ""
        self._touch(self.schedule.trials[message.trial])

    @_apply.register
    def _(self, message: m.UnitFailed) -> None:
        self.schedule.abandon(message.worker, message.trial)
        self.schedule.settle(message.trial, Outcome(TrialState.FAILED, message.error, message.traceback))
        self._touch(self.schedule.trials[message.trial])

    @_apply.register
    def _(self, message: m.VersionSaved) -> None:
        progress = self.schedule.trials[message.trial]
        if message.ref.version > progress.version:
            self.schedule.premature(message.ref)
            return
        self.schedule.saved(message.ref, message.durable, message.digest)
        self.schedule.model_bytes = max(self.schedule.model_bytes, message.size)
        if message.ref.version == progress.base:
            self._return_loan(progress)
        self._touch(progress)

    @_apply.register
    def _(self, message: m.VersionLost) -> None:
        progress, version = self.schedule.trials[message.trial], message.ref.version
        if message.worker is not None and self.schedule.runs(message.worker, message.attempt):
            self.schedule.abandon(message.worker, message.trial)
        self.schedule.lost(message.ref, message.worker, message.attempt)
        if progress.trial.parent is not None and version == progress.base == progress.version and not progress.loadable:
            reason = f"the model of {progress.trial.parent.trial} that it should have started with is lost"
            self.schedule.settle(message.trial, Outcome(TrialState.FAILED, f"{reason}: {message.reason}"))
        self._touch(progress)

    @_apply.register
    def _(self, message: m.SaveFailed) -> None:
        self.schedule.settle(message.trial, Outcome(TrialState.FAILED, message.error, message.traceback))
        self._touch(self.schedule.trials[message.trial])

    @_apply.register
    def _(self, message: m.SaveDelayed) -> None:
        assert message.ref.attempt is not None
        self.schedule.delayed[message.ref.attempt] = message.worker

    @_apply.register
    def _(self, message: m.RequestMade) -> None:
        if message.request != "drain":
            self._requests.append(message)
            self._waiting = max(0, self._waiting - 1)
            return
        self.draining = True
        for progress in self.schedule.trials.values():
            self._touch(progress)

    @_apply.register
    def _(self, message: m.RequestAnswered) -> None:
        self._requests.pop(0)

    @_apply.register
    def _(self, message: m.TrialAdded) -> None:
        parent = None
        trained: Mapping[int, Mapping[str, RowSum]] = {}
        if message.visits:
            lender, version = self._find(message.parent), len(message.visits)
            lender.lends[message.trial] = version
            parent = Parent(message.parent, version, lender.trial.config)
            before = version - version % self.schedule.partitions
            trained = {made: sums for made, sums in lender.trained.items() if before < made <= version}
        names = (message.trial, message.number, message.config, message.seed, message.epochs, parent, message.origin)
        trial = Trial(*names)
        self._next_number = message.number + 1
        self._pointed += message.origin == "point"
        self._suggested += message.origin == "search"
        order = self._order(trial, message.visits) if self.fixed_order else ()
        progress = self.schedule.add(trial, order, message.visits)
        progress.trained |= trained
        self._touch(progress)
        self.search.added(trial)

    def _order(self, trial: Trial, visits: Sequence[int] = ()) -> list[int]:
        """The fixed order of a trial, after visits that its parent made: those of an epoch come once."""
        partitions = self.schedule.partitions
        order = fixed_order(self.seed, trial.number, partitions=partitions, epochs=trial.epochs)
        begun = len(visits) - len(visits) % partitions
        rest = [partition for partition in order[begun : begun + partitions] if partition not in visits[begun:]]
        return [*rest, *order[begun + partitions :]]

    def _find(self, trial: str) -> Progress:
        progress = self.schedule.find(trial)
        assert progress is not None, f"nobody knows {trial}"
        return progress

    @_apply.register
    def _(self, message: m.TrialStopped) -> None:
        outcome = Outcome(TrialState.STOPPED, message.reason, delete=message.delete)
        self.schedule.settle(message.trial, outcome)
        self._touch(self.schedule.trials[message.trial])

    @_apply.register
    def _(self, message: m.TrialPaused) -> None:
        self.schedule.park(message.trial, TrialState.PAUSED)
        self._dry = False

    @_apply.register
    def _(self, message: m.TrialResumed) -> None:
        progress = self._find(message.trial)
        longer = replace(progress.trial, epochs=message.epochs)
        order = self._order(longer)[progress.trial.epochs * self.schedule.partitions :] if self.fixed_order else ()
        self.schedule.resume(message.trial, message.epochs, order)
        self._touch(progress)

    @_apply.register
    def _(self, message: m.TrialDeleted) -> None:
        del self.schedule.parked[message.trial]

    @_apply.register
    def _(self, message: m.TrialPrioritised) -> None:
        self.schedule.prioritise(message.trial, message.level)

    @_apply.register
    def _(self, message: m.SearchExtended) -> None:
        self.search.extend(trials=message.trials, epochs=message.epochs, space=spaces.parse(message.space))
        self._dry = False

    @_apply.register
    def _(self, message: m.RunHeld) -> None:
        self.held = message.held

    @_apply.register
    def _(self, message: m.CopyVersion) -> None:
        self._begin_save(message.ref, durable=True, worker=None)

    @_apply.register
    def _(self, message: m.StopUnit) -> None:
        self._stopped[message.worker] = message.attempt

    @_apply.register
    def _(self, message: m.AddWorkers) -> None:
        self._starting += message.count

    @_apply.register
    def _(self, message: m.WorkerRetired) -> None:
        self.schedule.retire(message.worker)

    @_apply.register
    def _(self, message: m.ReleaseWorker) -> None:
        self.schedule.slots[message.worker].released = True

    @_apply.register
    def _(self, message: m.TrialRolledBack) -> None:
        self.schedule.roll_back(message.trial, message.version)

    @_apply.register
    def _(self, message: m.EpochEnded) -> None:
        progress = self.schedule.trials[message.trial]
        if message.best:
            progress.best = (message.version, self.search.goal.rank(message.metrics))
        self._wanted += self.search.observe(progress.trial, message.epoch, message.metrics)
        self._dry = False
        self.schedule.end_epoch(message.trial)
        self._touch(progress)

    @_apply.register
    def _(self, message: m.TrialEnded) -> None:
        progress = self._find(message.trial)
        self._return_loan(progress)
        self.schedule.park(message.trial, message.state)
        self._touched.pop(message.trial, None)
        self._wanted += self.search.ended(progress.trial, message.state)
        self._dry = False

    def _return_loan(self, clone: Progress) -> None:
        """The clone has its model, or will never need it."""
        parent = clone.trial.parent
        lender = None if parent is None else self.schedule.find(parent.trial)
        if lender is not None and clone.trial.id in lender.lends:
            del lender.lends[clone.trial.id]
            self._touch(lender)

    @_apply.register
    def _(self, message: m.RunUnit) -> None:
        self._count(message.attempt)
        self.schedule.start(
            message.worker, message.unit, message.attempt, message.flotilla, lookahead=message.lookahead
        )

    @_apply.register
    def _(self, message: m.SaveVersion) -> None:
        self._begin_save(message.ref, durable=message.durable, worker=message.worker)

    def _begin_save(self, ref: VersionRef, *, durable: bool, worker: str | None) -> None:
        assert ref.attempt is not None
        self._count(ref.attempt)
        self.schedule.save(ref.trial, ref.attempt, Save(ref.version, durable, worker))

    @_apply.register
    def _(self, message: m.DropVersion) -> None:
        self.schedule.dropped(message.ref)

    @_apply.register
    def _(self, message: m.Finish) -> None:
        self.finished = True

    def _count(self, attempt: int) -> None:
        # They are not journaled in the order in which they are thought of.
        self._next_attempt = max(self._next_attempt, attempt + 1)

    def _touch(self, progress: Progress) -> None:
        self._touched[progress.trial.id] = None

    # ------------------------------------------------------------------------------------------------ deciding

    def _decide(self) -> Iterator[m.Message]:
        """Decide until nothing is left to decide. Each message is applied before the next one is thought of."""
        yield from self._answer_requests()
        yield from self._give_up()
        touched: dict[str, None] = {}
        while True:
            yield from self._stop_all_if_over()
            wanted, self._wanted = self._wanted, []
            for decision in wanted:
                yield from self._carry_out(decision)
            changed, self._touched = self._touched, {}
            touched |= changed
            yield from self._each(changed, self._settle)
            if not self._touched and not self._wanted:
                yield from self._add_trials()
            if not self._touched and not self._wanted:
                break
        yield from self._place_partitions()
        self.schedule.more_to_come = self.search.streams and not self._dry and not self.search.over(self.elapsed)
        starts = list(self._dispatch())
        self._begun = {start.trial for start in starts}
        # A save goes out before the start that would make its worker forget the model.
        yield from self._each(touched, self._keep_versions)
        yield from starts
        yield from self._release_workers()
        yield from self._finish()

    def _each(self, trials: Iterable[str], decide: Callable[[Progress], Iterator[m.Message]]) -> Iterator[m.Message]:
        for trial in trials:
            progress = self.schedule.trials.get(trial)
            if progress is not None:
                yield from decide(progress)

    def _decided(self, message: m.Decision | m.Command) -> m.Message:
        self._fold(message)
        return message

    # ------------------------------------------------------------------------------- what others want of trials

    def _answer_requests(self) -> Iterator[m.Message]:
        while self._requests:
            asked = self._requests[0]
            if asked.request == "workers" and self._starting:
                return  # it is answered when all are there that are about to come
            office = Office(self.schedule, self.search, self.held, _name(self._next_number))
            try:
                steps, text = answer(asked, office)
            except Refused as refusal:
                yield self._decided(m.RequestAnswered(asked.number, False, str(refusal)))
            else:
                yield self._decided(m.RequestAnswered(asked.number, True, text))
                for step in steps:
                    yield from self._carry_out(step)

    def _carry_out(self, step: Decision | Step) -> Iterator[m.Message]:
        match step:
            case Train():
                yield from self._train(step)
            case Stop():
                yield from self._stop(step)
            case Clone():
                yield from self._clone(step)
            case Add():
                yield self._added(step.config, self.search.max_epochs, "person")
            case _:
                yield self._decided(step)

    def _train(self, wanted: Train) -> Iterator[m.Message]:
        # A person may have stopped or deleted it meanwhile, and is right.
        progress = self.schedule.find(wanted.trial)
        if progress is None or progress.outcome is not None or progress.trial.epochs >= wanted.epochs:
            return
        if not progress.state.ended:
            yield self._decided(m.TrialResumed(wanted.trial, wanted.epochs))

    def _stop(self, wanted: Stop) -> Iterator[m.Message]:
        progress = self.schedule.find(wanted.trial)
        if progress is None or progress.outcome is not None:
            return
        if progress.state is TrialState.PAUSED:
            yield self._decided(m.TrialEnded(wanted.trial, TrialState.STOPPED, wanted.reason))
        elif not progress.state.ended:
            yield self._decided(m.TrialStopped(wanted.trial, wanted.reason))

    def _clone(self, wanted: Clone) -> Iterator[m.Message]:
        parent = self.schedule.find(wanted.parent)
        if parent is None:
            return
        version, epochs = parent.clonable, wanted.epochs or self.search.max_epochs
        if wanted.warm and not 0 < version < epochs * self.schedule.partitions:
            return
        visits = tuple(parent.visits[:version]) if wanted.warm else ()
        yield self._added(wanted.config, epochs, "clone", wanted.parent, visits)
        yield from self._stop(Stop(wanted.replaces, f"replaced by {_name(self._next_number - 1)}"))

    def _added(
        self, config: Config, epochs: int, origin: str, parent: str = "", visits: tuple[int, ...] = ()
    ) -> m.Message:
        number = self._next_number
        seed = derive(self.seed, "trial", number)
        return self._decided(m.TrialAdded(_name(number), number, config, seed, epochs, origin, parent, visits))

    def _stop_all_if_over(self) -> Iterator[m.Message]:
        reason = self.search.over(self.elapsed)
        if reason:
            for trial in list(self.schedule.trials):
                yield from self._stop(Stop(trial, reason))

    def _add_trials(self) -> Iterator[m.Message]:
        if self._ending or self.held:
            return
        room = min(self.max_live, self.search.concurrency(len(self.schedule.slots)))
        while len(self.schedule.trials) < room:
            suggestion = self._suggestion()
            if suggestion is None:
                return
            origin = "point" if self._pointed < len(self.points) else "search"
            yield self._added(suggestion.config, suggestion.epochs, origin)

    def _suggestion(self) -> Suggestion | None:
        """The next trial to add, or None if there is none as far as anybody knows now."""
        if self._dry or self.search.over(self.elapsed):
            return None
        if self._pointed < len(self.points):
            return Suggestion(self.points[self._pointed], self.search.max_epochs)
        suggestion = self.search.suggest(self._suggested)
        self._dry = suggestion is None
        return suggestion

    # ----------------------------------------------------------------------------------------- what trials need

    def _settle(self, progress: Progress) -> Iterator[m.Message]:
        """Find a model for a trial that lost its own, end its epoch, pause it or end it."""
        if progress.trains_on is not None or progress.evaluates_on:
            return
        outcome = progress.outcome
        if outcome is not None and (outcome.state is TrialState.FAILED or outcome.delete):
            if not progress.lends:
                yield from self._end(progress, outcome)
            return
        if progress.holder is None and progress.version and progress.version not in progress.saved:
            yield from self._recover(progress)
        if outcome is None and progress.awaits_evaluation and len(progress.evaluated) == self.schedule.valid_partitions:
            yield from self._end_epoch(progress)
            return  # the search has a say before it ends
        outcome = progress.outcome or self._reached(progress)
        saved = progress.durable(progress.version) or not progress.version
        if outcome is not None and not progress.can_train and saved and not progress.saves_best:
            yield from self._end(progress, outcome)

    def _recover(self, progress: Progress) -> Iterator[m.Message]:
        """Go back to the newest version that is saved; a clone may have to get its first one from its parent."""
        trial, parent = progress.trial.id, progress.trial.parent
        version = max(progress.saved, default=progress.base)
        if version < progress.version:
            yield self._decided(m.TrialRolledBack(trial, version))
        if parent is not None and version not in progress.saved and not progress.told(version, durable=True):
            lender = self.schedule.find(parent.trial)
            source, digest = (VersionRef(parent.trial, version, None), "") if lender is None else _ref(lender, version)
            ref = VersionRef(trial, version, self._next_attempt)
            yield self._decided(m.CopyVersion(source, ref, digest))

    def _reached(self, progress: Progress) -> Outcome | None:
        """How a trial ends that has trained as long as it should."""
        epochs = progress.trial.epochs
        if progress.epochs_ended < epochs:
            return None
        return Outcome(TrialState.COMPLETED if epochs >= self.search.max_epochs else TrialState.PAUSED)

    def _end_epoch(self, progress: Progress) -> Iterator[m.Message]:
        goal = self.search.goal
        metrics = means(add([add(progress.trained.values()), add(progress.evaluated.values())]))
        missing = next((name for name in goal.metrics if name not in metrics), None)
        if missing is not None:
            known = ", ".join(sorted(metrics)) or "none"
            reason = f"metric={missing!r}: is not among those that the task returned ({known})"
            yield from self._end(progress, Outcome(TrialState.FAILED, reason))
            return
        best = progress.best is None or goal.rank(metrics) < progress.best[1]
        epoch = progress.epochs_ended + 1
        yield self._decided(m.EpochEnded(progress.trial.id, epoch, progress.version, metrics, best))

    def _end(self, progress: Progress, outcome: Outcome) -> Iterator[m.Message]:
        trial = progress.trial.id
        needed = set() if outcome.delete else {version for version in _needed(progress) if progress.durable(version)}
        yield from self._drop(progress, needed)
        if outcome.state is TrialState.PAUSED:
            yield self._decided(m.TrialPaused(trial))
            return
        yield self._decided(m.TrialEnded(trial, outcome.state, outcome.reason, outcome.traceback))
        if outcome.delete:
            yield self._decided(m.TrialDeleted(trial))

    def _dispatch(self) -> Iterator[m.RunUnit]:
        while not (self._ending or self.held or self.schedule.delayed):
            assignment = next_assignment(self.schedule, self.policy, self._rng)
            if assignment is None:
                return
            yield from self._begin(assignment)

    def _begin(self, assignment: Assignment, *, lookahead: bool = False) -> Iterator[m.RunUnit]:
        """Start what was chosen, with those that come along."""
        slot = self.schedule.slots[assignment.worker]
        units = [assignment.unit]
        if self.fusion is not None:
            groups = SLACK if self.lookahead else 1
            units += companions(self.schedule, slot, assignment.unit, self.fusion, self._starting, groups)
        number = self._next_attempt if len(units) > 1 else 0
        for unit in units:
            start = self._start(slot.worker, unit, number, more=unit is not units[-1], lookahead=lookahead)
            self._fold(start)
            yield start

    def _start(self, worker: str, unit: Unit, flotilla: int, *, more: bool, lookahead: bool) -> m.RunUnit:
        progress = self.schedule.trials[unit.trial]
        model, digest = _ref(progress, progress.version)
        last = unit.trains and (progress.version + 1) % self.schedule.partitions == 0
        return m.RunUnit(worker, unit, self._next_attempt, model, last, digest, flotilla, more, lookahead)

    def _keep_versions(self, progress: Progress) -> Iterator[m.Message]:
        """Save the newest version, unless its worker goes on with it and little is at risk; drop what nobody needs."""
        version, trial = progress.version, progress.trial.id
        boundary = version > 0 and version % self.schedule.partitions == 0
        goes_on = progress.trains_on is not None and progress.trains_on == progress.holder
        durable = boundary or self._ending or progress.outcome is not None
        enough = progress.durable(version) or (version in progress.saved and not durable)
        told = progress.told(version, durable=durable)
        if goes_on and trial in self._begun:
            goes_on = (version - max(progress.saved, default=0)) * self.schedule.unit_seconds(progress) < AT_RISK
        if version and not enough and not told and (boundary or not goes_on):
            worker = progress.holder or self._keeper(progress)
            if worker is not None:
                before, digest = _ref(progress, version)
                ref = VersionRef(trial, version, self._next_attempt)
                yield self._decided(m.SaveVersion(worker, ref, durable, before.attempt, digest))
        yield from self._drop(progress, _needed(progress))

    def _drop(self, progress: Progress, needed: Collection[int]) -> Iterator[m.Message]:
        """Have all files of a trial deleted but those that are needed versions, or may just be read."""
        stale = [] if progress.trains_on is not None or progress.evaluates_on else progress.stale
        others = [(version, saved.attempt) for version, saved in progress.saved.items() if version not in needed]
        for version, attempt in [*stale, *others]:
            yield self._decided(m.DropVersion(VersionRef(progress.trial.id, version, attempt)))

    def _keeper(self, progress: Progress) -> str | None:
        """Who can make a version durable that nobody holds, for a trial that goes no further: anybody."""
        if progress.outcome is None or progress.version not in progress.saved:
            return None
        return next(iter(self.schedule.slots), None)

    def _place_partitions(self) -> Iterator[m.Message]:
        """Have workers get partitions that nobody can read, or that somebody should not have to read alone."""
        if not self._pinned or self._starting:
            return  # who is about to join brings its own
        for worker, partition in list(placements(self.schedule, self._coming, self._refused)):
            yield self._decided(m.PlacePartition(worker, partition))
        missing = tuple(lost(self.schedule, self._coming))
        if missing != self.missing:
            yield self._decided(m.PartitionsMissing(missing))

    def _give_up(self) -> Iterator[m.Message]:
        for slot in self.schedule.slots.values():
            if slot.unit is not None and slot.overdue and slot.worker not in self._stopped:
                yield self._decided(m.StopUnit(slot.worker, slot.unit.trial, slot.attempt))

    def _release_workers(self) -> Iterator[m.Message]:
        for slot in self.schedule.slots.values():
            busy = slot.unit is not None or slot.worker in self.schedule.delayed.values()
            wanted = any(partition in (slot.partitions or ()) for _, partition in self._coming)
            if slot.retired and not busy and not slot.released and not wanted:
                yield self._decided(m.ReleaseWorker(slot.worker))

    def _finish(self) -> Iterator[m.Message]:
        if self.finished:
            return
        live = self.schedule.trials.values()
        if not live and not (self._waiting or self._requests) and self._suggestion() is None:
            yield self._decided(m.Finish(complete=True))
        elif self._ending:
            # A worker whose disk is full can save nothing, and may wait for it in the midst of a unit.
            stuck = self.schedule.delayed.values()
            busy = any(slot.unit is not None and slot.worker not in stuck for slot in self.schedule.slots.values())
            safe = all(p.holder is None or p.holder in stuck or not p.version or p.durable(p.version) for p in live)
            if safe and not busy:
                yield self._decided(m.Finish(complete=False, reason=self._hopeless))


def _needed(progress: Progress) -> set[int]:
    """The saved versions that must stay: the newest, the newest durable one, the best, and what clones wait for."""
    durable = (version for version, saved in progress.saved.items() if saved.durable)
    best = 0 if progress.best is None else progress.best[0]
    return {max(progress.saved, default=0), max(durable, default=0), best, *progress.lends.values()}


def _ref(progress: Progress, version: int) -> tuple[VersionRef, str]:
    """Return a version's reference and the SHA-256 of its file; a version that is not saved has neither number."""
    saved = progress.saved.get(version)
    attempt, digest = (None, "") if saved is None else (saved.attempt, saved.digest)
    return VersionRef(progress.trial.id, version, attempt), digest


def _all(reasons: Sequence[str]) -> str:
    return f"each time {reasons[0]}" if len(set(reasons)) == 1 else "; then ".join(reasons)


def _name(number: int) -> str:
    return f"t{number + 1:04d}"
