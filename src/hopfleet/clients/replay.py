"""Replay: repeat the training in the journal's order, and compare the models bit for bit.

A trial's arithmetic depends only on its configuration, its seed, the data and the order of its visits. The run folder
holds all of them. So a replay makes no decisions: it sends the visits that count to any workers, trial by
trial and in the recorded order, and compares the SHA-256 of the models with the journal's. A clone starts with the same
version of its parent as before. Models do not depend on evaluations, so nothing is evaluated, and only the verdicts are
kept.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hopfleet.backends import BACKENDS
from hopfleet.backends.base import Backend
from hopfleet.clients.replay_training import Course, recorded_courses, train_again
from hopfleet.data import Dataset, Live, open_dataset
from hopfleet.domain.choices import Auto, BackendName
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.domain.trial import TrialState
from hopfleet.errors import UsageError
from hopfleet.frameworks.base import Task
from hopfleet.frameworks.folds import folded
from hopfleet.runs.results import Results, load
from hopfleet.runs.verify import find_data
from hopfleet.search.base import at_least_one
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import has_journal, open_journal
from hopfleet.store.versions.local import Versions
from hopfleet.support import registry
from hopfleet.support.clock import now
from hopfleet.support.files import create_folder, temporary_folder
from hopfleet.support.machine import choose_workers, this_machine
from hopfleet.worker.spec import WorkerSpec

Verdict = Literal["equal", "different", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Compared:
    """One version of a model: its SHA-256 in the journal and in the replay."""

    version: int
    which: str  #: "last", "best" or "last and best"
    expected: str
    found: str

    @property
    def equal(self) -> bool:
        return self.expected == self.found


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of one trial."""

    trial: str
    verdict: Verdict
    units: int = 0
    versions: tuple[Compared, ...] = ()
    reason: str = ""  #: where a difference begins, or why nothing could be compared


@dataclass(frozen=True, slots=True)
class Replay:
    """The results of all trials. ``ok`` if no replayed trial failed or differs; skipped trials do not count."""

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
    workers: int | Auto = "auto",
    backend: Backend | BackendName | str = "local",
    train: Any = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Replay:
    """Train all trials of an experiment, or only ``trials``, again, and compare the models bit for bit.

    ``task`` and ``train`` replace those named in the run folder, if the task cannot be imported or the data has moved.
    Any number of workers on any backend gives the same result. Progress is reported to ``tell``.
    """
    results = name if isinstance(name, Results) else load(name)
    if results.definition.get("fuse") == "fast":
        raise UsageError(
            f"{results.name}: was trained with fuse='fast', where the last bits depend on the trials that trained "
            "together; only experiments with fuse='exact' or 'off' can be replayed"
        )
    plan = _Plan(results.refresh(), trials, lambda strategy: results.find_task(task).framework.repeats(strategy))
    data, notes = _data(results, train)
    if plan.courses:
        with _temporary(results.folder) as place:
            _rehearse(plan, place, results, results.find_task(task), data, workers, _backend(backend), tell)
    found = Replay(results.name, plan.outcome(), notes)
    results.folder.keep_replays({each.trial: _verdict(each) for each in found.trials if each.verdict != "skipped"})
    return found


def _verdict(replayed: Replayed) -> dict[str, Any]:
    """Return what the page shows of a replay."""
    versions = [each.version for each in replayed.versions]
    return {"time": now(), "verdict": replayed.verdict, "versions": versions, "reason": replayed.reason}


def _data(results: Results, train: Any) -> tuple[Dataset, list[str]]:
    told = results.definition["train"]
    if train is None or isinstance(train, Live):
        data = find_data(results.folder, "train")
        data = data if train is None else data.made_by(train)
        if data.is_live and train is None:
            raise UsageError(
                f"{results.name}: was trained on a live data set, which is not stored; "
                "call hopfleet.clients.replay.replay(name, train=hop.live(dataset))"
            )
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
    """Create a temporary run folder, beside the original one if possible."""
    parent = folder.path.parent if os.access(folder.path.parent, os.W_OK) else None
    with temporary_folder(".replay-", parent) as path:
        place = RunFolder(path)
        # Without a folder for shared files, versions are whole, as those of earlier releases are.
        for each in (place.checkpoints, place.logs, *([place.shared] if folder.shared.is_dir() else [])):
            create_folder(each, private=True)
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
    shapes = _shapes(plan.courses.values(), results.name, devices if device == found else 1, device)
    if len(shapes) > 1:
        chosen = len(shapes)  # one worker of each shape
    spec = WorkerSpec(
        task=folded(task, definition.get("folds", 0), data),
        train=data,
        valid=None,
        checkpoints=place.checkpoints,
        logs=place.logs,
        seed=definition["seed"],
        device=device,
        threads=definition["threads"],
        batch_size=definition["batch_size"],
        drop_last=definition["drop_last"],
        epochs=definition["search"].get("max_epochs", 0),
        settings=definition.get("settings", {}),
        teams=shapes,
    )
    try:
        with task.framework.applied(spec.settings):  # for workers in this process
            backend.start(spec, chosen)
            train_again(plan.courses, backend, Versions(place.checkpoints), len(data), tell)
            backend.close()
    except BaseException:
        backend.close(kill=True)
        raise


def _shapes(courses: Iterable[Course], name: str, devices: int, device: str) -> tuple[TeamShape, ...]:
    """Return the strategies and numbers of devices that the units had. Raise UsageError if devices are missing."""
    units = [course.shapes.get(version + 1, SINGLE) for course in courses for version in range(course.base, course.end)]
    shapes = tuple(sorted(set(units))) or (SINGLE,)
    most = max(shape.devices for shape in shapes)
    if device == "cuda" and most > devices:
        raise UsageError(f"{name}: was trained by teams of {most} GPUs, and this machine has {devices}")
    return shapes


# ------------------------------------------------------------------------------------------------------- planning


class _Plan:
    """The trials to train again, each up to the last version that is compared or lent."""

    def __init__(self, results: Results, chosen: Sequence[str], repeats: Callable[[str], bool]) -> None:
        self._history = results.history
        every: dict[str, Course] = {}
        if has_journal(results.folder):
            with contextlib.closing(open_journal(results.folder)) as journal:
                every = recorded_courses((message for _, _, message in journal.read()), results.definition["metric"])
        for name in chosen:
            if name not in every:
                results[name]  # raises NotFound
        self._names = list(dict.fromkeys(chosen)) or list(every)
        used = {shape.strategy for course in every.values() for shape in course.shapes.values()}
        varying = {strategy for strategy in used if not repeats(strategy)}
        #: A strategy that gives other bits each time, for the trials that it has trained.
        self._varying = {
            name: shape.strategy
            for name, course in every.items()
            for shape in course.shapes.values()
            if shape.strategy in varying
        }
        self._parents = {name: course.trial.parent.trial for name, course in every.items() if course.trial.parent}
        #: The trials to train: those to compare, and their ancestors.
        self.courses: dict[str, Course] = {}
        for name in self._names:
            if not self._why_not(name):
                self._want(every, name, set(self._history.trials[name].saved))

    def _why_not(self, name: str) -> str:
        """Return why a trial is not replayed, or an empty string."""
        trial = self._history.trials.get(name)
        if trial is None:
            return "was deleted"
        if trial.state is TrialState.FAILED:
            return "failed"
        origin: str | None = name
        while origin is not None:  # or one of the trials that it was cloned from
            if strategy := self._varying.get(origin):
                return f"was trained with {strategy!r}, which gives other bits each time"
            origin = self._parents.get(origin)
        return "" if trial.saved else "has no saved model"

    def _want(self, every: dict[str, Course], name: str, versions: set[int]) -> None:
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

    def _compared(self, name: str, course: Course) -> Iterator[Compared]:
        trial = self._history.trials[name]
        last, best = max(trial.saved), trial.best.version if trial.best is not None else None
        for version, saved in sorted(trial.saved.items()):
            which = [word for word, number in (("last", last), ("best", best)) if number == version]
            yield Compared(version, " and ".join(which), saved.digest, course.found[version])

    def _beginning(self, course: Course) -> str:
        if course.differs is None:
            return "the models differ, but no training loss does"
        partitions, made = self._history.partitions, course.differs
        epoch, partition = (made - 1) // partitions + 1, course.visits[made - 1]
        return f"the training loss differs from epoch {epoch}, partition {partition} on"
