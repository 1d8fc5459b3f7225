"""Attacks on processes: the controller and workers are killed, or stopped and continued."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

from hopfleet.domain.messages import WorkerLost
from tests.chaos.points import WRITES
from tests.chaos.runs import Child, Report, ended, finish, messages_of, scratch, workers_when_started


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
    size, places = ({"trials": 6, "epochs": 3}, 250) if runs > 10 else ({"trials": 3, "epochs": 2}, 100)
    asked = {**size, "partitions": 3, "backend": backend}
    while report.faults < runs:
        with scratch() as folder:
            log = folder.parent / "places"
            for _ in range(min(12, runs - report.faults)):
                status = (child := Child(folder, asked, die=rng.randint(20, places), CHAOS_LOG=str(log))).wait()
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
        size = {"trials": 8, "epochs": 6} if kills > 10 else {"trials": 3, "epochs": 4}
        asked = {**size, "partitions": 4, "blocks": 4}
        with scratch() as folder:
            log = folder.parent / "places"
            log.touch()
            finish(report, folder, asked, f"seed {seed}", CHAOS_WORKERS=f"{seed} 60 260", CHAOS_LOG=str(log))
            report.places.update(places := log.read_text().splitlines())
            report.faults += len(places)
            if not places:
                break
    return report


def writes(kills: int, seed: int) -> Report:
    """Workers die before they write a model, between the write and its rename, and before they tell of it."""
    report = Report("workers die at each step of the write of a model")
    asked = {"trials": 6, "epochs": 3, "partitions": 3, "blocks": 4}
    for index, place in enumerate(WRITES):
        with scratch() as folder:
            log = folder.parent / "places"
            log.touch()
            aim = f"{index} {1 + seed % 3} {-(-kills // len(WRITES))}"
            finish(report, folder, asked, place, CHAOS_WRITES=aim, CHAOS_LOG=str(log))
            report.places.update(places := log.read_text().splitlines())
            report.faults += len(places)
            if set(places) != {place}:
                report.problems.append(f"no worker died {place}")
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
                workers = workers_when_started(child)
                if not workers:
                    break
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim := rng.choice(workers), signal.SIGSTOP)
                    report.faults += 1
                    time.sleep(seconds)
                    os.kill(victim, signal.SIGCONT)
            ended(report, child, folder, asked, "stopped")
            losses += sum(isinstance(message, WorkerLost) for message in messages_of(folder))
    report.note = f"{losses} of them were taken for dead"
    return report
