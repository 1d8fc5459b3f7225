"""Runs in processes of their own, and the verdict on each: the results of a run that was not disturbed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hopfleet as hop
from hopfleet.domain.messages import Message
from hopfleet.errors import HopfleetError
from hopfleet.scheduler.invariants import validate_history
from hopfleet.store.journal import Journal
from hopfleet.store.shared_memory import TMPFS
from hopfleet.store.versions.local import Versions
from hopfleet.support.files import digest
from tests.chaos import points
from tests.chaos.subject import experiment
from tests.helpers.attempts import Attempts

LIMIT = 120.0
"""Seconds after which a run hangs."""


@dataclass
class Report:
    """What came of an attack."""

    name: str
    faults: int = 0
    #: Runs of an experiment to its end, each compared with an undisturbed run.
    checked: int = 0
    lost: int = 0
    doubled: int = 0
    problems: list[str] = field(default_factory=list)
    note: str = ""
    places: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return not self.problems and not self.lost and not self.doubled


class Child:
    """A run in a process of its own, forked from this one, which has imported everything."""

    def __init__(self, folder: Path, asked: dict[str, Any], *, die: int = 0, **environment: str) -> None:
        # Not in the folder above, which may be a disk that is full.
        self.errors = folder.parent.parent / f"{folder.parent.name}.err"
        self.pid = os.fork()
        if self.pid == 0:
            self._be(folder, asked, die, environment)
        self.status: int | None = None

    def _be(self, folder: Path, asked: dict[str, Any], die: int, environment: dict[str, str]) -> None:
        code = 1
        try:
            with self.errors.open("w") as errors:
                os.dup2(errors.fileno(), 1)
                os.dup2(errors.fileno(), 2)
            os.environ.update(environment)
            points.install(die)
            experiment(folder, **asked).fit(quiet=True)
            code = 0
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            # Whatever happens, this process must not go on with what its parent does.
            with contextlib.suppress(OSError):
                sys.stderr.flush()
                self.errors.with_suffix(".points").write_text(str(points.reached()))
            os._exit(code)

    def wait(self, seconds: float = LIMIT) -> int:
        """The exit status, negative for a signal; a run that hangs is killed."""
        deadline = time.monotonic() + seconds
        while self.status is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                self.status = -signal.SIGALRM
            else:
                time.sleep(0.002)
        return self.status

    @property
    def running(self) -> bool:
        if self.status is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if done else None
        return self.status is None

    def kill(self) -> None:
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    @property
    def workers(self) -> list[int]:
        """The processes of its workers: children of its child."""
        return sorted(worker for fork_server in children(self.pid) for worker in children(fork_server))

    @property
    def reached(self) -> int:
        return int(self.errors.with_suffix(".points").read_text())

    @property
    def words(self) -> str:
        return self.errors.read_text().strip()


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    return []


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A run folder that goes away. No fault here takes a machine down, so memory is as good as a disk, and quicker."""
    with tempfile.TemporaryDirectory(prefix="hopfleet-chaos-", dir=TMPFS if TMPFS.is_dir() else None) as folder:
        place = Path(folder) / "disk" / "run"
        place.parent.mkdir()
        try:
            yield place
        finally:
            Versions(place / "checkpoints").release()


def outcome(folder: Path) -> dict[str, Any]:
    """All that must not depend on what happened on the way."""
    results = hop.load(folder)
    return {
        trial.id: {
            "state": trial.state.value,
            "visits": trial.visits,
            "metrics": [{name: epoch[name] for name in ("epoch", "loss", "train_loss")} for epoch in trial.history],
            "last": _digest(trial, "last_checkpoint"),
            "best": _digest(trial, "checkpoint"),
        }
        for trial in results.trials
    }


def _digest(trial: hop.TrialResult, which: str) -> str:
    try:
        return digest(getattr(trial, which))
    except HopfleetError as error:
        return str(error)


@functools.cache
def _undisturbed(asked: str) -> dict[str, Any]:
    with scratch() as folder:
        child = Child(folder, json.loads(asked) | {"backend": "inline", "workers": 1, "seconds": 0.0})
        assert child.wait() == 0, child.words
        return outcome(folder)


def undisturbed(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome without faults, on one worker in one process; how long units take does not matter."""
    what = {name: asked[name] for name in ("trials", "epochs", "partitions", "blocks") if name in asked}
    return _undisturbed(json.dumps(what, sort_keys=True))


def messages_of(folder: Path) -> list[Message]:
    with contextlib.closing(Journal(folder / "journal.sqlite")) as journal:
        return [message for _, _, message in journal.read()]


def compare(report: Report, folder: Path, asked: dict[str, Any], what: str, spoilt: Spoilt = frozenset()) -> None:
    """A finished run with one that was not disturbed. Of best models that were ``spoilt`` nothing is expected."""
    report.checked += 1
    partitions = asked.get("partitions", 3)
    messages = messages_of(folder)
    try:
        seen = Attempts(partitions).read(messages)
        validate_history(messages, partitions)
    except Exception as error:
        report.problems.append(f"{what}: the history is wrong: {error}")
        return
    units = asked.get("epochs", 2) * partitions
    for visits in seen.visits.values():
        report.lost += max(0, units - len(visits))
        report.doubled += max(0, len(visits) - units)
    found, expected = outcome(folder), undisturbed(asked)
    for trial, version in spoilt:
        if version != units:
            expected = {**expected, trial: {**expected[trial], "best": found[trial]["best"]}}
    if found != expected:
        trials = [name for name in expected if found.get(name) != expected[name]]
        report.problems.append(f"{what}: other results than undisturbed: {found.get(trials[0])}, {expected[trials[0]]}")
    report.problems += [
        f"{what}: verify: {fault}"
        for fault in hop.load(folder).verify().faults
        if version_of(fault.where) not in spoilt
    ]


Spoilt = frozenset[tuple[str, int]]


def version_of(path: str | Path) -> tuple[str, int]:
    """Which version a file is: its trial and its number."""
    number = re.match(r"(?:v|hop-)(\d+)", Path(path).name)
    return Path(path).parent.name, int(number[1]) if number else -1


def finish(
    report: Report, folder: Path, asked: dict[str, Any], what: str, spoilt: Spoilt = frozenset(), **environment: str
) -> None:
    """Run to the end, without further faults, and compare."""
    child = Child(folder, asked, **environment)
    status = child.wait()
    if status != 0 and "is finished already" not in child.words:
        report.problems.append(f"{what}: resuming ended with {status}: {child.words[-300:]}")
        return
    compare(report, folder, asked, what, spoilt)


def workers_when_started(child: Child) -> list[int]:
    """Its workers, as soon as there are any; none if it has ended."""
    while child.running:
        if workers := child.workers:
            return workers
        time.sleep(0.01)
    return []


def ended(report: Report, child: Child, folder: Path, asked: dict[str, Any], what: str) -> None:
    status = child.wait()
    if status == 0:
        compare(report, folder, asked, what)
    else:
        report.problems.append(f"{what}: ended with {status}: {child.words[-300:]}")
