"""The driver: events in, decisions of the controller, journal, effects, observers, in this order.

Real runs, simulations, previews, replays, benchmarks and tests share this code. They differ in the backend, in the
effects that they add or replace, and in their observers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from hopfleet.domain.messages import (
    AddWorkers,
    Command,
    Event,
    Message,
    PlacePartition,
    ReleaseWorker,
    RunUnit,
    SaveVersion,
    StopUnit,
    WorkerRetired,
)
from hopfleet.domain.trial import Trial
from hopfleet.monitor.observer import Observer
from hopfleet.support.clock import RunClock

Effects = Mapping[type[Any], Callable[[Any], object]]
"""What to do about messages, by type. Messages of other types need no action."""


class Tracked(Protocol):
    """The progress of a trial."""

    @property
    def trial(self) -> Trial: ...


class Trials(Protocol):
    """A schedule, as far as a driver reads it."""

    def find(self, trial: str, /) -> Tracked | None:
        """Return the progress of a trial, or None if there is no such trial."""


class Decider(Protocol):
    """A controller, as far as a driver calls it."""

    @property
    def finished(self) -> bool: ...

    @property
    def schedule(self) -> Trials: ...

    def take(self, events: Iterable[Event], now: float, /) -> Sequence[Message]:
        """Return the events that count, followed by the decisions and commands that they lead to.

        ``now`` are the seconds since the run started.
        """


class Executor(Protocol):
    """A backend, as far as a driver calls it."""

    def send(self, command: Command, trial: Trial, /) -> None: ...

    def add(self, count: int, /) -> None: ...

    def retire(self, worker: str, /) -> None: ...

    def release(self, worker: str, /) -> None: ...

    def stop(self, worker: str, /) -> None: ...
    def give_up(self, worker: str, attempt: int, /) -> None: ...

    def place(self, worker: str, partition: int, /, *, valid: bool = False) -> None: ...

    def receive(self, timeout: float, /) -> list[Event]: ...

    def now(self) -> float: ...


class Driver:
    """Connects a controller with a backend and with observers.

    ``journal`` stores the messages of a step with their time, before any of them has an effect. ``effects`` adds to the
    calls of the backend and replaces them. ``refused`` hears of events that came too late to count; they are neither
    journaled nor observed.
    """

    def __init__(
        self,
        controller: Decider,
        backend: Executor,
        observers: Sequence[Observer] = (),
        *,
        journal: Callable[[float, Sequence[Message]], None] | None = None,
        effects: Effects | None = None,
        refused: Callable[[Event], None] | None = None,
    ) -> None:
        self.controller = controller
        self.backend = backend
        self._clock = RunClock(backend.now)
        self._journal = journal
        self._refused = refused
        self._effects = {**self._calls(), **(effects or {})}
        self._updates = [observer.update for observer in observers]

    def _calls(self) -> Effects:
        backend = self.backend
        return {
            RunUnit: self.send,
            SaveVersion: self.send,
            StopUnit: self._stop,
            AddWorkers: lambda command: backend.add(command.count),
            WorkerRetired: lambda decision: backend.retire(decision.worker),
            ReleaseWorker: lambda command: backend.release(command.worker),
            PlacePartition: self._place,
        }

    def _place(self, command: PlacePartition) -> None:
        if command.valid:
            self.backend.place(command.worker, command.partition, valid=True)
        else:  # some backends know training partitions alone
            self.backend.place(command.worker, command.partition)

    def _stop(self, command: StopUnit) -> None:
        if command.overdue:
            self.backend.stop(command.worker)
        else:
            self.backend.give_up(command.worker, command.attempt)

    def send(self, command: RunUnit | SaveVersion) -> None:
        """Send a command to the backend, with its trial."""
        progress = self.controller.schedule.find(command.trial)
        assert progress is not None, f"{command.trial} is unknown"
        self.backend.send(command, progress.trial)

    def run(self, first: Sequence[Event]) -> bool:
        """Start with the events ``first`` and go on until the controller has finished, or until no event is left.

        Return whether the controller has finished.
        """
        for events in self.moments(first):
            self.step(events)
        return self.controller.finished

    def moments(self, first: Sequence[Event]) -> Iterator[Sequence[Event]]:
        """Yield ``first``, then what the backend reports next. The caller passes each list to ``step``."""
        events = first
        while events and not self.controller.finished:
            yield events
            events = self.backend.receive(0.0)

    def step(self, events: Sequence[Event]) -> None:
        """Let the controller decide on events, and act on its decisions."""
        self.follow(self.decide(events))

    def decide(self, events: Sequence[Event]) -> Sequence[Message]:
        """Return the events that count and what follows from them, without acting on anything but refused events."""
        messages = self.controller.take(events, self._clock())
        if self._refused is not None:
            counted = {id(message) for message in messages}
            for event in events:
                if id(event) not in counted:
                    self._refused(event)
        return messages

    def follow(self, messages: Sequence[Message]) -> None:
        """Journal messages, then act on them, then let observers hear of them."""
        if not messages:
            return
        now = self.backend.now()
        if self._journal is not None:
            self._journal(now, messages)
        for message in messages:
            self.act(message)
        for message in messages:
            for update in self._updates:
                update(now, message)

    def act(self, message: Message) -> None:
        """Do what a message that is journaled leads to."""
        effect = self._effects.get(type(message))
        if effect is not None:
            effect(message)
