"""Replay: training again in the order that the journal tells, to see whether the same bits come out.

Nothing in a trial's arithmetic depends on workers, times or neighbours; all that it depends on is in the run folder:
configuration, seed, data, and the order of its visits. So a replay decides nothing. It takes the visits that count,
trial by trial, hands them to any workers in that order, and compares the SHA-256 of the models with those that the
journal has. A clone starts with the version of its parent that it started with then. Nothing is evaluated, since no
model depends on that, and nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hopfleet.backends import BACKENDS
from hopfleet.backends.base import Backend
from hopfleet.data import Dataset, open_dataset
from hopfleet.domain.messages import (
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
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Parent, Trial, TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import UsageError
from hopfleet.frameworks.base import Task
from hopfleet.monitor.wording import plural
from hopfleet.runs.results import Results, load
from hopfleet.runs.verify import find_data
from hopfleet.runtime.loop import WAIT_SECONDS
from hopfleet.search.base import at_least_one
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import has_journal, open_journal
from hopfleet.store.versions.local import Versions
from hopfleet.support import registry
from hopfleet.support.machine import choose_workers, this_machine
from hopfleet.worker.spec import WorkerSpec

MAX_LOSSES = 3
"""After so many lost workers a trial is given up."""

LOSS = "train_loss"
"""What is compared unit by unit, to tell where a difference begins."""

Verdict = Literal["equal", "different", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Compared:
    """One version of a model: its SHA-256 in the journal, and the one that came out now."""

    version: int
    which: str  #: "last", "best" or "last and best"
    expected: str
    found: str

    @property
    def equal(self) -> bool:
        return self.expected == self.found


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of one trial."""

    trial: str
    verdict: Verdict
    units: int = 0
    versions: tuple[Compared, ...] = ()
    reason: str = ""  #: where a difference begins, or why nothing could be compared


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of all trials. ``ok`` if no model came out otherwise; those skipped count neither way."""

    name: str
    trials: list[Replayed]
    notes: list[str]

    @property
    def ok(self) -> bool:
        return all(trial.verdict in ("equal", "skipped") for trial in self.trials)


def replay(
    name: str | os.PathLike[str] | Results,
    *,
    task: Task | None = None,
    trials: Sequence[str] = (),
    workers: int | str = "auto",
    backend: Backend | str = "local",
    train: Any = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Replay:
    """Train the trials of an experiment again, all or those named, and compare the models bit for bit.

    ``task`` and ``train`` take the place of what the run folder names, where that cannot be imported or has moved.
    Workers may be as many as you like, on any backend. ``tell`` hears how far it has come.
    """
    results = name if isinstance(name, Results) else load(name)
    if results.definition.get("fuse") == "fast":
        raise UsageError(
            f"{results.name}: was trained with fuse='fast', where the last bits depend on who trained together; only "
            "experiments with fuse='exact' or 'off' can be replayed"
        )
    plan = _Plan(results.refresh(), trials)
    data, notes = _data(results, train)
    if plan.courses:
        with _temporary(results.folder) as place:
            _rehearse(plan, place, results, results.find_task(task), data, workers, _backend(backend), tell)
    return Replay(results.name, plan.outcome(), notes)


def _data(results: Results, train: Any) -> tuple[Dataset, list[str]]:
    told = results.definition["train"]
    if train is None:
        data = find_data(results.folder, "train")
    else:
        data = train if isinstance(train, Dataset) else open_dataset(train)
    if len(data) != told["partitions"]:
        raise UsageError(f"train={data.url!r}: has {len(data)} partitions; the experiment had {told['partitions']}")
    same = data.fingerprint == told["fingerprint"]
    return data, [] if same else [f"{data.url}: is not the data of the experiment; its fingerprint differs"]


def _backend(backend: Backend | str) -> Backend:
    if not isinstance(backend, str):
        return backend
    known = [name for name in registry.names("backend", BACKENDS) if name != "simulated"]
    if backend not in known:
        raise UsageError(f"backend={backend!r}: must be one that trains: {', '.join(known)}")
    return registry.find("backend", backend, BACKENDS)()


@contextlib.contextmanager
def _temporary(folder: RunFolder) -> Iterator[RunFolder]:
    """A run folder that goes away, on the disk of the original where that can be written to."""
    parent = folder.path.parent if os.access(folder.path.parent, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=".replay-", dir=parent) as path:
        place = RunFolder(Path(path))
        for each in (place.checkpoints, place.logs):
            each.mkdir(mode=0o700)
        yield place


def _rehearse(
    plan: _Plan,
    place: RunFolder,
    results: Results,
    task: Task,
    data: Dataset,
    workers: int | str,
    backend: Backend,
    tell: Callable[[str], None],
) -> None:
    definition = results.definition
    found, devices = task.framework.devices()
    device = found if definition["device"] == "auto" else definition["device"]
    count = len(plan.courses)
    if workers == "auto":
        chosen, _ = choose_workers(
            this_machine(), device=device, devices=devices, threads=definition["threads"], trials=count
        )
    else:
        chosen = min(at_least_one("workers", workers), count)
    spec = WorkerSpec(
        task=task,
        train=data,
        valid=None,
        checkpoints=place.checkpoints,
        logs=place.logs,
        seed=definition["seed"],
        device=device,
        threads=definition["threads"],
        batch_size=definition["batch_size"],
        drop_last=definition["drop_last"],
    )
    try:
        backend.start(spec, chosen)
        _Rehearsal(plan.courses, backend, Versions(place.checkpoints), len(data), tell).run()
        backend.close()
    except BaseException:
        backend.close(kill=True)
        raise


# ---------------------------------------------------------------------------------------------- what is to be done


@dataclass(slots=True)
class _Course:
    """One trial: the visits that count, the versions to be made, and how far it is."""

    trial: Trial
    #: Partitions in the order visited, those of its parent first.
    visits: list[int]
    #: The training loss of each unit, by the version that it made.
    losses: dict[int, RowSum | None] = field(default_factory=dict)
    #: Versions to be saved: to be compared, and to be lent to clones.
    wanted: set[int] = field(default_factory=set)
    lent: set[int] = field(default_factory=set)
    #: SHA-256 of what came out, by version.
    found: dict[int, str] = field(default_factory=dict)
    #: The saves that wrote them.
    saves: dict[int, VersionRef] = field(default_factory=dict)
    #: The first version whose unit had another training loss.
    differs: int | None = None
    version: int = 0
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
    def done(self) -> bool:
        return bool(self.error) or self.wanted <= self.found.keys()

    def fail(self, error: str) -> None:
        self.error = self.error or error


def _courses(messages: Iterable[Message]) -> dict[str, _Course]:
    """All trials that there ever were, with the visits that count. Rolled back ones do not."""
    courses: dict[str, _Course] = {}
    for message in messages:
        match message:
            case TrialAdded():
                parent = None
                if message.visits:
                    parent = Parent(message.parent, len(message.visits), courses[message.parent].trial.config)
                names = (message.trial, message.number, message.config, message.seed, message.epochs)
                courses[message.trial] = _Course(Trial(*names, parent, message.origin), list(message.visits))
            case TrialRolledBack():
                del courses[message.trial].visits[message.version :]
            case UnitFinished() if message.unit.trains:
                courses[message.trial].visits.append(message.unit.partition)
                courses[message.trial].losses[message.version] = message.sums.get(LOSS)
            case _:
                pass
    return courses


class _Plan:
    """Which trials are trained again, and how far: to the last version that is to be compared or lent."""

    def __init__(self, results: Results, chosen: Sequence[str]) -> None:
        self._history = results.history
        every: dict[str, _Course] = {}
        if has_journal(results.folder):
            with contextlib.closing(open_journal(results.folder)) as journal:
                every = _courses(message for _, _, message in journal.read())
        for name in chosen:
            if name not in every:
                results[name]  # raises that there is none
        self._names = list(dict.fromkeys(chosen)) or list(every)
        #: Those to be trained, ancestors of those to be compared included.
        self.courses: dict[str, _Course] = {}
        for name in self._names:
            if not self._why_not(name):
                self._want(every, name, set(self._history.trials[name].saved))

    def _why_not(self, name: str) -> str:
        """Why a trial is not replayed, or nothing."""
        trial = self._history.trials.get(name)
        if trial is None:
            return "was deleted"
        if trial.state is TrialState.FAILED:
            return "failed"
        return "" if trial.saved else "has no saved model"

    def _want(self, every: dict[str, _Course], name: str, versions: set[int]) -> None:
        course = self.courses[name] = every[name]
        course.wanted |= versions
        parent = course.trial.parent
        if parent is not None:
            every[parent.trial].lent.add(parent.version)
            self._want(every, parent.trial, {parent.version})

    def outcome(self) -> list[Replayed]:
        return [self._outcome(name) for name in self._names]

    def _outcome(self, name: str) -> Replayed:
        if reason := self._why_not(name):
            return Replayed(name, "skipped", reason=reason)
        course = self.courses[name]
        units = course.version - course.base
        if course.error:
            return Replayed(name, "failed", units, reason=course.error)
        compared = tuple(self._compared(name, course))
        if all(each.equal for each in compared):
            return Replayed(name, "equal", units, compared)
        return Replayed(name, "different", units, compared, self._beginning(course))

    def _compared(self, name: str, course: _Course) -> Iterator[Compared]:
        trial = self._history.trials[name]
        last, best = max(trial.saved), trial.best.version if trial.best is not None else None
        for version, saved in sorted(trial.saved.items()):
            which = [word for word, number in (("last", last), ("best", best)) if number == version]
            yield Compared(version, " and ".join(which), saved.digest, course.found[version])

    def _beginning(self, course: _Course) -> str:
        if course.differs is None:
            return "no training loss differs, the models do"
        partitions, made = self._history.partitions, course.differs
        epoch, partition = (made - 1) // partitions + 1, course.visits[made - 1]
        return f"the training loss differs from epoch {epoch}, partition {partition} on"


# ------------------------------------------------------------------------------------------------------- doing it


class _Rehearsal:
    """Gives each course to a worker that has none, from its beginning to its end."""

    def __init__(
        self,
        courses: dict[str, _Course],
        backend: Backend,
        versions: Versions,
        partitions: int,
        tell: Callable[[str], None],
    ) -> None:
        self._courses = courses
        self._backend = backend
        self._versions = versions
        self._partitions = partitions
        self._tell = tell
        # The longest first, so that the last worker is not left with it.
        self._waiting = deque(sorted(courses.values(), key=lambda course: course.base - course.end))
        self._idle: list[str] = []
        #: Workers that run a unit, and the number of the attempt.
        self._running: dict[str, int] = {}
        self._units = 0
        self._attempts = 0

    def run(self) -> None:
        total = sum(course.end - course.base for course in self._courses.values())
        while not all(course.done for course in self._courses.values()):
            for event in self._backend.receive(WAIT_SECONDS):
                self._hear(event)
            self._assign()
            self._tell(f"{self._units} of {plural(total, 'unit')}")

    def _hear(self, event: Event) -> None:
        match event:
            case WorkerJoined():
                self._idle.append(event.worker)
            case WorkerLost():
                self._lose(event)
            case UnitFinished() | UnitFailed():
                self._end_unit(event)
            case VersionSaved():
                course = self._courses[event.trial]
                version = event.ref.version
                course.found[version], course.saves[version] = event.digest, event.ref
                if version not in course.lent:
                    self._versions.drop(event.ref)
            case SaveFailed():
                self._courses[event.trial].fail(event.error)
            case VersionLost():  # a unit that could not begin
                self._courses[event.trial].fail(event.reason)
                if self._running.pop(event.worker or "", None) is not None:
                    self._idle.append(event.worker or "")
            case _:
                pass

    def _assign(self) -> None:
        for course in list(self._waiting):
            parent = course.trial.parent
            lender = None if parent is None else self._courses[parent.trial]
            if lender is not None and lender.error:
                self._waiting.remove(course)
                course.fail(f"its parent {lender.trial.id} could not be replayed: {lender.error}")
            elif self._idle and (lender is None or course.base in lender.found):
                self._waiting.remove(course)
                self._begin(course, self._idle.pop(0))

    def _begin(self, course: _Course, worker: str) -> None:
        course.worker, course.version = worker, course.base
        if course.trial.parent is not None:
            lender = self._courses[course.trial.parent.trial]
            digest, number = lender.found[course.base], self._number()
            source, ref = lender.saves[course.base], VersionRef(course.trial.id, course.base, number)
            course.found[course.base], _ = self._versions.copy(source, ref, digest)
            course.saves[course.base] = ref
        self._go_on(course, worker)

    def _number(self) -> int:
        self._attempts += 1
        return self._attempts

    def _go_on(self, course: _Course, worker: str) -> None:
        """The next unit, or another course for the worker."""
        if course.error or course.version == course.end:
            self._idle.append(worker)
            return
        self._running[worker] = self._number()
        epoch, partition = course.version // self._partitions + 1, course.visits[course.version]
        last = (course.version + 1) % self._partitions == 0
        unit, version = Unit(course.trial.id, epoch, partition), course.version
        model = course.saves.get(version, VersionRef(course.trial.id, version, None))
        digest = course.found.get(version, "")
        self._backend.send(RunUnit(worker, unit, self._attempts, model, last, digest), course.trial)

    def _end_unit(self, unit: UnitFinished | UnitFailed) -> None:
        if self._running.get(unit.worker) != unit.attempt:
            return
        del self._running[unit.worker]
        course = self._courses[unit.trial]
        if isinstance(unit, UnitFailed):
            course.fail(unit.error)
        else:
            self._units += 1
            course.version = unit.version
            if course.differs is None and course.losses.get(unit.version) != unit.sums.get(LOSS):
                course.differs = unit.version
            if unit.version in course.wanted and unit.version not in course.found:
                save = SaveVersion(unit.worker, VersionRef(unit.trial, unit.version, self._number()), True)
                self._backend.send(save, course.trial)
        self._go_on(course, unit.worker)

    def _lose(self, lost: WorkerLost) -> None:
        """What it trained, or had not saved yet, begins anew on another worker."""
        self._running.pop(lost.worker, None)
        self._idle = [worker for worker in self._idle if worker != lost.worker]
        for course in self._courses.values():
            if course.worker == lost.worker and not course.done:
                self._units -= course.version - course.base
                course.worker, course.version = None, course.base
                course.lost += 1
                if course.lost == MAX_LOSSES:
                    course.fail(f"{course.lost} workers were lost while it trained; the last one: {lost.reason}")
                else:
                    self._waiting.append(course)
