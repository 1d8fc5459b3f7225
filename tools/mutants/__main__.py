"""Try mutants of folders with their tests: ``make mutants``, or ``python -m tools.mutants controller store``.

A path is a folder or a file below ``src/hopfleet``, whose tests are below ``tests`` in the folder of the same name.
What was found is kept in ``build/mutants``, so the next run goes on where this one ended: mutants that a test killed
stay killed while their file is the same, and survivors are tried again with the modules of tests that have changed.

Mutants that no test can tell from the original are in ``tests/mutants.toml``, with reasons; they are not tried.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tools.mutants.campaign import Campaign, Earlier, Verdict, digest, is_module
from tools.mutants.mutators import Mutant, mutants

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/hopfleet"
FOLDERS = ("controller", "scheduler", "store", "runtime", "search", "data/etl")
EQUIVALENT = ROOT / "tests/mutants.toml"
BUILD = ROOT / "build/mutants"
TRACES = BUILD / "traces"
TERMINAL = os.dup(1)
"""Where this tool writes, while pytest captures what tests write."""


def equivalent() -> dict[str, str]:
    """Return reasons by the names of mutants that no test can kill."""
    found: dict[str, str] = tomllib.loads(EQUIVALENT.read_text())
    return found


def all_mutants(path: str) -> list[Mutant]:
    """Return the mutants of a folder or file, in the order of files and lines."""
    place = PACKAGE / path
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    if not files:
        raise SystemExit(f"{path}: must be a folder or file below {PACKAGE.relative_to(ROOT)}")
    return [mutant for file in files for mutant in mutants(str(file.relative_to(PACKAGE)), file.read_text())]


def folder_of(path: str) -> str:
    """Return the folder whose tests are to notice mutants of a path."""
    place = PACKAGE / path
    return str((place.parent if place.is_file() else place).relative_to(PACKAGE))


def tests_of(folder: str) -> Path:
    """Return the folder of tests; those of a folder within may lie in the folder around it."""
    place = ROOT / "tests" / folder
    return place if place.is_dir() else tests_of(str(Path(folder).parent))


class Records:
    """What earlier runs found for the same code and tests."""

    def __init__(self, folder: str, tests: Sequence[Path], *, fresh: bool) -> None:
        self._file = BUILD / f"{folder.replace('/', '-')}.jsonl"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            self._file.unlink(missing_ok=True)
        files = [file for path in tests for file in (sorted(path.rglob("*.py")) or [path])]
        modules = [file for file in files if is_module(file)]
        self._shared = digest([file for file in files if file not in modules])
        self._tests = {str(file.relative_to(ROOT)): digest([file]) for file in modules}
        self._sources: dict[str, str] = {}

    def known(self, chosen: Sequence[Mutant]) -> tuple[dict[str, str], dict[str, Earlier]]:
        """Return outcomes by the names of mutants, and those of survivors that other tests may notice today."""
        by_name = {mutant.name: mutant for mutant in chosen}
        found, survivors, now = dict[str, str](), dict[str, Earlier](), (self._shared, self._tests)
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            told = json.loads(line)
            name, outcome = told["name"], told["outcome"]
            if name not in by_name or told["source"] != self._source(by_name[name]):
                continue
            if outcome not in ("survived", "unreached") or (told["shared"], told["tests"]) == now:
                found[name] = outcome
            elif told["shared"] == self._shared:
                same = [test for test, digest in self._tests.items() if told["tests"].get(test) == digest]
                survivors[name] = Earlier(outcome, frozenset(ROOT / test for test in same))
        return found, {name: earlier for name, earlier in survivors.items() if name not in found}

    def add(self, verdict: Verdict) -> None:
        mutant = verdict.mutant
        told: dict[str, object] = {"name": mutant.name, "outcome": verdict.outcome, "by": verdict.by}
        told |= {"line": mutant.line, "source": self._source(mutant)}
        if verdict.outcome in ("survived", "unreached"):
            told |= {"shared": self._shared, "tests": self._tests}
        with self._file.open("a") as file:
            file.write(json.dumps(told) + "\n")

    def _source(self, mutant: Mutant) -> str:
        if mutant.file not in self._sources:
            self._sources[mutant.file] = digest([PACKAGE / mutant.file])
        return self._sources[mutant.file]


@dataclass(frozen=True)
class Options:
    processes: int
    fresh: bool


def try_mutants(path: str, chosen: Sequence[Mutant], tests: Sequence[Path], options: Options) -> dict[str, str]:
    """Return the outcomes of mutants by name: killed, timeout, survived or unreached."""
    records = Records(folder_of(path), tests, fresh=options.fresh)
    outcomes, survivors = records.known(chosen)
    left = [mutant for mutant in chosen if mutant.name not in outcomes]
    _say(
        f"{path}: {len(chosen)} mutants, {len(outcomes)} of them known from earlier runs, and {len(survivors)} "
        "that survived the tests of then"
    )
    if not left:
        return outcomes
    count = len(left)

    def tell(verdict: Verdict) -> None:
        records.add(verdict)
        outcomes[verdict.mutant.name] = verdict.outcome
        done = count - sum(mutant.name not in outcomes for mutant in left)
        if verdict.outcome in ("survived", "unreached") or done % 50 == 0:
            _say(f"  {done}/{count} {verdict.outcome}: {verdict.mutant.name} (line {verdict.mutant.line})")

    TRACES.mkdir(exist_ok=True)
    folder = PACKAGE / folder_of(path)
    campaign = Campaign(PACKAGE, folder, left, survivors, TRACES, options.processes, tell, _say)
    arguments = ["-qq", "-m", "not slow", "-p", "no:cacheprovider", "-o", "addopts="]
    arguments += ["-o", "tmp_path_retention_policy=none", "--rootdir", str(ROOT), *map(str, tests)]
    if find_spec("hypothesis"):
        arguments += ["--hypothesis-profile=mutants"]
    code = pytest.main(arguments, plugins=[campaign])
    for test in campaign.broken:
        _say(f"  failed without a mutant, and was left out: {test}")
    missing = [mutant.name for mutant in left if mutant.name not in outcomes]
    if missing:
        raise SystemExit(f"pytest ended with {code!r}, and {len(missing)} mutants were not tried")
    return outcomes


def report(path: str, total: int, chosen: Sequence[Mutant], outcomes: dict[str, str]) -> list[str]:
    """Print the score of a path; return the names of survivors that should have been noticed."""
    counted = Counter(outcomes[mutant.name] for mutant in chosen)
    killed, tried = counted["killed"] + counted["timeout"], counted.total()
    _say(
        f"{path}: {killed}/{tried} killed = {killed / max(1, tried):.1%} ({counted['timeout']} by a timeout; "
        f"{counted['survived']} survived, {counted['unreached']} reached by no test) of {total} that are not equivalent"
    )
    alive = [mutant for mutant in chosen if outcomes[mutant.name] in ("survived", "unreached")]
    return [
        f"{PACKAGE.relative_to(ROOT)}/{mutant.file}:{mutant.line} {outcomes[mutant.name]} {mutant.name}"
        for mutant in alive
    ]


def _say(text: str) -> None:
    os.write(TERMINAL, f"{text}\n".encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", default=list(FOLDERS))
    parser.add_argument("--sample", type=int, help="number of mutants of each path; all if not given")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--tests", nargs="+", type=Path, help="tests to run in place of those of the folder")
    parser.add_argument("--match", default="", help="only mutants with this text in their name")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs found")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    survivors, lines, reasons = [], [], equivalent()
    for path in asked.paths:
        every = [each for each in all_mutants(path) if asked.match in each.name and each.name not in reasons]
        chosen = every
        if asked.sample is not None and asked.sample < len(every):
            places = list(range(len(every)))
            random.Random(asked.seed).shuffle(places)  # so a larger sample contains the smaller ones
            chosen = [every[place] for place in sorted(places[: asked.sample])]
        tests = [tests.resolve() for tests in asked.tests or [tests_of(folder_of(path))]]
        outcomes = try_mutants(path, chosen, tests, Options(asked.processes, asked.fresh))
        lines.append((path, len(every), chosen, outcomes))
    _say("")
    for line in lines:
        survivors += report(*line)
    (BUILD / "survivors.txt").write_text("".join(f"{name}\n" for name in survivors))
    _say(f"{len(survivors)} survivors: {(BUILD / 'survivors.txt').relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
