"""The controller's state: a fold over the journal.

``State.apply`` takes one message at a time and decides nothing, so a journal rebuilds the state that wrote it. The
decision makers in ``decisions/`` read this state and change it through ``decide`` alone, which applies a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import singledispatchmethod

from hopfleet.controller.failures import Failures
from hopfleet.controller.losses import Losses, ran_too_long
from hopfleet.domain import messages as m
from hopfleet.domain import space as spaces
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Config, Parent, Trial, TrialState, trial_name
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.orders import fixed_order, remaining_order
from hopfleet.scheduler.placement import Place
from hopfleet.scheduler.progress import Outcome, Progress, Save
from hopfleet.scheduler.schedule import Schedule
from hopfleet.search.base import Decision, Search


class State:
    """Everything that the controller knows."""

    def __init__(
        self,
        schedule: Schedule,
        search: Search,
        *,
        seed: int,
        fixed_order: bool,
        points: Sequence[Config],
        fail_fast: bool,
        in_rounds: bool,
    ) -> None:
        self.schedule = schedule
        self.schedule.epoch_limit = search.epoch_limit
        self.search, self.seed = search, seed
        self.fixed_order = fixed_order
        #: Whether trials train in rounds, so that no timing changes what the search hears; see ``decisions.rounds``.
        self.in_rounds = in_rounds
        #: The number of workers of the first run, which fixes the number of trials in a round.
        self.planned_workers: int | None = None
        #: Configurations to try before those of the search.
        self.points = points
        self.finished = self.draining = self.held = self.stalled = False
        #: Seconds for which a run was active.
        self.elapsed = 0.0
        self._last_time: float | None = None
        self.next_number = 0
        self.next_attempt = 1
        #: Trials added from ``points``, and from the search's suggestions.
        self.pointed = self.suggested = 0
        #: Whether the search had nothing to suggest and has observed nothing since.
        self.dry = False
        #: Decisions of the search that are still to be carried out.
        self.wanted: list[Decision] = []
        #: Requests without an answer.
        self.requests: list[m.RequestMade] = []
        #: Requests that waited for the run and are about to arrive.
        self.waiting = 0
        #: Attempts that workers were told to give up and have not given up yet, by worker.
        self.stopped: dict[str, set[int]] = {}
        #: Workers lost in a row while they ran a unit.
        self.losses = Losses(schedule)
        self.failures = Failures(fail_fast=fail_fast)
        #: Partitions on their way to a worker, and placements that failed.
        self.coming: dict[Place, None] = {}
        self.refused: set[Place] = set()
        #: Training and validation partitions that no worker has and none can get.
        self.missing: tuple[int, ...] = ()
        self.missing_valid: tuple[int, ...] = ()
        #: Whether some worker, present or past, can read only some partitions.
        self.pinned = False
        #: Live trials that changed since the last decision.
        self.touched: dict[str, None] = {}
        # Bound once: binding the dispatcher costs more than most handlers.
        self._fold: Callable[[m.Message], None] = self._apply

    # ---------------------------------------------------------------------------------------------- questions

    @property
    def stands(self) -> bool:
        """Whether workers may wait through no fault of their own: for a person, a disk or a storage."""
        return self.held or bool(self.schedule.stuck)

    @property
    def hopeless(self) -> str:
        """Why the run must end, if it must."""
        return self.losses.hopeless or self.failures.hopeless

    @property
    def ending(self) -> bool:
        """Whether nothing more may start and the run ends once everything is saved."""
        return self.draining or bool(self.hopeless)

    @property
    def over(self) -> str:
        """Why no further epoch may begin; empty if more may."""
        return self.search.over(self.elapsed) or self.schedule.overspent

    @property
    def next_trial(self) -> str:
        """The name of the next trial to be added."""
        return trial_name(self.next_number)

    def find(self, trial: str) -> Progress:
        """Return a trial that must exist, whatever its state."""
        progress = self.schedule.find(trial)
        assert progress is not None, f"{trial} is unknown"
        return progress

    def next_ref(self, trial: str, version: int) -> VersionRef:
        """Return the reference of a new save of a version."""
        return VersionRef(trial, version, self.next_attempt)

    # ----------------------------------------------------------------------------------------------- changes

    def apply(self, message: m.Message) -> None:
        """Take in the next message of the journal."""
        self._tell_time(message)
        self._fold(message)

    def decide(self, message: m.Decision | m.Command) -> m.Message:
        """Apply a decision or command as it is made, and return it."""
        self._fold(message)
        return message

    def touch(self, progress: Progress) -> None:
        """Have a trial looked at in the next round of decisions."""
        self.touched[progress.trial.id] = None

    def touch_all(self) -> None:
        self.touched |= dict.fromkeys(self.schedule.trials)

    def _tell_time(self, message: m.Message) -> None:
        if isinstance(message, (m.UnitFinished, m.UnitFailed, m.UnitStopped)):
            before = self._last_time if self._last_time is not None else message.started
            self._last_time = max(before, message.ended)
            self.elapsed += self._last_time - before

    def _count(self, attempt: int) -> None:
        # Attempts are not journaled in the order in which they were numbered.
        self.next_attempt = max(self.next_attempt, attempt + 1)

    @singledispatchmethod
    def _apply(self, message: object) -> None:
        """Ignore a message that changes no state."""

    # -------------------------------------------------------------------------------------- the run and workers

    @_apply.register
    def _(self, message: m.RunStarted) -> None:
        for worker in list(self.schedule.slots):
            self._forget_worker(worker)
        self.schedule.forget_saves()
        self.touch_all()
        self.finished = self.draining = self.held = self.dry = self.stalled = False
        self.schedule.starting, self.waiting = message.workers, message.requests
        self.schedule.regrouping = self.schedule.forming = self.schedule.spare = 0
        self.planned_workers = self.planned_workers or message.workers
        self.stopped.clear()  # the names of workers begin anew
        self.losses.clear()
        self.failures.clear()
        self.coming, self.refused = {}, set()
        self.missing = self.missing_valid = ()
        self.pinned, self._last_time = False, None

    @_apply.register
    def _(self, message: m.WorkerJoined) -> None:
        self.schedule.join(message.worker, message.partitions, len(message.placement.devices), message.valid)
        self.schedule.starting = max(0, self.schedule.starting - 1)
        self.pinned = self.pinned or message.partitions is not None or message.valid is not None
        self.refused.clear()  # a placement that failed may succeed now
        self.touched |= {name: None for name, progress in self.schedule.trials.items() if progress.outcome is not None}

    @_apply.register
    def _(self, message: m.WorkerLost) -> None:
        stopped, overdue = self.stopped.pop(message.worker, set()), self.schedule.slots[message.worker].overdue
        saving = self.schedule.saved_by(message.worker)
        running = self._forget_worker(message.worker)
        self.schedule.starting += message.replaced
        # A worker that was told to give up attempts was killed for them; its other units are not to blame.
        blamed = [unit for unit, attempt in running.items() if overdue or not stopped or attempt in stopped]
        self.losses.blame_units(blamed, message, overdue)
        if not overdue and not stopped:
            self.losses.blame_saves(saving, [unit.trial for unit in running], message.reason)

    def _forget_worker(self, worker: str) -> dict[Unit, int]:
        self.coming = {place: None for place in self.coming if place.worker != worker}
        self.touch_all()
        return self.schedule.leave(worker)

    @_apply.register
    def _(self, message: m.WorkerUnavailable) -> None:
        self.schedule.starting = max(0, self.schedule.starting - 1)

    @_apply.register
    def _(self, message: m.AddWorkers) -> None:
        self.schedule.starting += message.count

    @_apply.register
    def _(self, message: m.FormTeams) -> None:
        self.schedule.starting += len(message.shapes)
        self.schedule.form_teams(message.shapes)

    @_apply.register
    def _(self, message: m.WorkerRetired) -> None:
        self.schedule.retire(message.worker, for_teams=message.for_teams)

    @_apply.register
    def _(self, message: m.DevicesAllocated) -> None:
        self.schedule.allocate(message.teams, message.devices, message.until)

    @_apply.register
    def _(self, message: m.ReleaseWorker) -> None:
        self.schedule.release(message.worker)

    @_apply.register
    def _(self, message: m.PlacePartition) -> None:
        self.coming[Place(message.worker, message.partition, message.valid)] = None

    @_apply.register
    def _(self, message: m.PartitionPlaced) -> None:
        del self.coming[Place(message.worker, message.partition, message.valid)]
        if message.valid:
            self.schedule.place_valid(message.worker, message.partition)
        else:
            self.schedule.place(message.worker, message.partition)

    @_apply.register
    def _(self, message: m.PartitionUnavailable) -> None:
        place = Place(message.worker, message.partition, message.valid)
        del self.coming[place]
        self.refused.add(place)

    @_apply.register
    def _(self, message: m.PartitionsMissing) -> None:
        self.missing, self.missing_valid = message.partitions, message.valid

    @_apply.register
    def _(self, message: m.RequestMade) -> None:
        if message.request != "drain" or message.number:
            self.requests.append(message)
            self.waiting = max(0, self.waiting - 1)
            return
        self.draining = True
        self.touch_all()

    @_apply.register
    def _(self, message: m.RequestAnswered) -> None:
        self.requests.pop(0)

    @_apply.register
    def _(self, message: m.RunHeld) -> None:
        self.held = message.held

    @_apply.register
    def _(self, message: m.RunStalled) -> None:
        self.stalled = True

    @_apply.register
    def _(self, message: m.Finish) -> None:
        self.finished = True

    # ------------------------------------------------------------------------------------------------- units

    @_apply.register
    def _(self, message: m.RunUnit) -> None:
        self._count(message.attempt)
        self.schedule.start(
            message.worker, message.unit, message.attempt, message.flotilla, lookahead=message.lookahead
        )

    @_apply.register
    def _(self, message: m.UnitFinished) -> None:
        seconds = (message.ended - message.started) * message.share
        self._end_attempt(message.worker, message.attempt)
        self.schedule.finish(message.worker, message.unit, seconds, message.sums, whole=message.whole)
        self.losses.forgive(message)
        self.failures.prove()
        self.touch(self.schedule.trials[message.trial])

    @_apply.register
    def _(self, message: m.UnitFailed) -> None:
        self.schedule.abandon(message.worker, message.trial)
        self._fail(message.trial, message.error, message.traceback)
        self.failures.count(message)
        if self.failures.hopeless:
            self.touch_all()

    @_apply.register
    def _(self, message: m.UnitStopped) -> None:
        self._end_attempt(message.worker, message.attempt)
        self.schedule.give_up(message.worker, message.trial)
        self.touch(self.schedule.trials[message.trial])

    def _end_attempt(self, worker: str, attempt: int) -> None:
        """Note that an attempt to be given up has ended; the worker of an overdue one is lost even so."""
        if attempt in self.stopped.get(worker, ()) and not self.schedule.slots[worker].overdue:
            self.stopped[worker].discard(attempt)
            if not self.stopped[worker]:
                del self.stopped[worker]

    @_apply.register
    def _(self, message: m.UnitOverdue) -> None:
        self.schedule.mark_overdue(message.worker, ran_too_long(message))

    @_apply.register
    def _(self, message: m.StopUnit) -> None:
        self.stopped.setdefault(message.worker, set()).add(message.attempt)

    def _fail(self, trial: str, error: str, traceback: str = "") -> None:
        self.schedule.settle(trial, Outcome(TrialState.FAILED, error, traceback))
        self.touch(self.schedule.trials[trial])

    # ---------------------------------------------------------------------------------------------- versions

    @_apply.register
    def _(self, message: m.SaveVersion | m.CopyVersion) -> None:
        ref, replaces = message.ref, tuple[int, ...]()
        save = Save(ref.version, durable=True, worker=None)
        if isinstance(message, m.SaveVersion):
            save, replaces = Save(ref.version, message.durable, message.worker, message.waits), message.replaces
        assert ref.attempt is not None
        self._count(ref.attempt)
        self.schedule.save(ref.trial, ref.attempt, save, replaces)

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
        self.touch(progress)

    @_apply.register
    def _(self, message: m.VersionLost) -> None:
        progress, version = self.schedule.trials[message.trial], message.ref.version
        if message.worker is not None and self.schedule.runs(message.worker, message.attempt):
            self.schedule.abandon(message.worker, message.trial)
        self.schedule.lost(message.ref, message.worker, message.attempt, intact=message.intact)
        self.losses.blame_load(message)
        if progress.trial.parent is not None and version == progress.base == progress.version and not progress.loadable:
            reason = f"the model of {progress.trial.parent.trial} that it should have started with is lost"
            self.schedule.settle(message.trial, Outcome(TrialState.FAILED, f"{reason}: {message.reason}"))
        self.touch(progress)

    @_apply.register
    def _(self, message: m.SaveFailed) -> None:
        self._fail(message.trial, message.error, message.traceback)

    @_apply.register
    def _(self, message: m.SaveDelayed) -> None:
        self.schedule.delay(message.ref, on_node=message.on_node)

    @_apply.register
    def _(self, message: m.DropVersion) -> None:
        self.schedule.dropped(message.ref)

    def _return_loan(self, clone: Progress) -> None:
        """Note that a clone has its parent's model, or will never need it."""
        parent = clone.trial.parent
        lender = None if parent is None else self.schedule.find(parent.trial)
        if lender is not None and self.schedule.return_loan(lender, clone.trial.id):
            self.touch(lender)

    # ------------------------------------------------------------------------------------------------ trials

    @_apply.register
    def _(self, message: m.TrialAdded) -> None:
        parent = None
        trained: Mapping[int, Mapping[str, RowSum]] = {}
        if message.visits:
            lender, version = self.find(message.parent), len(message.visits)
            trained = self.schedule.lend(lender, message.trial, version)
            parent = Parent(message.parent, version, lender.trial.config)
        names = (message.trial, message.number, message.config, message.seed, message.epochs, parent, message.origin)
        trial = Trial(*names, message.planned, message.chosen)
        self.next_number = message.number + 1
        self.pointed += message.origin == "point"
        self.suggested += message.origin == "search"
        order = self._order(trial, message.visits) if self.fixed_order else ()
        self.search.added(trial)
        self.touch(self.schedule.add(trial, order, message.visits, trained, self.search.onward(trial)))

    def _order(self, trial: Trial, visits: Sequence[int] = ()) -> list[int]:
        order = fixed_order(self.seed, trial.number, partitions=self.schedule.partitions, epochs=trial.epochs)
        return remaining_order(order, visits, partitions=self.schedule.partitions)

    @_apply.register
    def _(self, message: m.TrialStopped) -> None:
        self.schedule.settle(message.trial, Outcome(TrialState.STOPPED, message.reason, delete=message.delete))
        self.touch(self.schedule.trials[message.trial])

    @_apply.register
    def _(self, message: m.TrialPaused) -> None:
        self.schedule.park(message.trial, TrialState.PAUSED)

    @_apply.register
    def _(self, message: m.TrialResumed) -> None:
        progress = self.find(message.trial)
        longer = replace(progress.trial, epochs=message.epochs)
        order = self._order(longer)[progress.trial.epochs * self.schedule.partitions :] if self.fixed_order else ()
        self.schedule.resume(message.trial, message.epochs, order, self.search.onward(longer))
        self.touch(progress)

    @_apply.register
    def _(self, message: m.TrialRolledBack) -> None:
        self.schedule.roll_back(message.trial, message.version)

    @_apply.register
    def _(self, message: m.EpochEnded) -> None:
        progress = self.schedule.trials[message.trial]
        best = (message.version, self.search.goal.rank(message.metrics)) if message.best else None
        self.wanted += self.search.observe(progress.trial, message.epoch, message.metrics)
        self.dry = False
        self.schedule.end_epoch(message.trial, best, message.metrics.get(self.search.goal.metric))
        self.touch(progress)

    @_apply.register
    def _(self, message: m.TrialEnded) -> None:
        progress = self.find(message.trial)
        self._return_loan(progress)
        self.schedule.park(message.trial, message.state)
        self.wanted += self.search.ended(progress.trial, message.state)
        self.dry = False

    @_apply.register
    def _(self, message: m.TrialDeleted) -> None:
        self.schedule.delete(message.trial)

    @_apply.register
    def _(self, message: m.TrialPrioritised) -> None:
        self.schedule.prioritise(message.trial, message.level)

    @_apply.register
    def _(self, message: m.SearchExtended) -> None:
        self.search.extend(trials=message.trials, epochs=message.epochs, space=spaces.parse(message.space))
        self.dry = False
