"""Runs the units of a flotilla: several trials over the same rows, with one stream of batches."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from hopfleet.domain.messages import RunUnit
from hopfleet.domain.trial import Trial
from hopfleet.errors import describe
from hopfleet.frameworks.base import GivenUp, IsolationError, Result, Session, SharedStateChanged
from hopfleet.frameworks.process_settings import alike
from hopfleet.support import clock
from hopfleet.support.logging import messages
from hopfleet.support.user_code import interrupts
from hopfleet.worker.context import WorkerContext
from hopfleet.worker.feeding.stream import Stream
from hopfleet.worker.interruption import InterruptibleStream
from hopfleet.worker.logs import Turn
from hopfleet.worker.model_cache import ModelCache
from hopfleet.worker.saver import Saver
from hopfleet.worker.surroundings.isolation import SettingsChanged
from hopfleet.worker.unit_runner import UnitRunner, locate


def _after(check: Turn, turn: Turn) -> Turn:
    """Return a turn that begins with a check."""

    def checked(number: int) -> None:
        check(number)
        turn(number)

    return checked


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a flotilla: its unit, its model, and whether the model was loaded."""

    command: RunUnit
    trial: Trial
    session: Session
    hopped: bool


class FusedRunner:
    """Runs units together. A member that cannot take part runs its unit afterwards, alone."""

    def __init__(self, context: WorkerContext, models: ModelCache, saver: Saver, units: UnitRunner) -> None:
        self._context = context
        self._models = models
        self._saver = saver
        self._units = units
        #: The attempts of the current units that were given up.
        self._given_up: set[int] = set()
        #: Most members of a flotilla, as learned on this worker.
        self._most = sys.maxsize

    def run(self, units: list[tuple[RunUnit, Trial]]) -> None:
        """Run units over the same rows together."""
        started = clock.now()
        members: list[Member] = []
        for command, trial in units:
            held = self._models.holds(command.model)
            with contextlib.nullcontext() if held else self._units.reporting(command, trial, started):
                members.append(Member(command, trial, *self._models.take(command, trial)))
        for left in self._alike(members):
            while left:
                some, left = left[: self._most], left[self._most :]
                for group in self._groups(some):
                    self._run_some(group, started)
                    started = clock.now()
        self._given_up.clear()
        self._context.interruption.forget(command.attempt for command, _ in units)

    def _alike(self, members: list[Member]) -> list[list[Member]]:
        """Group members whose own settings are the same; one that changes settings as it trains is by itself."""
        found: list[list[Member]] = []
        for member in members:
            own = member.session.own_settings
            for group in found if member.trial.id not in self._context.unsettled else ():
                first = group[0]
                if first.trial.id not in self._context.unsettled and alike(first.session.own_settings, own):
                    group.append(member)
                    break
            else:
                found.append([member])
        return found

    def _groups(self, members: list[Member]) -> list[list[Member]]:
        """Group members that can train together: those of one batch size, or all if the partition is on the device."""
        groups: dict[int, list[Member]] = {}
        for member in members:
            groups.setdefault(self._context.batch_size(member.trial), []).append(member)
        first = members[0]
        if len(groups) == 1 or not first.command.unit.trains:
            return [members]
        if self._context.framework.mixes_batch_sizes:
            stream = self._context.train_stream(first.session, first.trial, first.command.unit, shared=True)
            if stream.is_resident:
                return [members]
        return list(groups.values())

    def _give_up(self, commands: Mapping[int, RunUnit], started: float) -> None:
        """Report members that were given up, between two batches; the others go on. Raise GivenUp if none is left.

        ``commands`` are the units of all members, by attempt.
        """
        for attempt in self._context.interruption.ordered(commands) - self._given_up:
            self._given_up.add(attempt)
            self._units.give_up(commands[attempt], started)
        if self._given_up.issuperset(commands):
            raise GivenUp

    def _run_some(self, members: list[Member], started: float) -> None:
        if len(members) == 1:
            (member,) = members
            self._models.put_back(member.command.trial, member.session, member.command.model.version)
            left = members
        elif (results := self._results(members, started)) is None:
            left = members  # half trained: each one starts anew
        else:
            with self._units.collecting({member.command.trial for member in members}):
                for member, result, share in results:
                    self._report(member, result, share, started)
            left = [member for member, result, _ in results if self._out_of_memory(result)]
            if left:
                self._limit(len(members), "there is no memory for all of them", most=len(members) // 2)
        units = [(each.command, each.trial) for each in left if each.command.attempt not in self._given_up]
        members.clear()  # free their half-trained models
        left.clear()
        for command, trial in units:
            self._units.run(command, trial)

    def _results(self, members: list[Member], started: float) -> list[tuple[Member, Result, float]] | None:
        """Return each member's result and share of the time; None if each must start anew from its last version."""
        context, first = self._context, members[0]
        commands = {member.command.attempt: member.command for member in members}

        def given_up() -> list[int]:
            return [number for number, attempt in enumerate(commands) if attempt in self._given_up]

        def interruptible(stream: Stream) -> InterruptibleStream:
            return InterruptibleStream(stream, lambda: self._give_up(commands, started))

        logs = [context.spec.logs / f"{member.command.trial}.log" for member in members]
        try:
            with context.capture(*logs) as turn, context.guarded(), contextlib.ExitStack() as stack:
                for member in members:
                    stack.enter_context(context.veiled(member.trial))
                check = stack.enter_context(context.isolation.around_all(first.session.own_settings))
                sessions = [member.session for member in members]
                flotilla = context.framework.flotilla(sessions, fast=context.spec.fast)
                flotilla.turn, flotilla.given_up = _after(check, turn), given_up
                self._saver.under_way()
                unit = first.command.unit
                if unit.trains:
                    streams, of = self._streams(members)
                    for member in members:
                        if member.command.metric is not None:
                            member.session.observe(member.command.metric)
                    last = [member.command.last for member in members]
                    if len(streams) == 1:
                        results = flotilla.train(interruptible(streams[0]), last=last)
                    else:
                        results = flotilla.train_mixed(list(map(interruptible, streams)), of, last=last)
                else:
                    results = self._units.evaluated(
                        lambda partition: flotilla.evaluate(
                            interruptible(context.valid_stream(first.session, partition, shared=True)),
                            seed=self._units.evaluation_seed(unit, partition),
                        ),
                        unit,
                    )
        except GivenUp:
            return []
        except BaseException as error:
            if interrupts(error):
                raise
            self._start_anew(error, members)
            return None
        for member, result in zip(members, results, strict=True):
            self._units.check_device(result)
            if not isinstance(result, BaseException) and (context.spec.valid is None or not unit.trains):
                context.count_parameters(member.session, result)
        found = zip(members, results, flotilla.shares, strict=True)
        return [entry for entry in found if entry[0].command.attempt not in self._given_up]

    def _start_anew(self, error: BaseException, members: list[Member]) -> None:
        """Say why members that trained together start anew, and prevent it in later units."""
        self._units.check_device(error)
        if isinstance(error, SettingsChanged) and error.member is not None:
            self._context.unsettled.add(members[error.member].trial.id)
        if isinstance(error, IsolationError) and not error.lasting:
            messages().warning("%s: %d trials train this unit one by one", error, len(members))
        elif isinstance(error, SharedStateChanged):
            messages().warning("%s; from now on each trial has its own", describe(error))
            self._models.make_room()
        elif isinstance(error, IsolationError):
            self._limit(len(members), str(error), most=1)
        else:
            self._limit(len(members), describe(error), most=len(members) // 2)

    def _streams(self, members: list[Member]) -> tuple[list[Stream], list[int]]:
        """Return a stream of batches for each batch size, and the number of each member's stream."""
        streams: dict[int, Stream] = {}
        for member in members:
            size = self._context.batch_size(member.trial)
            if size not in streams:
                streams[size] = self._context.train_stream(
                    member.session,
                    member.trial,
                    member.command.unit,
                    shared=True,
                    beside=next(iter(streams.values()), None),
                )
        numbers = {size: number for number, size in enumerate(streams)}
        return list(streams.values()), [numbers[self._context.batch_size(member.trial)] for member in members]

    def _report(self, member: Member, result: Result, share: float, started: float) -> None:
        command = member.command
        if not isinstance(result, BaseException):
            self._units.finish(command, member.session, started, member.hopped, result, share)
        elif not self._out_of_memory(result):
            locate(result, command.unit)
            with self._units.reporting(command, member.trial, started):
                raise result

    def _out_of_memory(self, result: Result) -> bool:
        """Whether a member failed because the members did not fit into memory together."""
        return isinstance(result, BaseException) and self._context.framework.out_of_memory(result)

    def _limit(self, members: int, reason: str, *, most: int) -> None:
        """Limit the members of later flotillas to ``most``."""
        self._most = max(1, most)
        how = f"at most {self._most} at once" if self._most > 1 else "one by one"
        messages().warning("%d trials that trained together go on %s: %s", members, how, reason)
