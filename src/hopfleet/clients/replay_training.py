"""The training of a replay: courses of trials, each run by one worker in the recorded order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hopfleet.backends.base import Backend
from hopfleet.domain.messages import (
    CopyVersion,
    DropVersion,
    EpochEnded,
    Event,
    Message,
    RunUnit,
    SaveFailed,
    SaveVersion,
    TrialAdded,
    TrialRolledBack,
    UnitFailed,
    UnitFinished,
    VersionLost,
    VersionSaved,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Parent, Trial
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.monitor.wording import plural
from hopfleet.runtime.driver import Driver, Effects
from hopfleet.runtime.loop import WAIT_SECONDS
from hopfleet.store.versions.local import Versions

MAX_LOSSES = 3
"""Lost workers after which a trial fails."""

LOSS = "train_loss"
"""The metric that is compared unit by unit, to find the unit where a difference begins."""


@dataclass(slots=True)
class Course:
    """One trial: the visits that count, the wanted versions, and its progress."""

    trial: Trial
    #: Partitions in the order visited, starting with inherited visits.
    visits: list[int]
    #: The training loss of each unit, by the version that the unit produced.
    losses: dict[int, RowSum | None] = field(default_factory=dict)
    #: The strategy and the number of devices of each unit that had a team, by the version that the unit produced.
    shapes: dict[int, TeamShape] = field(default_factory=dict)
    #: The goal's metric at the end of each epoch.
    metrics: dict[int, float] = field(default_factory=dict)
    #: Versions to save, for comparison or as the start of clones; ``lent`` are the latter.
    wanted: set[int] = field(default_factory=set)
    lent: set[int] = field(default_factory=set)
    #: SHA-256 of the replayed models, by version.
    found: dict[int, str] = field(default_factory=dict)
    #: The saved versions by number.
    saves: dict[int, VersionRef] = field(default_factory=dict)
    #: The first version whose unit has a different training loss.
    differs: int | None = None
    version: int = 0
    #: Whether the last version is being saved for a worker of another shape, and the file to go on with.
    moving: bool = False
    carried: VersionRef | None = None
    worker: str | None = None
    lost: int = 0
    error: str = ""

    @property
    def base(self) -> int:
        return 0 if self.trial.parent is None else self.trial.parent.version

    @property
    def end(self) -> int:
        return max(self.wanted)

    @property
    def next_shape(self) -> TeamShape:
        """The strategy and the number of devices of the next unit."""
        return self.shapes.get(max(self.version, self.base) + 1, SINGLE)

    @property
    def done(self) -> bool:
        return bool(self.error) or self.wanted <= self.found.keys()

    def fail(self, error: str) -> None:
        self.error = self.error or error


def recorded_courses(messages: Iterable[Message], metric: str) -> dict[str, Course]:
    """Return all trials of the journal with the visits that count, leaving out rolled-back ones.

    ``metric`` is the metric of the goal.
    """
    courses: dict[str, Course] = {}
    for message in messages:
        match message:
            case TrialAdded():
                parent = None
                if message.visits:
                    parent = Parent(message.parent, len(message.visits), courses[message.parent].trial.config)
                names = (message.trial, message.number, message.config, message.seed, message.epochs)
                trial = Trial(*names, parent, message.origin, message.planned)
                course = courses[message.trial] = Course(trial, list(message.visits))
                if parent is not None:
                    course.metrics = dict(courses[message.parent].metrics)
            case EpochEnded() if metric in message.metrics:
                courses[message.trial].metrics[message.epoch] = message.metrics[metric]
            case TrialRolledBack():
                del courses[message.trial].visits[message.version :]
            case UnitFinished() if message.unit.trains:
                courses[message.trial].visits.append(message.unit.partition)
                courses[message.trial].losses[message.version] = message.sums.get(LOSS)
                courses[message.trial].shapes[message.version] = (
                    SINGLE if message.placement is None else message.placement.shape
                )
            case _:
                pass
    return courses


def train_again(
    courses: dict[str, Course],
    backend: Backend,
    versions: Versions,
    partitions: int,
    tell: Callable[[str], None],
) -> None:
    """Train all courses on the workers of a backend. ``tell`` hears of the progress."""
    controller = ReplayController(courses, partitions)
    effects: Effects = {
        CopyVersion: lambda command: versions.copy(command.source, command.ref, command.digest),
        DropVersion: lambda command: versions.drop(command.ref),
    }
    driver = Driver(controller, backend, effects=effects)
    total = sum(course.end - course.base for course in courses.values())
    while not controller.finished:
        driver.step(backend.receive(WAIT_SECONDS))
        tell(f"{controller.units} of {plural(total, 'unit')}")


class ReplayController:
    """The controller of a replay: each course stays on one worker while units have the same strategy and devices."""

    def __init__(self, courses: dict[str, Course], partitions: int) -> None:
        self._courses = courses
        self._partitions = partitions
        # The longest course starts first, so that it does not end last.
        self._waiting = deque(sorted(courses.values(), key=lambda course: course.base - course.end))
        self._idle: list[str] = []
        #: The strategy and the number of devices of each worker.
        self._shapes: dict[str, TeamShape] = {}
        #: Attempt numbers of running units, by worker.
        self._running: dict[str, int] = {}
        self._attempts = 0
        #: Commands that follow from the events of the current step.
        self._commands: list[Message] = []
        self.units = 0  #: units done

    @property
    def finished(self) -> bool:
        return all(course.done for course in self._courses.values())

    @property
    def schedule(self) -> ReplayController:
        return self

    def find(self, trial: str) -> Course | None:
        return self._courses.get(trial)

    def take(self, events: Iterable[Event], now: float = 0.0) -> list[Message]:
        """Take in events; return the commands that follow, which do not depend on the time."""
        self._commands = []
        for event in events:
            self._hear(event)
        self._assign()
        return self._commands

    def _hear(self, event: Event) -> None:
        match event:
            case WorkerJoined():
                self._idle.append(event.worker)
                self._shapes[event.worker] = event.placement.shape
            case WorkerLost():
                self._lose(event)
            case UnitFinished() | UnitFailed():
                self._end_unit(event)
            case VersionSaved():
                self._note_saved(self._courses[event.trial], event)
            case SaveFailed():
                self._courses[event.trial].fail(event.error)
            case VersionLost():  # the unit could not start: the worker has dropped the model
                if self._running.pop(event.worker or "", None) is not None:
                    self._idle.append(event.worker or "")
                    self._restart(self._courses[event.trial], event.reason)
            case _:
                pass

    def _note_saved(self, course: Course, saved: VersionSaved) -> None:
        version = saved.ref.version
        if version in course.wanted:
            course.found[version] = saved.digest
        course.saves[version] = saved.ref
        if course.moving and version == course.version:
            course.moving, course.worker, course.carried = False, None, saved.ref
            self._waiting.append(course)
        elif version not in course.lent:
            self._commands.append(DropVersion(saved.ref))

    def _assign(self) -> None:
        for course in list(self._waiting):
            parent = course.trial.parent
            lender = None if parent is None else self._courses[parent.trial]
            if lender is not None and lender.error:
                self._waiting.remove(course)
                course.fail(f"its parent {lender.trial.id} could not be replayed: {lender.error}")
            elif lender is None or course.base in lender.found:
                suitable = (worker for worker in self._idle if self._shapes[worker] == course.next_shape)
                if (worker := next(suitable, None)) is not None:
                    self._waiting.remove(course)
                    self._idle.remove(worker)
                    self._begin(course, worker)

    def _begin(self, course: Course, worker: str) -> None:
        course.worker = worker
        if course.carried is not None:
            self._go_on(course, worker)
            return
        course.version = course.base
        if course.trial.parent is not None:
            lender = self._courses[course.trial.parent.trial]
            digest, number = lender.found[course.base], self._number()
            source, ref = lender.saves[course.base], VersionRef(course.trial.id, course.base, number)
            self._commands.append(CopyVersion(source, ref, digest))
            course.found[course.base], course.saves[course.base] = digest, ref
        self._go_on(course, worker)

    def _number(self) -> int:
        self._attempts += 1
        return self._attempts

    def _go_on(self, course: Course, worker: str) -> None:
        """Send the course's next unit, or release the worker at its end, or where the next unit needs another one."""
        if course.error or course.version == course.end:
            self._idle.append(worker)
            return
        if self._shapes[worker] != course.next_shape:
            course.moving = True
            self._idle.append(worker)
            return
        self._running[worker] = self._number()
        epochs, units = divmod(course.version, self._partitions)
        last = (course.version + 1) % self._partitions == 0
        unit, version = Unit(course.trial.id, epochs + 1, course.visits[course.version]), course.version
        model = course.saves.get(version, VersionRef(course.trial.id, version, None))
        digest = course.found.get(version, "")
        metric = None if units else course.metrics.get(epochs)
        self._commands.append(RunUnit(worker, unit, self._attempts, model, last, digest, metric=metric))

    def _end_unit(self, unit: UnitFinished | UnitFailed) -> None:
        if self._running.get(unit.worker) != unit.attempt:
            return
        del self._running[unit.worker]
        course = self._courses[unit.trial]
        if isinstance(unit, UnitFailed):
            course.fail(unit.error)
        else:
            self.units += 1
            course.version = unit.version
            if course.differs is None and course.losses.get(unit.version) != unit.sums.get(LOSS):
                course.differs = unit.version
            if course.carried is not None:
                if course.carried.version not in course.lent:
                    self._commands.append(DropVersion(course.carried))
                course.carried = None
            moves = unit.version != course.end and course.next_shape != self._shapes[unit.worker]
            if moves or (unit.version in course.wanted and unit.version not in course.found):
                ref = VersionRef(unit.trial, unit.version, self._number())
                self._commands.append(SaveVersion(unit.worker, ref, True))
        self._go_on(course, unit.worker)

    def _lose(self, lost: WorkerLost) -> None:
        """Restart the unfinished courses of a lost worker on other workers."""
        self._running.pop(lost.worker, None)
        self._idle = [worker for worker in self._idle if worker != lost.worker]
        for course in self._courses.values():
            if course.worker == lost.worker and not course.done:
                self._restart(course, lost.reason)

    def _restart(self, course: Course, reason: str) -> None:
        """Begin a course anew, on any worker, unless it has been lost too often."""
        self.units -= course.version - course.base
        course.worker, course.version, course.carried, course.moving = None, course.base, None, False
        course.lost += 1
        if course.lost == MAX_LOSSES:
            course.fail(f"its model was lost {course.lost} times while it trained; the last time: {reason}")
        else:
            self._waiting.append(course)
