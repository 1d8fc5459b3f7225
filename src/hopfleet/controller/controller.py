"""The controller: search and scheduler behind ``handle(event) -> messages``.

The controller knows no clock, file, process, socket or framework. ``handle`` applies an event to the state, then
decides until nothing is left to decide, and applies each decision and command as it makes it. ``restore`` rebuilds the
state from a journal by applying alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from hopfleet.controller.decisions.allocation import allocate_devices
from hopfleet.controller.decisions.dispatch import Dispatcher, check_liveness
from hopfleet.controller.decisions.rounds import close_round
from hopfleet.controller.decisions.teams import Teams
from hopfleet.controller.decisions.trials import (
    add_trials,
    advance,
    answer_requests,
    carry_out,
    conclude,
    stop_all_if_over,
)
from hopfleet.controller.decisions.versions import keep_versions
from hopfleet.controller.decisions.workers import (
    finish,
    give_up_overdue,
    overdue_units,
    place_partitions,
    release_workers,
)
from hopfleet.controller.state import State
from hopfleet.domain import messages as m
from hopfleet.domain.bounds import MOST_WORKERS
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Config
from hopfleet.planner.fleet.allocation import Fleet
from hopfleet.planner.teams import Scaling
from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.fusion import Fusion
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.timeouts import Timeout
from hopfleet.search.base import MAX_LIVE, Search


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
        max_workers: int = MOST_WORKERS,
        estimates: Estimates | None = None,
        fixed_order: bool = False,
        deterministic: bool = False,
        points: Sequence[Config] = (),
        fusion: Fusion | None = None,
        unit_timeout: Timeout = "auto",
        sticky: bool = False,
        lookahead: bool = False,
        fail_fast: bool = False,
        scaling: Scaling | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        self.schedule = Schedule(partitions, valid_partitions, estimates)
        self.schedule.sticky = sticky
        self.state = State(
            self.schedule,
            search,
            seed=seed,
            fixed_order=fixed_order,
            points=points,
            fail_fast=fail_fast,
            in_rounds=deterministic and search.listens,
        )
        self.max_live = max_live
        #: How many workers a person may ask for.
        self.max_workers = max_workers
        #: What teams there are; None if no worker ever gives way to a team.
        self.teams = None if scaling is None else Teams(scaling)
        if scaling is not None:
            self.schedule.speed = scaling.speed
        #: What is known about rates; with it, trials get numbers of devices in rounds.
        self.fleet = fleet
        self.schedule.allocated = fleet is not None
        self.unit_timeout: Timeout = unit_timeout
        self.dispatcher = Dispatcher(policy, random.Random(derive(seed, "policy")), fusion, lookahead)

    # ------------------------------------------------------------------------------------------------- doors

    def handle(self, event: m.Event) -> list[m.Message]:
        """Take in an event; return the decisions and commands that follow, in the order to journal and execute.

        A report of an attempt that is no longer current, or about a trial that has ended, changes nothing;
        ``refuses`` recognises such reports.
        """
        return self.take([event])[1:]

    def take(self, events: Iterable[m.Event], now: float = 0.0) -> list[m.Message]:
        """Take in all events of one moment, then decide; return the events that count and what follows them.

        ``now`` are the seconds since the run started; without them, no time has passed since the last events.
        """
        self.schedule.now = max(self.schedule.now, now)
        messages: list[m.Message] = []
        for event in events:
            if not self.refuses(event):
                self.state.apply(event)
                messages.append(event)
        return [*messages, *self._decide()] if messages else []

    def restore(self, messages: Iterable[m.Message]) -> None:
        """Become the controller that wrote these messages."""
        for message in messages:
            self.state.apply(message)
        self.state.wanted.clear()  # their outcome is in the journal too

    def overdue(self, ages: Mapping[str, float]) -> list[m.Event]:
        """Return the units that run far too long, given for how many seconds each worker has run its current one."""
        return overdue_units(self.state, self.unit_timeout, ages)

    def look_ahead(self, ages: Mapping[str, float]) -> list[m.Message]:
        """Return what workers should learn ahead of time, given for how many seconds each has run its current unit."""
        return list(self.dispatcher.look_ahead(self.state, ages))

    def next_look(self, ages: Mapping[str, float]) -> float:
        """Return the seconds until ``look_ahead`` may have more to tell."""
        return self.dispatcher.next_look(self.state, ages)

    def refuses(self, event: m.Event) -> bool:
        """Whether an event comes too late to count."""
        schedule = self.schedule
        match event:
            case m.UnitFinished() | m.UnitFailed() | m.UnitStopped():
                return not schedule.accepts(event.worker, event.unit, event.attempt)
            case m.VersionSaved() | m.SaveFailed() | m.SaveDelayed():
                progress = schedule.trials.get(event.trial)
                return progress is None or event.ref.attempt not in progress.saves
            case m.VersionLost():
                return self._refuses_loss(event)
            case m.WorkerLost():
                return event.worker not in schedule.slots
            case m.PartitionPlaced() | m.PartitionUnavailable():
                return (event.worker, event.partition, event.valid) not in self.state.coming
            case m.UnitOverdue():
                slot = schedule.slots.get(event.worker)
                return slot is None or event.attempt not in slot.units.values()
            case _:
                return False

    def _refuses_loss(self, event: m.VersionLost) -> bool:
        progress = self.schedule.trials.get(event.trial)
        if progress is None:
            return True
        if event.attempt:
            return event.attempt not in progress.saves and not self.schedule.runs(event.worker, event.attempt)
        saved = progress.saved.get(event.ref.version)
        return saved is None or saved.attempt != event.ref.attempt

    # ---------------------------------------------------------------------------------------------- questions

    @property
    def search(self) -> Search:
        return self.state.search

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self.state.finished

    @property
    def draining(self) -> bool:
        """Whether a person asked for a resumable end."""
        return self.state.draining

    @property
    def failing(self) -> bool:
        """Whether the run ends because its trials fail in the same way."""
        return bool(self.state.failures.hopeless)

    @property
    def held(self) -> bool:
        """Whether a person paused the run."""
        return self.state.held

    @property
    def missing(self) -> tuple[int, ...]:
        """The training partitions that no worker has and none can get."""
        return self.state.missing

    @property
    def elapsed(self) -> float:
        """Seconds for which a run was active."""
        return self.state.elapsed

    @property
    def stands(self) -> bool:
        """Whether workers may wait through no fault of their own: for a person, or for a disk."""
        return self.state.stands

    # ------------------------------------------------------------------------------------------------ deciding

    def _decide(self) -> Iterator[m.Message]:
        """Decide until nothing is left to decide. Each message is applied before the next one is thought of."""
        state, search = self.state, self.state.search
        yield from answer_requests(state, self.max_workers)
        yield from give_up_overdue(state)
        touched: dict[str, None] = {}
        while True:
            wanted, state.wanted = state.wanted, []
            for decision in wanted:
                yield from carry_out(state, decision)
            yield from stop_all_if_over(state)
            changed, state.touched = state.touched, {}
            touched |= changed
            yield from self._each(changed, lambda progress: advance(state, progress))
            if not state.touched and not state.wanted:
                yield from close_round(state)
            if not state.touched and not state.wanted:
                yield from add_trials(state, self.max_live)
                yield from conclude(state)
            if not state.touched and not state.wanted:
                break
        yield from place_partitions(state)
        if self.fleet is not None:
            yield from allocate_devices(state, self.fleet)
        elif self.teams is not None:
            yield from self.teams.regroup(state)
        self.schedule.more_to_come = search.streams and not state.dry and not state.over
        self.schedule.suggestions_left = search.samples - state.suggested
        # In FLEET's rounds, the allocation says which trials train on which teams.
        teams = self.teams if self.fleet is None else None
        meanwhile = None if teams is None else teams.meanwhile(self.schedule)
        starts = list(self.dispatcher.dispatch(state, meanwhile))
        begun = {start.trial for start in starts}
        # A save goes out before the start that would make its worker forget the model.
        yield from self._each(touched, lambda progress: keep_versions(state, progress, begun))
        yield from starts
        yield from self.dispatcher.overrule(state)
        yield from self.dispatcher.go_on(state)
        yield from release_workers(state)
        yield from finish(state)
        yield from check_liveness(state)

    def _each(self, trials: Iterable[str], decide: Callable[[Progress], Iterator[m.Message]]) -> Iterator[m.Message]:
        for trial in trials:
            progress = self.schedule.trials.get(trial)
            if progress is not None:
                yield from decide(progress)
