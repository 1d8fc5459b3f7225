"""A session of pytest that collects tests once and then runs some of them again and again, in forks of itself.

First each module of tests runs as it is, traced, which tells the lines that each test reaches. Then each mutant is put
into a fork (``swap.py``), where the tests that reach its line run until one of them fails.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tools.mutants.forks import TIMEOUT, Job, limit_step, run
from tools.mutants.mutators import Mutant
from tools.mutants.swap import loaded_functions, swap

SURVIVED, KILLED, NOT_APPLICABLE = 0, 1, 3
"""Exit codes of forks with mutants."""

LEAST_SECONDS, FACTOR = 5.0, 4.0
"""The limit for a test with a mutant: these seconds of processor time, and this multiple of its time when traced."""

WAITING = 8.0
"""How many times the processor time a mutant may take on the wall: it shares cores with others."""

BONUS = 5
"""By how much a test comes earlier for each mutant of the same function that it has killed."""

TRACED_SECONDS = 900.0
"""Limit for a module of tests without mutants."""


@dataclass
class Reached:
    """What a test reaches when nothing is mutated."""

    seconds: float
    lines: dict[str, list[int]]


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    #: One of killed, timeout, survived, unreached.
    outcome: str
    #: The test that failed, or what else happened.
    by: str = ""
    tests: int = 0


@dataclass(frozen=True)
class Earlier:
    """What an earlier run found: survived or unreached, whatever the tests in these modules."""

    outcome: str
    modules: frozenset[Path]


@dataclass(eq=False)
class Campaign:
    """The plugin; ``mutants`` are tried when the tests have been collected."""

    package: Path
    #: The folder within the package that has all mutants.
    folder: Path
    mutants: Sequence[Mutant]
    #: By the names of mutants that no test had noticed.
    survivors: Mapping[str, Earlier]
    #: The folder that keeps what modules of tests reach, for the next run.
    traces: Path
    processes: int
    tell: Callable[[Verdict], None]
    say: Callable[[str], None]
    #: The tests that failed without a mutant, and modules that could not be imported, e.g. for want of a package.
    broken: list[str] = field(default_factory=list)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        useless = frozenset.intersection(*[self._tried(mutant) for mutant in self.mutants])
        items = {item.nodeid: item for item in session.items if item.path not in useless}
        # Files may change while this runs, which takes long.
        sources = {file: (self.package / file).read_text() for file in {mutant.file for mutant in self.mutants}}
        reached = self._trace(session, items)
        functions = loaded_functions(self.package)
        by_line: dict[tuple[str, int], list[str]] = {}
        for test, found in reached.items():
            for file, lines in found.lines.items():
                for line in lines:
                    by_line.setdefault((file, line), []).append(test)

        killers = Counter[tuple[tuple[str, str], str]]()

        def jobs() -> Iterator[Job[Mutant]]:
            for mutant in self.mutants:
                reaching = {test for line in mutant.lines for test in by_line.get((mutant.file, line), ())}
                tests = [test for test in reaching if items[test].path not in self._tried(mutant)]
                tests.sort(key=lambda test: (reached[test].seconds / (1 + BONUS * killers[mutant.place, test]), test))
                if not tests:
                    earlier = self.survivors.get(mutant.name)
                    self.tell(Verdict(mutant, earlier.outcome if earlier else "unreached"))
                    continue
                put = partial(swap, mutant, sources[mutant.file], self.package / mutant.file, functions)
                limits = [LEAST_SECONDS + FACTOR * reached[test].seconds for test in tests]
                attempt = _Attempt(session, put, [items[test] for test in tests], limits)
                yield Job(mutant, attempt, sum(limits), WAITING * sum(limits))

        for ended in run(jobs(), self.processes):
            verdict = _verdict(ended.subject, ended.outcome, ended.result)
            killers[verdict.mutant.place, verdict.by] += 1
            self.tell(verdict)
        return True

    def _tried(self, mutant: Mutant) -> frozenset[Path]:
        earlier = self.survivors.get(mutant.name)
        return earlier.modules if earlier else frozenset()

    def _trace(self, session: pytest.Session, items: dict[str, pytest.Item]) -> dict[str, Reached]:
        """Run all tests, a module in a fork, and return what each of them reaches."""
        modules: dict[Path, list[pytest.Item]] = {}
        for item in items.values():
            modules.setdefault(item.path, []).append(item)
        self.say(f"{len(items)} tests in {len(modules)} modules: which lines does each reach?")
        helpers = [file for file in (session.config.rootpath / "tests").rglob("*.py") if not is_module(file)]
        code = digest(sorted([*self.package.rglob("*.py"), *helpers]))
        begin = f"{str(self.folder.relative_to(self.package)).replace('/', '-')}-{code}"
        files = {path: self.traces / f"{begin}-{path.stem}-{digest([path])}.json" for path in modules}
        jobs = [
            Job(path, _Tracing(session, chosen, self.package, self.folder), TRACED_SECONDS, 2 * TRACED_SECONDS)
            for path, chosen in modules.items()
            if not files[path].exists()
        ]
        traces = [json.loads(file.read_text()) for file in files.values() if file.exists()]
        for ended in run(jobs, self.processes):
            if ended.outcome != "0":
                self.broken.append(f"{ended.subject}: {ended.outcome}")
                continue
            traces.append(json.loads(ended.result))
            if not traces[-1]["failed"]:
                files[ended.subject].write_text(ended.result)
        found, imported = dict[str, Reached](), dict[str, None]()
        for told in traces:
            self.broken += told["failed"]
            imported.update(dict.fromkeys(told["imported"]))
            found |= {test: Reached(**each) for test, each in told["reached"].items()}
        # What tests import while they run is imported once here, and not in each fork.
        for name in imported:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        return found


def digest(files: Sequence[Path]) -> str:
    return sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


def is_module(file: Path) -> bool:
    """Whether a file has tests, and not what several of those files share."""
    return file.name.startswith("test_")


def _verdict(mutant: Mutant, outcome: str, result: str) -> Verdict:
    tests, _, by = result.partition(" ")
    count = int(tests or 0)
    if outcome == str(SURVIVED):
        return Verdict(mutant, "survived", "", count)
    if outcome == str(NOT_APPLICABLE):
        return Verdict(mutant, "unreached", by, count)
    if outcome == TIMEOUT:
        return Verdict(mutant, "timeout", by, count)
    return Verdict(mutant, "killed", by or outcome, count)


def _protocol(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run a test, with the fixtures that it shares with the following one; return whether it failed."""
    # Fixtures of the session are never torn down: the fork ends without them.
    reports = runtestprotocol(item, log=False, nextitem=following or item.session)  # type: ignore[arg-type]
    return any(report.failed for report in reports)


def _own_folder(session: pytest.Session, folder: Path) -> None:
    """Let temporary files of tests be in the folder, where they are deleted with it."""
    session.config._tmp_path_factory._basetemp = folder / "tests"  # type: ignore[attr-defined]
    (folder / "tests").mkdir()
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(quiet, number)


@dataclass(frozen=True)
class _Attempt:
    session: pytest.Session
    put_mutant: Callable[[], None]
    items: Sequence[pytest.Item]
    #: Limits in seconds of processor time, by test.
    limits: Sequence[float]

    def __call__(self, folder: Path) -> int:
        _own_folder(self.session, folder)
        result = folder / "result"
        try:
            self.put_mutant()
        except (LookupError, SyntaxError, ValueError) as problem:
            result.write_text(f"0 {problem}")
            return NOT_APPLICABLE
        for number, item in enumerate(self.items):
            following = self.items[number + 1] if number + 1 < len(self.items) else None
            result.write_text(f"{number + 1} {item.nodeid}")
            limit_step(self.limits[number], WAITING * self.limits[number])
            if _protocol(item, following):
                return KILLED
        return SURVIVED


@dataclass(frozen=True)
class _Tracing:
    session: pytest.Session
    items: Sequence[pytest.Item]
    package: Path
    #: The folder within the package whose lines count.
    folder: Path

    def __call__(self, folder: Path) -> int:
        _own_folder(self.session, folder)
        before = set(sys.modules)
        reached, failed = {}, []
        for number, item in enumerate(self.items):
            following = self.items[number + 1] if number + 1 < len(self.items) else None
            began = time.process_time()
            with traced(self.folder) as lines:
                wrong = _protocol(item, following)
            if wrong:
                failed.append(item.nodeid)
                continue
            found: dict[str, list[int]] = {}
            for file, line in lines:
                found.setdefault(str(Path(file).relative_to(self.package)), []).append(line)
            reached[item.nodeid] = {"seconds": time.process_time() - began, "lines": found}
        imported = [name for name in sys.modules if name not in before and not name.startswith(("tests.", "__"))]
        told = {"reached": reached, "failed": failed, "imported": imported}
        (folder / "result").write_text(json.dumps(told))
        return 0


@contextlib.contextmanager
def traced(folder: Path) -> Iterator[set[tuple[str, int]]]:
    """Note the files and lines of a folder that are reached, in all threads."""
    lines = set[tuple[str, int]]()
    prefix = f"{folder}/"
    left: dict[int, tuple[CodeType, set[int]]] = {}  # by identity: equal functions of two files are equal code

    def call(frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if id(code) not in left:
            inside = code.co_filename.startswith(prefix)
            left[id(code)] = code, {line for *_, line in code.co_lines() if line is not None} if inside else set()
        _, waited = left[id(code)]
        if not waited:  # nothing is new any more, and to be told of each line takes long
            return None
        file = code.co_filename

        def line(frame: FrameType, event: str, argument: object) -> Any:
            lines.add((file, frame.f_lineno))
            waited.discard(frame.f_lineno)
            return line

        return line(frame, event, argument)

    threading.settrace(call)
    sys.settrace(call)
    try:
        yield lines
    finally:
        sys.settrace(None)
        threading.settrace(None)
