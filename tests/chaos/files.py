"""Attacks on files and clocks: models and journals are damaged, clocks jump, disks fill up."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hopfleet as hop
from hopfleet.errors import HopfleetError
from hopfleet.store.journal import Journal
from hopfleet.store.versions.local import Versions
from tests.chaos.runs import Child, Report, ended, finish, scratch, version_of, workers_when_started


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
                spoilt.add(version_of(path))
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
            workers_when_started(child)
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
                ended(report, child, folder, asked, "full disk")
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
