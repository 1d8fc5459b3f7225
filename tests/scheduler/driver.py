"""Whole experiments in virtual time: the real controller against a fleet that fails in every way it may.

A model is the list of the units that it has seen, so a model trained in any but the right order shows at once.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import json
import math
import random
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from attempts import Attempts

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.rowsum import RowSum, add, means
from hopfleet.domain.trial import TrialState
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.fusion import Fusion
from hopfleet.scheduler.invariants import validate, validate_history
from hopfleet.scheduler.policies import POLICIES
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.search import Random
from hopfleet.search.base import Clone, Goal, Stop, Suggestion, Train

Model = tuple[tuple[int, int], ...]
"""The units that a model has seen, as (epoch, partition)."""

FAULTS = (
    *("lose", "leave", "join", "raise", "unsavable", "vanish", "rot", "forget", "repeat", "drain", "crash", "cut"),
    *("zombie", "mute", "deaf", "late", "unwritten", "partial", "refuse"),
)
REQUESTS = ("stop", "resume", "delete", "clone", "add", "prioritise", "pause", "proceed", "workers", "extend")
WORK_CONSERVING = {"longest-remaining", "nearly-done", "random"}
"""Policies under which nobody waits who could work."""
UNIT_SECONDS = (0.0, 0.25, 1.0, 2.0, 7.0)
UNHEARD = {"zombie", "mute", "deaf", "late", "crash", "unwritten", "partial"}
"""Faults after which somebody may write a file that the controller does not hear of, or not at once."""
DAMAGE = {"vanish", "rot", "repeat"}
"""Faults after which a saved version may be gone for good."""
LOSSES = {"lose", "leave", "zombie", "mute", "deaf"}
"""Faults after which a worker is taken for dead."""
PATIENCE = 5.0
"""Seconds until a worker is taken for dead that does not hear or is not heard."""


@dataclass(frozen=True)
class Fault:
    step: int
    kind: str
    pick: int = 0


@dataclass(frozen=True)
class Setting:
    """One experiment, its fleet and what goes wrong."""

    workers: tuple[tuple[int, ...] | None, ...] = (None,)
    partitions: int = 2
    valid: int = 1
    trials: int = 2
    epochs: int = 2
    stops: dict[int, int] = field(default_factory=dict)  #: trial number -> the epoch that the search stops it after
    policy: str = "longest-remaining"
    max_live: int = 256
    seed: int = 0
    steady: bool = True  #: every unit takes one second
    save_seconds: float = 0.0  #: at most
    faults: tuple[Fault, ...] = ()
    together: int = 0  #: the most trials that train together; 0: none do
    sticky: bool = False  #: trials stay where their models are
    lookahead: bool = False  #: workers are told ahead what comes next
    playful: bool = False  #: the search pauses, resumes and clones trials
    fixed: bool = False  #: the order of visits is fixed beforehand
    moment: float | None = None  #: events of so many seconds are taken in together; None: one by one

    @property
    def metric(self) -> str:
        return "loss" if self.valid else "train_loss"


class Stopping(Random):
    """Random search that stops some trials early."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting.trials, setting.epochs)
        self.stops = setting.stops
        self.setup({"x": 1}, seed=setting.seed, goal=Goal(setting.metric, "min"))

    def observe(self, trial, epoch, metrics):
        return [Stop(trial.id, "early")] if self.stops.get(trial.number) == epoch < self.max_epochs else []


class Playful(Stopping):
    """A search that lets trials train for an epoch at a time, and now and then has one go on with another's model."""

    MOST_CLONES = 6

    def setup(self, space, *, seed, goal):
        super().setup(space, seed=seed, goal=goal)
        self.clones = 0
        self.paused: dict[str, int] = {}

    def suggest(self, number):
        suggestion = super().suggest(number)
        return None if suggestion is None else Suggestion(suggestion.config, 1 + number % self.max_epochs)

    def added(self, trial):
        self.clones += trial.parent is not None

    def observe(self, trial, epoch, metrics):
        decisions = list(super().observe(trial, epoch, metrics))
        dice = random.Random(f"{self.seed} {trial.id} {epoch}").random()
        if dice < 0.3 and self.clones < self.MOST_CLONES and self.paused:
            return [*decisions, Clone(min(self.paused), {"x": 2}, replaces=trial.id)]
        if dice < 0.6:
            decisions.append(Train(trial.id, min(epoch + 1, self.max_epochs)))
        elif self.paused:
            decisions.append(Train(*self.paused.popitem()))
        self.paused[trial.id] = self.max_epochs
        return decisions

    def ended(self, trial, state):
        self.paused.pop(trial.id, None)
        return [Train(*self.paused.popitem())] if self.paused else []


def controller_of(setting: Setting) -> Controller:
    return Controller(
        (Playful if setting.playful else Stopping)(setting),
        POLICIES[setting.policy](),
        partitions=setting.partitions,
        valid_partitions=setting.valid,
        seed=setting.seed,
        max_live=setting.max_live,
        fixed_order=setting.fixed,
        fusion=Fusion(lambda config: None, most=setting.together) if setting.together else None,
        sticky=setting.sticky,
        lookahead=setting.lookahead,
    )


@functools.cache
def train_sums(trial: str, epoch: int, partition: int) -> dict[str, RowSum]:
    return {"train_loss": RowSum.of(number(trial, epoch, "train", partition), partition + 1)}


@functools.cache
def valid_sums(trial: str, epoch: int, partition: int) -> dict[str, RowSum]:
    return {"loss": RowSum.of(number(trial, epoch, "valid", partition), partition + 1)}


def number(*what: object) -> float:
    """Some number between 0 and 1 that depends on nothing else."""
    return zlib.crc32(repr(what).encode()) / 2**32


@dataclass
class FakeWorker:
    name: str
    partitions: tuple[int, ...] | None
    commands: deque[m.Command] = field(default_factory=deque)
    running: list[m.RunUnit] = field(default_factory=list)
    crew: list[m.RunUnit] = field(default_factory=list)  #: what is to run with what comes next
    memory: dict[str, Model] = field(default_factory=dict)
    saves_end: float = 0.0  #: when its last save will be done; saves are done in order
    alive: bool = True
    hears: bool = True  #: commands reach it
    heard: bool = True  #: its reports get through
    late: bool = False  #: they take their time, each its own
    lost: m.WorkerLost | None = None  #: what tells the controller that it is dead


class Fleet:
    """Workers with memories and commands in order, shared and durable storage, a virtual clock."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.rng = random.Random(setting.seed)
        self.clock = 0.0
        self.workers: dict[str, FakeWorker] = {}
        #: Files, by trial, version and the number of the save; whether each is durable.
        self.storage: dict[VersionRef, tuple[Model, bool]] = {}
        self.failing: set[int] = set()  #: attempts that will raise
        self.unsavable: set[str] = set()
        self.refusals = 0  #: so many partitions cannot be placed where they should
        #: Who made each attempt, and which model came out.
        self.authors: dict[int, tuple[FakeWorker, Model]] = {}
        self._names = itertools.count(1)
        self._order = itertools.count()
        self._queue: list[tuple[float, int, FakeWorker | None, Callable[[], m.Event | None]]] = []

    def start(self) -> None:
        for partitions in self.setting.workers:
            self.join(partitions)

    def join(self, partitions: tuple[int, ...] | None, delay: float = 0.0) -> None:
        worker = FakeWorker(f"w{next(self._names)}", partitions)

        def joined() -> m.Event:
            self.workers[worker.name] = worker
            return m.WorkerJoined(worker.name, "fake", partitions)

        self.later(self.clock + delay, joined)

    def later(self, when: float, happen: Callable[[], m.Event | None], worker: FakeWorker | None = None) -> None:
        """What happens in a ``worker`` may happen after its controller's end, all the rest goes with that."""
        heapq.heappush(self._queue, (when, next(self._order), worker, happen))

    def report(self, event: m.Event) -> None:
        self.later(self.clock, lambda: event)

    def receive(self, moment: float | None = None) -> list[m.Event]:
        """What happens next, and all that follows it within a moment; nothing if nothing will ever happen any more."""
        events: list[m.Event] = []
        until = 0.0
        while self._queue and (not events or (moment is not None and self._queue[0][0] <= until)):
            self.clock, _, _, happen = heapq.heappop(self._queue)
            event = happen()
            if event is not None:
                until = until if events else self.clock + (moment or 0.0)
                events.append(event)
        return events

    def say(self, worker: FakeWorker, event: m.Event) -> None:
        self.later(self.clock, lambda: self.emit(worker, event), worker)

    def emit(self, worker: FakeWorker, event: m.Event) -> m.Event | None:
        """A report of a worker, if it gets through now."""
        if worker.heard and not worker.late:
            return event
        if worker.heard:
            self.later(self.clock + self.rng.choice([0.0, 0.5, 3.0, 9.0]), lambda: event, worker)
        return None

    def send(self, command: m.Command) -> None:
        match command:
            case m.CopyVersion():
                self.later(self.clock, lambda: self.copied(command))
                return
            case m.AddWorkers():
                for _ in range(command.count):
                    self.join(None)
                return
            case m.PlacePartition():
                self.later(self.clock + self.rng.choice([0.0, 0.5, 3.0]), lambda: self.placed(command))
                return
            case m.StopUnit() | m.ReleaseWorker():
                if command.worker in self.workers:
                    self.die(self.workers[command.worker], replaced=isinstance(command, m.StopUnit))
                return
        worker = self.workers.get(command.worker)
        if worker is not None and worker.hears:
            worker.commands.append(command)
            self._go_on(worker)

    def copied(self, command: m.CopyVersion) -> m.Event:
        model, durable = self.storage.get(command.source, ((), False))
        if not durable:
            ref = command.ref
            return m.VersionLost(ref._replace(attempt=None), "not found", None, ref.attempt or 0)
        return self.stored(command.ref, model, durable=True)

    def stored(self, ref: VersionRef, model: Model, *, durable: bool) -> m.Event:
        assert ref not in self.storage, "two saves write one file"
        self.storage[ref] = model, durable
        return m.VersionSaved(ref, durable, "", 0)

    def placed(self, command: m.PlacePartition) -> m.Event | None:
        worker = self.workers.get(command.worker)
        if worker is None:
            return None
        if self.refusals:
            self.refusals -= 1
            return m.PartitionUnavailable(command.worker, command.partition, "no room")
        assert worker.partitions is not None and command.partition not in worker.partitions
        worker.partitions = (*worker.partitions, command.partition)
        return m.PartitionPlaced(command.worker, command.partition)

    def die(self, worker: FakeWorker, *, replaced: bool, alive: bool = False) -> None:
        """Take a worker for dead; if it is ``alive`` it goes on with what it was told, and with what it says."""
        worker.alive = alive
        del self.workers[worker.name]

        def lost() -> m.Event:
            worker.lost = m.WorkerLost(worker.name, "killed", replaced=replaced)
            return worker.lost

        self.later(self.clock, lost)
        if replaced:
            self.join(worker.partitions, self.rng.choice([0.0, 0.5, 3.0]))

    def give_up(self, worker: FakeWorker) -> None:
        """Take a worker for dead after a while, unless it is dead by then. It lives on."""

        def losing() -> None:
            if self.workers.get(worker.name) is worker:
                self.die(worker, replaced=True, alive=True)

        self.later(self.clock + PATIENCE, losing)

    def all_die(self, *, durable_only: bool, zombies: bool = False) -> None:
        """The end of every process, and of shared memory too when the machine is switched off.

        The controller's end may leave ``zombies``, who finish what they do. Names begin anew, so they have namesakes.
        """
        for worker in self.workers.values():
            worker.lost, worker.alive = m.WorkerLost(worker.name, "left behind"), zombies and not durable_only
        self.workers.clear()
        self._queue = [entry for entry in self._queue if entry[2] is not None]
        heapq.heapify(self._queue)
        self._names = itertools.count(1)
        if durable_only:
            self.storage = {key: stored for key, stored in self.storage.items() if stored[1]}

    # ---------------------------------------------------------------------------------------------- a worker

    def _go_on(self, worker: FakeWorker) -> None:
        while worker.commands and not worker.running:
            match worker.commands.popleft():
                case m.SaveVersion() as command:
                    self._save(worker, command)
                case command:
                    worker.crew.append(command)
                    if not command.more:
                        crew, worker.crew = worker.crew, []
                        self._set_out(worker, crew)

    def _save(self, worker: FakeWorker, command: m.SaveVersion) -> None:
        ref, earlier = command.ref, command.ref._replace(attempt=command.saved)
        model = worker.memory.get(ref.trial)
        if (model is None or len(model) != ref.version) and earlier in self.storage:
            model = self.storage[earlier][0]
        if model is None or len(model) != ref.version:
            self.say(worker, m.VersionLost(earlier, "not held", worker.name, ref.attempt or 0))
            return
        worker.saves_end = max(worker.saves_end, self.clock) + self.rng.uniform(0, self.setting.save_seconds)

        def saved() -> m.Event | None:
            if not worker.alive:
                return None
            if ref.trial in self.unsavable:
                return self.emit(worker, m.SaveFailed(ref, "unsavable", "traceback"))
            return self.emit(worker, self.stored(ref, model, durable=command.durable))

        self.later(worker.saves_end, saved, worker)

    def _set_out(self, worker: FakeWorker, crew: list[m.RunUnit]) -> None:
        """Units over the same rows, one or several. Their reports come one by one."""
        models = [(command, *found) for command in crew if (found := self._load(worker, command)) is not None]
        # A model that is being saved must not be trained meanwhile.
        started = max(self.clock, worker.saves_end)
        ended = started + sum(1.0 if self.setting.steady else self.rng.choice(UNIT_SECONDS) for _ in models)
        worker.running = [command for command, *_ in models]
        for command, model, hopped in models:
            done = partial(self._done, worker, command, model, hopped, started, ended, len(models))
            self.later(ended, done, worker)

    def _load(self, worker: FakeWorker, command: m.RunUnit) -> tuple[Model, bool] | None:
        """The model of a unit, and whether it hopped; None if it is nowhere."""
        trial, version = command.trial, command.model.version
        held = worker.memory.pop(trial, None)
        if held is not None and len(held) == version:
            return held, False
        if version == 0:
            return (), False
        if command.model in self.storage:
            return self.storage[command.model][0], True
        self.say(worker, m.VersionLost(command.model, "not found", worker.name, command.attempt))
        return None

    def _done(
        self,
        worker: FakeWorker,
        command: m.RunUnit,
        model: Model,
        hopped: bool,
        started: float,
        ended: float,
        members: int,
    ) -> m.Event | None:
        if not worker.alive:
            return None
        worker.running.remove(command)
        unit, trial, share = command.unit, command.trial, 1 / members
        where, version = (worker.name, unit, command.attempt), command.model.version
        if command.attempt in self.failing:
            event: m.Event = m.UnitFailed(*where, started, ended, "ValueError: injected", "traceback")
        elif unit.trains:
            worker.memory[trial] = (*model, (unit.epoch, unit.partition))
            self.authors[command.attempt] = worker, worker.memory[trial]
            sums = train_sums(trial, unit.epoch, unit.partition)
            event = m.UnitFinished(*where, version + 1, started, ended, hopped, sums, share=share)
        else:
            worker.memory[trial] = model
            sums = valid_sums(trial, unit.epoch, unit.partition)
            event = m.UnitFinished(*where, version, started, ended, sums=sums, share=share)
        self._go_on(worker)
        return self.emit(worker, event)


class Driver:
    """Runs one setting to its end and checks everything that must hold on the way."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.fleet = Fleet(setting)
        self.controller = controller_of(setting)
        self.messages: list[m.Message] = []
        self.boundaries: list[int] = []
        self.best: dict[str, tuple[int, float]] = {}
        self.ended: dict[str, m.TrialEnded] = {}
        self.models: dict[tuple[str, int], Model] = {}
        self.blamed: set[str] = set()
        #: The faults that struck, in order.
        self.struck: list[str] = []
        self.deleted: dict[str, Progress] = {}
        #: Files that were damaged, or went with the machine's memory.
        self.lost: set[VersionRef] = set()
        #: Versions of trials before what has just been taken in; saves that were told of before their units.
        self.versions: dict[str, int] = {}
        self.premature: set[int] = set()
        #: How the controller dies the next time that it does something.
        self.doom: Fault | None = None
        self.makespan = 0.0

    def run(self) -> Driver:
        faults = deque(sorted(self.setting.faults, key=lambda fault: fault.step))
        self.take(m.RunStarted("test", len(self.setting.workers)))
        self.fleet.start()
        for step in itertools.count():
            assert step < 3000, "livelock"
            while faults and faults[0].step <= step and not self.complete:
                self.inject(faults.popleft())
            if self.controller.finished:
                if self.complete:
                    break
                self.resume(durable_only=True)
                continue
            events = self.fleet.receive(self.setting.moment)
            if not events and self.controller.held:
                events = [m.RequestMade("proceed")]
            if not events and self.controller.missing:
                self.check_missing()
                self.fleet.join(self.controller.missing)
                continue
            assert events, "deadlock: nothing runs, and the experiment is not finished"
            self.take(*events)
            self.look_ahead()
        self.makespan = self.fleet.clock
        self.check_end()
        return self

    @property
    def happened(self) -> set[str]:
        return set(self.struck)

    @property
    def complete(self) -> bool:
        return m.Finish(complete=True) in self.messages[-1:]

    def take(self, *events: m.Event) -> None:
        """What the loop does, and a look at everything afterwards."""
        if len(events) == 1 and self.controller.refuses(events[0]):
            assert self.controller.handle(events[0]) == []
            self.tidy(events[0])
            return
        known, before = self.known()
        messages = self.controller.take(events)
        counted = {id(message) for message in messages}
        for event in events:
            if id(event) not in counted:
                self.tidy(event)
        self.follow(known, before, messages)

    def look_ahead(self) -> None:
        """What the loop does every now and then: here, as often as there is anything to tell ahead."""
        known, before = self.known()
        self.follow(known, before, self.controller.look_ahead(dict.fromkeys(self.controller.schedule.slots, math.inf)))

    def known(self) -> tuple[dict[str, Progress], dict[str, dict[int, bool]]]:
        """All trials, and what is saved of them."""
        known = {**self.controller.schedule.trials, **self.controller.schedule.parked}
        self.versions = {name: progress.version for name, progress in known.items()}
        return known, {name: durables(progress) for name, progress in known.items()}

    def follow(
        self, known: dict[str, Progress], before: dict[str, dict[int, bool]], messages: Sequence[m.Message]
    ) -> None:
        if not messages:
            return
        for message in messages:
            match message:
                case m.UnitFinished():
                    self.versions[message.trial] = message.version
                case m.VersionSaved(ref=ref) if ref.version > self.versions[ref.trial]:
                    self.premature.add(ref.attempt)
                case m.VersionSaved(ref=ref):
                    saved = before[ref.trial]
                    saved[ref.version] = message.durable or saved.get(ref.version, False)
        doom, self.doom = self.doom, None
        if doom is not None and doom.kind == "unwritten":
            self.fall(doom)
            return
        self.messages += messages
        self.boundaries.append(len(self.messages))
        self.check_taken(known, before, messages)
        effects = [message for message in messages if isinstance(message, m.Command)]
        if doom is not None:
            effects = effects[: doom.pick % (len(effects) + 1)]
        for command in effects:
            if isinstance(command, m.DropVersion):
                self.fleet.storage.pop(command.ref, None)
            elif not isinstance(command, m.Finish):
                self.fleet.send(command)
        validate(self.controller.schedule)
        if not self.controller.draining and not self.controller.held:
            check_nobody_waits(self.controller.schedule, self.setting.policy)
        self.check_kept()
        if doom is not None:
            self.fall(doom)
        else:
            self.check_references()

    def tidy(self, event: m.Event) -> None:
        """What the loop does with the file of a save that comes too late."""
        if isinstance(event, m.VersionSaved) and not self.controller.schedule.refers(event.ref):
            self.fleet.storage.pop(event.ref, None)

    def replaced(self, drop: m.DropVersion) -> bool:
        """Whether another file is that version now."""
        progress = self.controller.schedule.find(drop.trial)
        saved = progress.saved.get(drop.ref.version)
        return saved is not None and saved.attempt != drop.ref.attempt

    def fall(self, doom: Fault) -> None:
        """The controller dies in the middle of a step."""
        if not self.complete:
            self.resume(durable_only=doom.pick % 3 == 0, zombies=doom.pick % 2 == 0)

    def resume(self, *, durable_only: bool, zombies: bool = False) -> None:
        """A new controller takes over from the journal, with new workers."""
        self.fleet.all_die(durable_only=durable_only, zombies=zombies)
        self.controller = controller_of(self.setting)
        self.controller.restore(self.messages)
        needed = set(self.controller.schedule.files())
        self.fleet.storage = {key: stored for key, stored in self.fleet.storage.items() if key in needed}
        missing = [
            m.VersionLost(VersionRef(name, version, saved.attempt), "missing")
            for name, progress in self.controller.schedule.trials.items()
            for version, saved in progress.saved.items()
            if (name, version, saved.attempt) not in self.fleet.storage
        ]
        self.lost |= {event.ref for event in missing}
        self.take(m.RunStarted("test", len(self.setting.workers)), *missing)
        if not self.complete:
            self.fleet.start()

    # -------------------------------------------------------------------------------------------- faults

    def inject(self, fault: Fault) -> None:
        fleet, happens = self.fleet, True
        workers = list(fleet.workers.values())
        match fault.kind:
            case "lose" if workers:
                fleet.die(workers[fault.pick % len(workers)], replaced=True)
            case "leave" if workers:
                worker = workers[fault.pick % len(workers)]
                slots = self.controller.schedule.slots
                sticky = [other for other in workers if other.name in slots and not slots[other.name].retired]
                fleet.die(worker, replaced=not [other for other in sticky if other is not worker])
            case "refuse":
                fleet.refusals += 1 + fault.pick % 3
            case "join":
                fleet.join(None if fault.pick % 2 else (fault.pick % self.setting.partitions,))
            case "raise" if any(worker.running for worker in workers):
                busy = [command for worker in workers for command in worker.running]
                command = busy[fault.pick % len(busy)]
                fleet.failing.add(command.attempt)
                self.blamed.add(command.trial)
            case "unsavable" if self.controller.schedule.trials:
                trial = pick(sorted(self.controller.schedule.trials), fault)
                fleet.unsavable.add(trial)
                self.blamed.add(trial)
            case "vanish" if fleet.storage:
                key = pick(sorted(fleet.storage), fault)
                del fleet.storage[key]
                self.lost.add(key)
                fleet.report(m.VersionLost(key, "vanished"))
            case "rot" if fleet.storage:
                key = pick(sorted(fleet.storage), fault)
                del fleet.storage[key]
                self.lost.add(key)
            case "forget" if workers:
                workers[fault.pick % len(workers)].memory.clear()
            case "zombie" if workers:
                fleet.die(pick(workers, fault), replaced=True, alive=True)
            case "mute" if workers:
                worker = pick(workers, fault)
                worker.heard = False
                fleet.give_up(worker)
            case "deaf" if workers:
                worker = pick(workers, fault)
                worker.hears = False
                worker.commands.clear()
                fleet.give_up(worker)
            case "late" if workers:
                pick(workers, fault).late = True
            case "repeat":
                past = [message for message in self.messages if self.repeatable(message)]
                if past:
                    event = pick(past, fault)
                    # That a trial cannot be saved is as true the second time.
                    assert isinstance(event, m.SaveFailed) or self.controller.refuses(event)
                    self.take(event)
            case request if request in REQUESTS and not self.controller.finished:
                self.take(self.request(fault))
            case "drain" if not self.controller.finished:
                self.take(m.RequestMade("drain"))
            case "unwritten" | "partial":
                self.doom = fault
            case "crash":
                assert self.restored() == state_of(self.controller)
                self.resume(durable_only=False, zombies=fault.pick % 2 == 0)
            case "cut":
                self.resume(durable_only=True)
            case _:
                happens = False
        if happens:
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
        arguments: dict[str, object] = {
            "stop": {"trial": trial, "now": pick % 3 == 0},
            "resume": {"trial": trial, **({"epochs": 1 + pick % 5} if pick % 2 else {})},
            "delete": {"trial": trial, "now": pick % 3 == 0},
            "clone": {"trial": trial, "changes": {"x": pick}, "warm": pick % 4 > 0},
            "add": {"config": {"x": pick}},
            "prioritise": {"trial": trial, "level": pick % 3},
            "workers": {"count": 1 + pick % 4},
            "extend": {"trials": pick % 2, "epochs": 1 - pick % 2},
        }.get(fault.kind, {})
        return m.RequestMade(fault.kind, arguments, "somebody", len(self.messages))

    # -------------------------------------------------------------------------------------------- checks

    def check_taken(
        self, known: dict[str, Progress], before: dict[str, dict[int, bool]], messages: Sequence[m.Message]
    ) -> None:
        """What has just been journaled, against what was known and saved before."""
        gone = {message.trial for message in messages if isinstance(message, m.TrialDeleted)}
        ending = {message.trial for message in messages if isinstance(message, m.TrialEnded | m.TrialPaused)}
        self.deleted |= {trial: known[trial] for trial in gone}
        for index, message in enumerate(messages):
            match message:
                case m.VersionSaved(ref=ref) if ref.attempt not in self.premature:
                    saved = before[ref.trial]
                    saved[ref.version] = message.durable or saved.get(ref.version, False)
                case m.UnitFinished() if message.unit.trains:
                    author, model = self.fleet.authors[message.attempt]
                    lost = author.lost is not None and not any(other is author.lost for other in messages[index:])
                    assert author.name == message.worker and not lost, "a zombie's report counts"
                    self.check_model(known[message.trial], message.version, model)
                case m.EpochEnded():
                    self.check_epoch(message)
                case m.TrialEnded():
                    self.ended[message.trial] = message
                case m.DropVersion(ref=ref) if ref.attempt in self.premature:
                    pass
                case m.DropVersion() if message.trial not in gone and not self.replaced(message):
                    self.check_drop(message, before[message.trial], ending=message.trial in ending)

    def check_model(self, progress: Progress, version: int, model: Model) -> None:
        """A version is the same whenever it is made, and a partition comes once in an epoch."""
        assert len(model) == version
        trial = progress.trial.id
        if progress.trial.parent is not None:
            base = progress.trial.parent.version
            owner = self.owner(progress, base)  # its parent may itself have got it from another one
            assert model[:base] == self.models[owner, base], "not its parent's model"
        for made in range(1, version):
            self.models.setdefault((trial, made), model[:made])
        assert self.models.setdefault((trial, version), model) == model, "re-run in another order"
        assert len(set(model)) == len(model)
        assert [epoch for epoch, _ in model] == [index // self.setting.partitions + 1 for index in range(version)]

    def check_missing(self) -> None:
        """Who waits, waits for partitions that are nowhere, and the journal says for which."""
        told = [message.partitions for message in self.messages if isinstance(message, m.PartitionsMissing)]
        assert told[-1] == self.controller.missing
        assert not any(self.controller.schedule.replicas(partition) for partition in self.controller.missing)

    def check_epoch(self, message: m.EpochEnded) -> None:
        """Metrics do not depend on who worked, in which order, and how often it went wrong."""
        trial, epoch = message.trial, message.epoch
        progress = self.controller.schedule.find(trial)
        first = (epoch - 1) * self.setting.partitions
        visits = enumerate(progress.visits[first : message.version], first + 1)
        pieces = [train_sums(self.owner(progress, version), epoch, partition) for version, partition in visits]
        pieces += [valid_sums(trial, epoch, partition) for partition in range(self.setting.valid)]
        assert message.metrics == means(add(pieces))
        assert message.version == epoch * self.setting.partitions
        value = message.metrics[self.setting.metric]
        assert message.best == (trial not in self.best or value < self.best[trial][1])
        if message.best:
            self.best[trial] = message.version, value

    def owner(self, progress: Progress, version: int) -> str:
        """The trial whose unit made a version."""
        while version <= progress.base:
            message = next(x for x in self.messages if isinstance(x, m.TrialAdded) and x.trial == progress.trial.id)
            progress = self.controller.schedule.find(message.parent) or self.deleted[message.parent]
        return progress.trial.id

    def check_drop(self, drop: m.DropVersion, saved: dict[int, bool], *, ending: bool) -> None:
        durable = [version for version, is_durable in saved.items() if is_durable]
        best = self.best.get(drop.trial, (None, None))[0]
        if ending:
            assert not saved[drop.ref.version] or drop.ref.version not in (max(durable), best)
            return
        assert drop.ref.version not in (max(saved), max(durable, default=None), best)
        assert drop.ref.version != self.controller.schedule.trials[drop.trial].version

    def check_references(self) -> None:
        """Whatever a trial that lives, is paused or has ended refers to is there; nothing else is, but what comes."""
        schedule = self.controller.schedule
        for key in schedule.files():
            assert key in self.fleet.storage or key in self.lost, f"{key} is gone"
        for progress in [*schedule.trials.values(), *schedule.parked.values()]:
            trial = progress.trial.id
            lost = {version for name, version, _ in self.lost if name == trial}
            assert set(progress.lends.values()) <= set(progress.saved) | lost
            if progress.state in (TrialState.PAUSED, TrialState.COMPLETED, TrialState.STOPPED):
                best = progress.best[0] if progress.best else progress.version
                assert {version for version in (best, progress.version) if version} <= set(progress.saved) | lost
        # What nobody hears of stays until a run begins or ends.
        for key in set(self.fleet.storage) - set(schedule.files()) if not self.happened & UNHEARD else ():
            assert schedule.refers(key), f"{key} is never deleted"

    def check_kept(self) -> None:
        for progress in self.controller.schedule.trials.values():
            saved = durables(progress)
            durable = [version for version, is_durable in saved.items() if is_durable]
            best = progress.best[0] if progress.best else None
            needed = {max(saved, default=None), max(durable, default=None), best, *progress.lends.values()}
            assert set(saved) <= needed, "never freed"

    def check_end(self) -> None:
        setting = self.setting
        validate_history(self.messages, setting.partitions)
        visits = Attempts(setting.partitions).read(self.messages).visits
        for progress in self.controller.schedule.parked.values():
            assert progress.visits == visits[progress.trial.id]
        assert not self.controller.schedule.trials
        if setting.playful or self.happened & set(REQUESTS):
            for progress in self.controller.schedule.parked.values():
                self.check_parked(progress)
            return
        added = [message for message in self.messages if isinstance(message, m.TrialAdded)]
        assert [message.number for message in added] == list(range(setting.trials))
        for number, message in enumerate(added):
            self.check_trial(message.trial, number)

    def check_parked(self, progress: Progress) -> None:
        trial = progress.trial.id
        assert not progress.lends
        ended = [x.epoch for x in self.messages if isinstance(x, m.EpochEnded) if x.trial == trial]
        if progress.state is TrialState.FAILED:
            return
        assert ended == list(range(progress.base // self.setting.partitions + 1, progress.epochs_ended + 1))
        if progress.state in (TrialState.COMPLETED, TrialState.PAUSED):
            assert progress.epochs_ended == progress.trial.epochs
        if progress.version and not self.happened & DAMAGE:
            model, durable = self.stored(trial, progress.version)
            assert durable and model == self.models.get((trial, progress.version), model)
            assert [partition for _, partition in model] == progress.visits

    def check_trial(self, trial: str, number: int) -> None:
        setting, end = self.setting, self.ended[trial]
        if end.state is TrialState.FAILED:
            poisoned = "workers in a row were lost" in end.reason and self.happened & LOSSES
            assert trial in self.blamed or poisoned, end
            return
        stop = setting.stops.get(number, setting.epochs)
        assert end.state is (TrialState.STOPPED if stop < setting.epochs else TrialState.COMPLETED)
        last = stop * setting.partitions
        model = self.models[trial, last]
        assert sorted(model) == list(itertools.product(range(1, stop + 1), range(setting.partitions)))
        ended = [
            message.epoch for message in self.messages if isinstance(message, m.EpochEnded) if message.trial == trial
        ]
        assert ended == list(range(1, stop + 1))
        if not self.happened & DAMAGE:
            assert self.stored(trial, last) == (model, True)
            best = self.best[trial][0]
            assert self.stored(trial, best) == (self.models[trial, best], True)
        if not self.happened:
            assert {version for name, version, _ in self.fleet.storage if name == trial} == {last, self.best[trial][0]}

    def stored(self, trial: str, version: int) -> tuple[Model, bool]:
        """The file that is a version."""
        saved = self.controller.schedule.find(trial).saved[version]
        return self.fleet.storage[VersionRef(trial, version, saved.attempt)]


def durables(progress: Progress) -> dict[int, bool]:
    """Saved versions, and whether each is durable."""
    return {version: saved.durable for version, saved in progress.saved.items()}


def pick(options: Sequence, fault: Fault):
    return options[fault.pick % len(options)]


def covered(workers: Sequence[tuple[int, ...] | None], partitions: int) -> bool:
    """Whether every partition can be read by some worker."""
    return any(w is None for w in workers) or set(range(partitions)) <= set().union(*filter(None, workers))


def check_nobody_waits(schedule: Schedule, policy: str) -> None:
    """No worker is idle while there is something that it could do, unless its policy means it to wait for an event."""
    coming = len(schedule.idle) < len(schedule.slots) or any(
        progress.version > 0 and progress.version not in progress.saved for progress in schedule.ready.values()
    )
    may_wait = policy not in WORK_CONSERVING and coming
    for slot in schedule.idle.values():
        for progress in schedule.ready.values() if not may_wait else ():
            assert not list(schedule.options(progress, slot)), f"{slot.worker} could train {progress.trial.id}"
        for progress in schedule.awaiting.values():
            assert not progress.loadable_by(slot.worker), f"{slot.worker} could evaluate {progress.trial.id}"


def through_json(messages: Sequence[m.Message]) -> list[m.Message]:
    """Messages as they come back from a journal."""
    encoded = json.loads(json.dumps([m.encode(message) for message in messages]))
    return [m.decode(kind, body) for kind, body in encoded]


def state_of(controller: Controller) -> dict[str, object]:
    """All that a controller knows and that its journal must give back."""
    schedule = controller.schedule
    return {
        "trials": schedule.trials,
        "parked": schedule.parked,
        "urgent": schedule.urgent,
        "slots": schedule.slots,
        "ready": list(schedule.ready),
        "awaiting": list(schedule.awaiting),
        "idle": list(schedule.idle),
        "owed": schedule.owed,
        "replicas": [schedule.replicas(partition) for partition in range(schedule.partitions)],
        "measured": (schedule.seconds, schedule.measured),
        "flags": (controller.finished, controller.draining, controller.held, controller.elapsed),
        "next": (controller._next_number, controller._next_attempt, controller._suggested, controller._pointed),
        "open": (controller._wanted, controller._requests),
        "places": (list(controller._coming), controller._refused, controller.missing),
        "trouble": (controller._stopped, controller._in_a_row, controller._hopeless),
    }
