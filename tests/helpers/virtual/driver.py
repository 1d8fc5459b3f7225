"""Whole experiments in virtual time: the real controller against a fleet that fails in every way it may.

A model is the list of the units that it has seen, so a model trained in any but the right order shows at once.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.bounds import MOST
from hopfleet.errors import InvariantBroken
from hopfleet.runtime import driver as runtime
from hopfleet.runtime.effects import missing_versions
from hopfleet.scheduler.invariants import validate
from hopfleet.scheduler.progress import Progress
from hopfleet.simulation.backend import START
from hopfleet.simulation.driver import simulated_driver
from tests.helpers.requested import ODD
from tests.helpers.virtual.checks import Checks, check_nobody_waits, durables, state_of, through_json
from tests.helpers.virtual.faults import STRIKES
from tests.helpers.virtual.fleet import MortalChores, SlowCopies
from tests.helpers.virtual.settings import Fault, Setting, controller_of


class Unwritten(Exception):
    """The controller dies before it has written anything."""

    def __init__(self, doom: Fault) -> None:
        super().__init__(doom.kind)
        self.doom = doom


class MortalDriver(runtime.Driver):
    """The product's driver, whose process may die between any two effects."""

    #: How many effects come before its death.
    left = math.inf

    def survives(self, messages: Sequence[m.Message], pick: int) -> int:
        """Pick how many effects of a step still happen: none of them, some or all."""
        return pick % (sum(type(message) in self._effects for message in messages) + 1)

    def act(self, message: m.Message) -> None:
        if type(message) in self._effects and self.left > 0:
            self.left -= 1
            super().act(message)


class Driver(Checks):
    """Runs one setting to its end and checks everything that must hold on the way."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        #: Trials and their saved versions before the step that is being taken, and whose trials they are.
        self.known: dict[str, Progress] = {}
        self.before: dict[str, dict[int, bool]] = {}
        self.noted: Controller | None = None
        self.chores = MortalChores()
        #: Whether the step has written anything, and how the controller dies in it.
        self.wrote = False
        self.falls: Fault | None = None
        self.driver = self.drive()

    def run(self) -> Driver:
        faults = deque(sorted(self.setting.faults, key=lambda fault: fault.step))
        self.take(m.RunStarted("test", len(self.setting.workers)))
        self.fleet.start(None, len(self.setting.workers))
        for step in itertools.count():
            assert step < 3000, "livelock"
            while faults and faults[0].step <= step and not self.complete:
                self.inject(faults.popleft())
            if self.controller.finished:
                if self.complete:
                    break
                self.resume(durable_only=True)
                continue
            events = self.fleet.receive(0.0)
            if not events and self.controller.held:
                events = [m.RequestMade("proceed")]
            if not events and (self.controller.missing or self.controller.state.missing_valid):
                self.check_missing()
                self.fleet.join(self.controller.missing, valid=tuple(range(self.setting.valid)))
                continue
            assert events, "deadlock: nothing runs, and the experiment is not finished"
            self.take(*events)
            self.look_ahead()
        self.makespan = self.fleet.elapsed - START
        self.check_end()
        return self

    @property
    def complete(self) -> bool:
        return m.Finish(complete=True) in self.messages[-1:]

    def take(self, *events: m.Event) -> None:
        """One step of the product's driver, and a look at everything afterwards."""
        if len(events) == 1 and self.controller.refuses(events[0]):
            assert self.controller.handle(events[0]) == []
        self.followed(lambda: self.driver.step(events))

    def look_ahead(self) -> None:
        """What the loop does every now and then: here, as often as there is anything to tell ahead."""
        ages = dict.fromkeys(self.controller.schedule.slots, math.inf)
        self.followed(lambda: self.driver.follow(self.controller.look_ahead(ages)))

    def drive(self) -> MortalDriver:
        return simulated_driver(
            self.controller,
            self.fleet,
            journal=self.write,
            chores=self.chores,
            copies=SlowCopies(lambda seconds, copy: self.fleet.later(self.fleet.elapsed + seconds, copy)),
            make=MortalDriver,
        )

    def followed(self, step: Callable[[], None]) -> None:
        """Let the driver do something, and check all that follows."""
        if self.wrote or self.noted is not self.controller:  # a step that writes nothing changes nothing
            self.known = {**self.controller.schedule.trials, **self.controller.schedule.parked}
            self.versions = {name: len(progress.visits) for name, progress in self.known.items()}
            self.before = {name: durables(progress) for name, progress in self.known.items()}
            self.noted = self.controller
        self.wrote, self.falls = False, None
        try:
            step()
        except Unwritten as unwritten:
            self.fall(unwritten.doom)
            return
        if not self.wrote:
            return
        validate(self.controller.schedule)
        if not self.controller.draining and not self.controller.held:
            check_nobody_waits(self.controller.schedule, self.setting.policy)
        self.check_kept()
        if self.falls is not None:
            self.fall(self.falls)
        else:
            self.check_references()

    def write(self, now: float, messages: Sequence[m.Message]) -> None:
        """The journal, unless the controller dies before it has written anything."""
        for message in messages:
            match message:
                case m.RunStalled(text=text):
                    raise InvariantBroken(text)
                case m.UnitFinished():
                    self.versions[message.trial] = message.version
                case m.VersionSaved(ref=ref) if ref.version > self.versions[ref.trial]:
                    self.premature.add(ref.attempt)
                case m.VersionSaved(ref=ref):
                    saved = self.before[ref.trial]
                    saved[ref.version] = message.durable or saved.get(ref.version, False)
        doom, self.doom = self.doom, None
        if doom is not None and doom.kind == "unwritten":
            raise Unwritten(doom)
        self.messages += messages
        self.boundaries.append(len(self.messages))
        self.wrote, self.falls = True, doom
        self.check_taken(self.known, self.before, messages)
        self.chores.lost = doom is not None and doom.pick % 5 == 0
        self.driver.left = math.inf if doom is None else self.driver.survives(messages, doom.pick)

    def fall(self, doom: Fault) -> None:
        """The controller dies in the middle of a step."""
        if not self.complete:
            self.resume(durable_only=doom.pick % 3 == 0, zombies=doom.pick % 2 == 0)

    def resume(self, *, durable_only: bool, zombies: bool = False) -> None:
        """A new controller takes over from the journal, with new workers."""
        self.fleet.end(durable_only=durable_only, zombies=zombies)
        self.controller = controller_of(self.setting)
        self.controller.restore(self.messages)
        self.driver = self.drive()
        missing = list(missing_versions(self.controller.schedule, self.fleet.saved))
        self.lost |= {event.ref for event in missing}
        self.take(m.RunStarted("test", len(self.setting.workers)), *missing)
        if not self.complete:
            self.fleet.start(None, len(self.setting.workers))

    def inject(self, fault: Fault) -> None:
        if STRIKES[fault.kind](self, fault):
            self.struck.append(fault.kind)

    def repeatable(self, message: m.Message) -> bool:
        """Whether it is a report, which may come twice. That a worker joined is told by the controller's own side."""
        reports = m.UnitFinished | m.UnitFailed | m.VersionSaved | m.VersionLost | m.SaveFailed
        gone = isinstance(message, m.WorkerLost) and message.worker not in self.controller.schedule.slots
        return gone or isinstance(message, reports)

    def restored(self) -> dict[str, object]:
        copy = controller_of(self.setting)
        copy.restore(through_json(self.messages))
        return state_of(copy)

    def request(self, fault: Fault) -> m.RequestMade:
        schedule, pick = self.controller.schedule, fault.pick
        trials = [*schedule.trials, *schedule.parked, "t9999"]
        trial = trials[pick % len(trials)]
        arguments: dict[str, Any] = {
            "stop": {"trial": trial, "now": pick % 3 == 0},
            "resume": {"trial": trial, **({"epochs": 1 + pick % 5} if pick % 2 else {})},
            "delete": {"trial": trial, "now": pick % 3 == 0},
            "clone": {"trial": trial, "changes": {"x": pick}, "warm": pick % 4 > 0},
            "add": {"config": {"x": pick}},
            "prioritise": {"trial": trial, "level": pick % 3},
            "workers": {"count": 1 + pick % 4},
            "extend": {"trials": pick % 2, "epochs": 1 - pick % 2},
        }.get(fault.kind, {})
        if arguments and pick % 4 == 0:  # an argument of another kind, or beyond its bound
            odd = ODD[pick // 4 % len(ODD)]
            endless = isinstance(odd, int) and 5 < odd <= MOST
            arguments = {**arguments, [*arguments][pick % len(arguments)]: MOST + 1 if endless else odd}
        return m.RequestMade(fault.kind, arguments, "user", len(self.messages))
