"""Mutants: what is changed, in which functions of this process, and what becomes of forks that try them."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from pathlib import Path

import pytest

from tools.mutants import __main__ as tool
from tools.mutants.__main__ import EQUIVALENT, all_mutants, equivalent
from tools.mutants.campaign import Earlier, Verdict, traced
from tools.mutants.forks import TIMEOUT, Job, limit_step, run
from tools.mutants.mutators import Mutant, mutants
from tools.mutants.swap import loaded_functions, swap

SOURCE = '''
"""A module."""
LIMIT = 3

class Counter:
    step = 2

    def __init__(self, start=0, *, checked: bool = True):
        """Begin."""
        self.count = start
        self.checked = checked

    def add(self, numbers):
        for number in numbers:
            if number < LIMIT and not number == 1:
                continue
            self.count += number * self.step
        return self.count

def listed(numbers):
    return [min(number, 9) for number in numbers if number]

def checks(least):
    return lambda number: number > least

is_large = checks(5)

def made(numbers):
    yield numbers
    if numbers:
        yield from (lambda: [1.5])()

class Paired(Counter):
    def add(self, numbers):
        return super().add(number for number, _ in zip(numbers, numbers, strict=True))
'''

CHANGES = [
    "Counter.__init__(): True -> False in def __init__(self, start=0, *, checked: bool = True):",
    "Counter.__init__(): 0 -> 1 in def __init__(self, start=0, *, checked: bool = True):",
    "Counter.__init__(): self.count = start -> pass",
    "Counter.__init__(): self.checked = checked -> pass",
    "Counter.add(): number < LIMIT and (not number == 1) -> number < LIMIT or not number == 1",
    "Counter.add(): number < LIMIT -> number <= LIMIT",
    "Counter.add(): not number == 1 -> number == 1",
    "Counter.add(): number == 1 -> number != 1",
    "Counter.add(): 1 -> 2 in if number < LIMIT and not number == 1:",
    "Counter.add(): continue -> break",
    "Counter.add(): self.count += number * self.step -> self.count -= number * self.step",
    "Counter.add(): self.count += number * self.step -> pass",
    "Counter.add(): number * self.step -> number / self.step",
    "Counter.add(): return self.count -> return None",
    "listed(): return [min(number, 9) for number in numbers if number] -> return None",
    "listed(): min(number, 9) -> max(number, 9)",
    "listed(): 9 -> 10 in return [min(number, 9) for number in numbers if number]",
    "listed(): for number in numbers if number -> for number in numbers",
    "checks(): return lambda number: number > least -> return None",
    "checks(): number > least -> number >= least",
    "made(): yield numbers -> pass",
    "made(): if numbers -> if not numbers",
    "made(): yield from (lambda: [1.5])() -> pass",
    "made(): 1.5 -> 3.0 in yield from (lambda: [1.5])()",
    "Paired.add(): return super().add((number for number, _ in zip(numbers, numbers, strict=True))) -> return None",
]


def found(text: str) -> Mutant:
    (mutant,) = [each for each in mutants("module.py", SOURCE) if text in each.name]
    return mutant


def test_one_expression_or_statement_of_a_function_changes() -> None:
    assert [mutant.name.removeprefix("module.py::") for mutant in mutants("module.py", SOURCE)] == CHANGES


def test_names_do_not_depend_on_lines_and_are_unique() -> None:
    lower = mutants("module.py", "\n\n" + SOURCE)
    assert [mutant.name for mutant in lower] == [mutant.name for mutant in mutants("module.py", SOURCE)]
    twice = "def f(x):\n    x.a += 1\n    x.a += 1\n"
    names = [mutant.name for mutant in mutants("module.py", twice)]
    assert len(set(names)) == len(names) == 6


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("return self.count -> return None", (None, [2], [[7], 1.5])),
        ("self.count += number * self.step -> self.count -=", (-14, [2], [[7], 1.5])),
        ("0 -> 1 in def __init__", (15, [2], [[7], 1.5])),
        ("for number in numbers if number ->", (14, [0, 2], [[7], 1.5])),
        ("yield numbers -> pass", (14, [2], [1.5])),
    ],
)
def test_functions_of_this_process_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: object
) -> None:
    name = f"mutated_{tmp_path.name.rpartition('_')[2]}"
    file = tmp_path / f"{name}.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(name)
    counter = module.Counter  # a reference that others have is changed, too
    swap(found(text), SOURCE, file, loaded_functions(tmp_path))
    assert (counter().add([7]), module.listed([0, 2]), list(module.made([7]))) == expected


def test_functions_that_were_made_at_the_import_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mutated_closure.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("mutated_closure")
    assert [module.is_large(5), module.is_large(6)] == [False, True]
    swap(found("number > least -> number >= least"), SOURCE, file, loaded_functions(tmp_path))
    assert [module.is_large(4), module.is_large(5)] == [False, True]


def test_a_method_that_calls_super_can_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "class Loud(str):\n    def upper(self):\n        return super().upper()\n"
    file = tmp_path / "mutated_super.py"
    file.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("mutated_super")
    (mutant,) = mutants("mutated_super.py", source)
    assert mutant.change == "return super().upper() -> return None" and module.Loud("a").upper() == "A"
    swap(mutant, source, file, loaded_functions(tmp_path))
    assert module.Loud("a").upper() is None


def test_a_function_that_is_not_loaded_cannot_change(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="not loaded"):
        swap(found("return self.count"), SOURCE, tmp_path / "module.py", {})


def test_forks_end_in_time_and_tell_what_they_found() -> None:
    def tells(folder: Path) -> int:
        (folder / "result").write_text("this")
        return 3

    def fails(folder: Path) -> int:
        raise ValueError

    def waits(folder: Path) -> int:
        threading.Event().wait()
        return 0

    def dies(folder: Path) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def kills(folder: Path) -> int:
        os.kill(os.getppid(), signal.SIGKILL)
        return 0

    def waits_in_a_step(folder: Path) -> int:
        limit_step(60.0, 0.1)
        return waits(folder)

    works = [tells, fails, waits, waits_in_a_step, dies, kills]
    jobs = [Job(work.__name__, work, 60.0, 0.2 if work is waits else 60.0) for work in works]
    outcomes = {ended.subject: (ended.outcome, ended.result) for ended in run(jobs, 2)}
    assert outcomes == {
        "tells": ("3", "this"),
        "fails": ("70", ""),
        "waits": (TIMEOUT, ""),
        "waits_in_a_step": (TIMEOUT, ""),
        "dies": ("SIGKILL", ""),
        "kills": ("70", ""),
    }


@pytest.mark.slow
def test_each_equivalent_mutant_exists_and_has_a_reason() -> None:
    files = {name.partition("::")[0] for name in equivalent()}
    names = {mutant.name for file in files for mutant in all_mutants(file)}
    assert sorted(set(equivalent()) - names) == [], f"remove them from {EQUIVALENT.name}"
    assert all(reason for reason in equivalent().values())


def test_every_mutant_compiles() -> None:
    for mutant in mutants("module.py", SOURCE):
        assert mutant.code(SOURCE, "module.py").co_name in ("__init__", "add", "listed", "checks", "made")


def test_survivors_are_tried_again_with_changed_tests_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROOT", "PACKAGE", "BUILD"):
        monkeypatch.setattr(tool, name, tmp_path)
    (tmp_path / "module.py").write_text(SOURCE)
    tests = tmp_path / "tests"
    tests.mkdir()
    first, second = tests / "test_first.py", tests / "test_second.py"
    first.write_text("")
    killed, survivor, other = mutants("module.py", SOURCE)[:3]
    records = tool.Records("folder", [tests], fresh=False)
    for mutant, outcome in ((killed, "killed"), (survivor, "survived")):
        records.add(Verdict(mutant, outcome))

    def known() -> object:
        return tool.Records("folder", [tests], fresh=False).known([killed, survivor, other])

    assert known() == ({killed.name: "killed", survivor.name: "survived"}, {})
    second.write_text("")
    assert known() == ({killed.name: "killed"}, {survivor.name: Earlier("survived", frozenset([first]))})
    first.write_text("changed")
    assert known() == ({killed.name: "killed"}, {survivor.name: Earlier("survived", frozenset())})
    (tests / "conftest.py").write_text("LIMIT = 1")  # which all tests may use
    assert known() == ({killed.name: "killed"}, {})
    (tmp_path / "module.py").write_text(SOURCE + "\n")
    assert known() == ({}, {})


def test_lines_of_a_folder_are_noted_each_time_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def choose(large):\n    if large:\n        return 9\n    return 1\n"
    for folder, name in (("inside", "traced_inside"), ("outside", "traced_outside")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    inside, outside = importlib.import_module("traced_inside"), importlib.import_module("traced_outside")
    file = str(tmp_path / "inside/traced_inside.py")
    for calls, expected in (([True], {1, 2, 3}), ([False, False], {1, 2, 4}), ([True, False, True], {1, 2, 3, 4})):
        with traced(tmp_path / "inside") as lines:
            assert [inside.choose(large) for large in calls] == [outside.choose(large) for large in calls]
        assert lines == {(file, line) for line in expected}
