"""Attacks by requests: every request with every kind of argument, to experiments that run, were killed, or are over.

After each kill the run can be verified and resumed; at its end, a trial that no granted request has touched has the
bits of a run that was not disturbed, and the others have them as far as they trained.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import hopfleet as hop
from hopfleet.controller.request_arguments import ARGUMENTS
from hopfleet.domain.messages import RequestAnswered, RequestMade
from hopfleet.errors import HopfleetError, UsageError
from hopfleet.store.folder import RunFolder
from hopfleet.store.requests import INSERT
from tests.chaos.runs import Child, Report, messages_of, outcome, scratch, undisturbed
from tests.helpers.requested import ODD, deep

ASKED = {"trials": 4, "epochs": 3, "partitions": 2, "seconds": 0.005}

PER_RUN = 25
"""Requests to one experiment."""

LONG = 30
"""Epochs of a trial after which it is stopped at the end: a person may ask for a million."""


def random_requests(requests: int, seed: int) -> Report:
    """Requests in a random order, and SIGKILL of the controller after each of them."""
    report = Report("every request with every kind of argument, and kills")
    rng = random.Random(f"requests {seed}")
    while report.places["asked"] < requests and not report.problems:
        asked = {**ASKED, "backend": rng.choice(["inline", "inline", "local"])}
        with scratch() as folder:
            last = min(requests, report.places["asked"] + PER_RUN)
            while report.places["asked"] < last and not report.problems:
                _disturb(report, rng, folder, asked)
            _finish(report, folder, asked)
    report.note = f"{report.places['asked']} requests, {report.places['granted']} granted"
    return report


def _disturb(report: Report, rng: random.Random, folder: Path, asked: dict[str, Any]) -> None:
    child = Child(folder, asked)
    while child.running and not _begun(folder):
        time.sleep(0.002)
    ask(folder, rng)
    report.places["asked"] += 1
    time.sleep(rng.choice([0.0, 0.02, 0.05, 0.1, 0.2]))
    if child.running:
        child.kill()
        report.faults += 1
    if child.status not in (0, -9):
        report.problems.append(f"a run ended with {child.status}: {child.words[-500:]}")
    if _begun(folder):
        report.problems += [f"verify after a kill: {fault}" for fault in hop.load(folder).verify().faults]


def _begun(folder: Path) -> bool:
    with contextlib.suppress(HopfleetError):
        return hop.load(folder).folder.exists and bool(messages_of(folder))
    return False


def ask(folder: Path, rng: random.Random, *, long: bool = True) -> None:
    """Make a request through the API, or write a row as any program may; without ``long``, none to train for ever."""
    name, given = request(rng)
    if not long and isinstance(given.get("epochs"), int) and given["epochs"] > LONG:
        given["epochs"] = 10**20
    if name in ARGUMENTS and rng.random() < 0.5:
        control = hop.Control(RunFolder(folder), who="ada\ud800", wait=0.0)
        with contextlib.suppress(UsageError):
            control._ask(name, **given)
        return
    text = rng.choice(["{", "[1]", "\x00", '{"a":' * 900 + "1" + "}" * 900]) if rng.random() < 0.1 else None
    with contextlib.suppress(RecursionError):
        text = json.dumps(given) if text is None else text
    with contextlib.closing(sqlite3.connect(folder / "journal.sqlite", timeout=30)) as database, database:
        database.execute(INSERT, (rng.choice([time.time(), "soon", 9e999]), "ada", name, text or "deep"))


def request(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a request with arguments that make sense, or do not."""
    name = rng.choice([*ARGUMENTS, *ARGUMENTS, "dance", "drain"])
    names = [*ARGUMENTS.get(name, ()), *(["loud"] if rng.random() < 0.05 else [])]
    return name, {each: _value(each, rng) for each in names if rng.random() < 0.9}


def _value(name: str, rng: random.Random) -> Any:
    if rng.random() < 0.25:
        return deep(rng.choice([5, 19, 21, 300])) if rng.random() < 0.1 else rng.choice(ODD)
    number = rng.randrange(9) if rng.random() < 0.7 else rng.choice(ODD)
    sensible: dict[str, Any] = {
        "trial": f"t{rng.randint(1, 6):04d}",
        "config": {"number": number, "seconds": 0.0, "blocks": 1},
        "changes": {"number": number},
        "space": {"number": rng.choice(["grid_search([0, 1, 11])", "choice([12])", "banana", "choice(['a'])"])},
        "epochs": rng.randint(1, 5),
        "trials": rng.randint(0, 2),
        "level": rng.randint(0, 3),
        "count": rng.randint(1, 4),
        "by": rng.randint(-2, 2),
    }
    return sensible.get(name, rng.random() < 0.5)


def _finish(report: Report, folder: Path, asked: dict[str, Any]) -> None:
    """Let the run end, without those that would train for ever, and compare."""
    for attempt in itertools.count():
        for trial in hop.load(folder).trials:
            if not trial.state.ended and trial._trial.epochs > LONG:
                hop.control(folder, wait=0.0).stop(trial.id)
        child = Child(folder, asked)
        status = child.wait(20.0)
        if status == 0:
            break
        if status > 0 or attempt == 3:
            report.problems.append(f"the last run ended with {status}: {child.words[-500:]}")
            return
    compare(report, folder, asked)


def compare(report: Report, folder: Path, asked: dict[str, Any]) -> None:
    report.checked += 1
    made, touched = dict[int, RequestMade](), set[str]()
    for message in messages_of(folder):
        if isinstance(message, RequestMade):
            made[message.number] = message
        elif isinstance(message, RequestAnswered) and message.granted:
            report.places["granted"] += 1
            given = made[message.number].arguments
            if made[message.number].request in ("stop", "delete", "resume"):
                touched.add(given["trial"])
            elif made[message.number].request == "extend" and given.get("epochs"):
                touched.update(undisturbed(asked))
    found = outcome(folder)
    for trial, expected in undisturbed(asked).items():
        here = found.get(trial, expected if trial in touched else None)
        if here is None or (here != expected and trial not in touched):
            report.problems.append(f"{trial}: was touched by no request, and is {here} instead of {expected}")
        elif any(one != other for one, other in zip(here["metrics"], expected["metrics"], strict=False)):
            report.problems.append(f"{trial}: other metrics than undisturbed: {here}, {expected}")
    report.problems += [f"verify at the end: {fault}" for fault in hop.load(folder).verify().faults]
