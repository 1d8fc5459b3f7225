"""Attacks on real processes: a run in a process of its own, killed, stopped or robbed of its files, and run again.

Each attack ends with a finished experiment, whose models must have the SHA-256 of those of a run that nobody disturbed,
whose journal must keep all invariants, and whose folder ``verify`` must find whole.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hopfleet as hop
from hopfleet.domain.messages import Message, WorkerLost
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
    #: Runs of an experiment to its end, each of which was compared with one that was not disturbed.
    checked: int = 0
    lost: int = 0
    doubled: int = 0
    problems: list[str] = field(default_factory=list)
    note: str = ""
    places: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return not self.problems and not self.lost and not self.doubled


# ------------------------------------------------------------------------------------------------------ processes


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
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
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


# --------------------------------------------------------------------------------------------------------- verdicts


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
    """What comes out if nobody disturbs it, on one worker in one process; how long units take does not matter."""
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
        f"{what}: verify: {fault}" for fault in hop.load(folder).verify().faults if _version(fault.where) not in spoilt
    ]


Spoilt = frozenset[tuple[str, int]]


def _version(path: str | Path) -> tuple[str, int]:
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


# ---------------------------------------------------------------------------------------------------------- attacks


def controller_points(backend: str, every: int = 1, first: int = 1) -> Report:
    """SIGKILL of the controller at each place: one run that dies there, and one that resumes at once."""
    report = Report(f"controller dies before and after each effect ({backend})")
    asked = {"trials": 2, "epochs": 2, "partitions": 2, "backend": backend}
    with scratch() as folder:
        whole = Child(folder, asked)
        assert whole.wait() == 0, whole.words
        total = whole.reached
    for number in range(first, total + 1, every):
        with scratch() as folder:
            log = folder.parent / "places"
            child = Child(folder, asked, die=number, CHAOS_LOG=str(log))
            status = child.wait()
            if status == 0:  # with workers there may be a few places less this time
                continue
            if status != -signal.SIGKILL:
                report.problems.append(f"place {number}: ended with {status}: {child.words[-300:]}")
                continue
            report.faults += 1
            report.places.update(log.read_text().splitlines())
            finish(report, folder, asked, f"place {number} ({log.read_text().strip()})")
    report.note = f"{report.faults} of {total} places"
    return report


def controller_again_and_again(runs: int, seed: int, backend: str = "local") -> Report:
    """Each run dies at some place after it began; the next one goes on from there."""
    report = Report(f"controller dies again and again ({backend})")
    rng = random.Random(f"again {seed}")
    asked = {"trials": 6, "epochs": 3, "partitions": 3, "backend": backend}
    while report.faults < runs:
        with scratch() as folder:
            log = folder.parent / "places"
            for _ in range(min(12, runs - report.faults)):
                status = (child := Child(folder, asked, die=rng.randint(20, 250), CHAOS_LOG=str(log))).wait()
                if status == 0 or "is finished already" in child.words:
                    break
                if status != -signal.SIGKILL:
                    report.problems.append(f"a run ended with {status}: {child.words[-300:]}")
                    break
                report.faults += 1
            report.places.update(log.read_text().splitlines())
            finish(report, folder, asked, "again and again")
    return report


def worker_points(kills: int, seed: int) -> Report:
    """Every worker dies at some place of its own: at a message, in a unit, while it writes."""
    report = Report("workers die at each protocol step")
    while report.faults < kills:
        seed += 1
        asked = {"trials": 8, "epochs": 6, "partitions": 4, "blocks": 4}
        with scratch() as folder:
            log = folder.parent / "places"
            log.touch()
            finish(report, folder, asked, f"seed {seed}", CHAOS_WORKERS=f"{seed} 60 260", CHAOS_LOG=str(log))
            report.places.update(places := log.read_text().splitlines())
            report.faults += len(places)
            if not places:
                break
    return report


def stopped_and_continued(times: int, seed: int) -> Report:
    """SIGSTOP and, after a moment, SIGCONT: workers that were away are not lost, and those away for long are."""
    report = Report("workers are stopped and continued")
    rng = random.Random(f"stopped {seed}")
    asked = {"trials": 4, "epochs": 4, "partitions": 3, "seconds": 0.1}
    losses = 0
    while report.faults < times:
        with scratch() as folder:
            child = Child(folder, asked)
            for seconds in (0.2, 0.4, 2.5):
                workers = _workers(child)
                if not workers:
                    break
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim := rng.choice(workers), signal.SIGSTOP)
                    report.faults += 1
                    time.sleep(seconds)
                    os.kill(victim, signal.SIGCONT)
            _ended(report, child, folder, asked, "stopped")
            losses += sum(isinstance(message, WorkerLost) for message in messages_of(folder))
    report.note = f"{losses} of them were taken for dead"
    return report


def _workers(child: Child) -> list[int]:
    """Its workers, as soon as there are any; none if it has ended."""
    while child.running:
        if workers := child.workers:
            return workers
        time.sleep(0.01)
    return []


def _ended(report: Report, child: Child, folder: Path, asked: dict[str, Any], what: str) -> None:
    status = child.wait()
    if status == 0:
        compare(report, folder, asked, what)
    else:
        report.problems.append(f"{what}: ended with {status}: {child.words[-300:]}")


# ------------------------------------------------------------------------------------------------- files and clocks


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def garbage(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(path.stat().st_size))


DAMAGE: tuple[Callable[[Path, random.Random], None], ...] = (flip, truncate, delete, garbage)


def damaged_models(times: int, seed: int) -> Report:
    """A run is killed, some model files of trials that go on are damaged, and it goes on.

    Files in memory are cut or deleted, not flipped: memory is trusted.
    """
    report = Report("files of models are flipped, cut, deleted, overwritten")
    rng = random.Random(f"damage {seed}")
    asked = {"trials": 4, "epochs": 3, "partitions": 3, "backend": "inline"}
    while report.faults < times:
        with scratch() as folder:
            Child(folder, asked, die=rng.randint(150, 500)).wait()
            if not _unfinished(folder):
                continue
            live = {trial.id for trial in hop.load(folder).trials if not trial.state.ended}
            shared = Versions(folder / "checkpoints").shared_folder
            files = [
                path
                for place in (folder / "checkpoints", shared)
                for path in sorted(place.rglob("*.safetensors"))
                if path.parent.name in live
            ]
            spoilt = set()
            for path in rng.sample(files, min(len(files), rng.randint(1, 3))):
                how = rng.choice([truncate, delete] if shared in path.parents else DAMAGE)
                how(path, rng)
                spoilt.add(_version(path))
                report.places[how.__name__] += 1
                report.faults += 1
            finish(report, folder, asked, f"damaged {sorted(spoilt)}", frozenset(spoilt))
    return report


def _unfinished(folder: Path) -> bool:
    with contextlib.suppress(HopfleetError):
        return not hop.load(folder).finished
    return False


def damaged_journal(times: int, seed: int) -> Report:
    """A journal or a definition that is damaged is refused in words, and nothing is made worse."""
    report = Report("a journal that is cut or overwritten is refused")
    rng = random.Random(f"journal {seed}")
    asked = {"trials": 4, "epochs": 3, "partitions": 3, "backend": "inline"}
    while report.faults < times:
        with scratch() as folder:
            Child(folder, asked, die=rng.randint(150, 500)).wait()
            if not _unfinished(folder):
                continue
            # What lies beside it is folded in first, as whenever the last reader closes it.
            contextlib.closing(Journal(folder / "journal.sqlite", writable=True)).__exit__()
            path = folder / rng.choice(["journal.sqlite", "journal.sqlite", "experiment.json"])
            how = rng.choice([garbage, truncate])
            how(path, rng)
            report.faults += 1
            child = Child(folder, asked)
            status = child.wait()
            refused = child.words.startswith(("JournalError", "ExperimentExists"))
            report.checked += 1
            if status == 0 or not refused:
                report.problems.append(f"{how.__name__} of {path.name}: ended with {status}: {child.words[-300:]}")
    return report


def clock_jumps(times: int, seed: int) -> Report:
    """The clocks of controller and workers are set hours ahead and back, again and again."""
    report = Report("clocks jump by hours")
    for number in range(times):
        asked = {"trials": 4, "epochs": 3, "partitions": 3}
        with scratch() as folder:
            finish(report, folder, asked, f"clock {seed + number}", CHAOS_CLOCK=str(seed + number))
            report.faults += 1
    return report


def full_disk(times: int) -> Report:
    """A run in a small file system that is filled, so that it waits, and given room again, so that it goes on."""
    report = Report("a disk that is full for a while")
    for _ in range(times):
        with small_disk() as place:
            if place is None:
                report.note = "not run: a small file system cannot be mounted here"
                return report
            folder, filler = place / "disk" / "run", place / "disk" / "filler"
            asked = {"trials": 4, "epochs": 4, "partitions": 3, "seconds": 0.05, "blocks": 16}
            child = Child(folder, asked)
            _workers(child)
            time.sleep(0.5)
            fill(filler)
            report.faults += 1
            time.sleep(2.0)
            waits = child.running
            filler.unlink(missing_ok=True)
            if not waits:
                report.problems.append(f"it did not wait for room: {child.words[-300:]}")
                finish(report, folder, asked, "full disk, resumed")
            else:
                _ended(report, child, folder, asked, "full disk")
            Versions(folder / "checkpoints").release()
    return report


@contextlib.contextmanager
def small_disk(size: str = "4m") -> Iterator[Path | None]:
    """A folder with a small file system in it, named ``disk``; None where it cannot be mounted."""
    with tempfile.TemporaryDirectory(prefix="hopfleet-chaos-") as folder:
        disk = Path(folder) / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
        if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
            yield None
            return
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


# ------------------------------------------------------------------------------------------------------------- soak


@dataclass
class Soak:
    """How long a run took with faults, and what the same units take without."""

    faults: int
    seconds: float
    quiet: float
    unit: float

    @property
    def allowed(self) -> float:
        return self.faults * self.unit + 0.1 * self.quiet

    @property
    def overhead(self) -> float:
        return self.seconds - self.quiet


def soak(
    units: int, unit: float, pause: tuple[float, float], seed: int, *, controller: bool = True
) -> tuple[Report, Soak]:
    """Kill a worker, and now and then the controller, every few moments until the experiment is finished."""
    report = Report("soak: workers, and sometimes the controller, are killed all the time")
    rng = random.Random(f"soak {seed}")
    asked = {"trials": 4, "partitions": 4, "epochs": max(1, units // 16), "seconds": unit}
    quiet = 0.0
    if not controller:
        with scratch() as folder:
            quiet = _span(folder, asked, report)
    with scratch() as folder:
        began = time.monotonic()
        child = Child(folder, asked)
        while True:
            if _sleeps(child, rng.uniform(*pause)):
                if child.status == 0:
                    break
                report.problems.append(f"ended with {child.status}: {child.words[-300:]}")
                return report, Soak(report.faults, 0, 0, unit)
            if controller and rng.random() < 0.05:
                child.kill()
                report.faults += 1
                report.places["controller"] += 1
                child = Child(folder, asked)
            elif workers := child.workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(workers), signal.SIGKILL)
                    report.faults += 1
                    report.places["worker"] += 1
        seconds = time.monotonic() - began
        compare(report, folder, asked, "soak")
    return report, Soak(report.faults, seconds, quiet, unit)


def _span(folder: Path, asked: dict[str, Any], report: Report) -> float:
    began = time.monotonic()
    finish(report, folder, asked, "quiet")
    return time.monotonic() - began


def _sleeps(child: Child, seconds: float) -> bool:
    """Let some time pass; whether the child ended meanwhile."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not child.running:
            return True
        time.sleep(0.01)
    return False


# Not run as a module: its task would have another name then.
RESUMING = """
import json, pathlib, sys
from tests.chaos.subject import experiment
experiment(pathlib.Path(sys.argv[1]), **json.loads(sys.argv[2])).fit(quiet=True)
"""


def resume_seconds(times: int) -> list[float]:
    """Seconds from the start of a process that resumes a killed run to its first new unit, import included."""
    found = []
    for _ in range(times):
        with scratch() as folder:
            asked = {"trials": 8, "epochs": 20, "partitions": 4, "seconds": 0.02}
            child = Child(folder, asked)
            _workers(child)
            time.sleep(1.0)
            child.kill()
            before = _units(folder)
            began = time.monotonic()
            command = [sys.executable, "-c", RESUMING, str(folder), json.dumps(asked)]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while _units(folder) == before and process.poll() is None:
                time.sleep(0.005)
            found.append(time.monotonic() - began)
            assert process.poll() is None, "it ended without a new unit"
            process.kill()
            process.wait()
            time.sleep(0.5)  # its workers end with it, at their next beat
    return found


def _units(folder: Path) -> int:
    return sum(type(message).__name__ == "UnitFinished" for message in messages_of(folder))
