"""The checker of the house finds long files, too many ``Any`` and mutable state in modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_house import ANY_LIMIT, MOST_LINES, any_count, length_problems, main, state_problems


@pytest.mark.parametrize(("lines", "found"), [(MOST_LINES, 0), (MOST_LINES + 1, 1)])
def test_long_files(lines: int, found: int) -> None:
    assert len(list(length_problems("a.py", "x = 1\n" * lines))) == found


@pytest.mark.parametrize(
    "line",
    [
        *("CACHE = {}", "SEEN: set[str] = set()", "QUEUE = collections.deque()", "NUMBERS = itertools.count()"),
        *("FOUND = list[int]()", "def f():\n    global X\n    X = 1"),
    ],
)
def test_state_of_modules(line: str) -> None:
    assert len(list(state_problems("a.py", line + "\n"))) == 1


@pytest.mark.parametrize(
    "line",
    [
        *("TABLE = {'a': 1}", "NAMES = frozenset()", "CHOICES = list(range(3))", "def f():\n    found = {}"),
    ],
)
def test_what_is_no_state_of_a_module(line: str) -> None:
    assert list(state_problems("a.py", line + "\n")) == []


def test_any_is_counted_in_code_alone() -> None:
    assert any_count('from typing import Any\ndef f(x: Any) -> list[Any]:\n    """Any."""\n') == 3


def test_a_whole_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / ANY_LIMIT[0]
    folder.mkdir(parents=True)
    assert main([str(tmp_path)]) == 0
    (folder / "a.py").write_text("x: Any\n" * ANY_LIMIT[1] + "CACHE = {}\n")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{ANY_LIMIT[0]}/a.py:31: mutable state in a module; give it an owner",
        f"{ANY_LIMIT[0]}: has 30 Any, must have fewer than 30",
    ]
