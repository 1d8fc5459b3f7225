"""The checker of the house finds long files, too many ``Any``, mutable state in modules, and modules that write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_house import (
    ANY_LIMIT,
    MOST_LINES,
    WRITER,
    any_count,
    encoding_problems,
    length_problems,
    main,
    state_problems,
    writing_problems,
)


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


@pytest.mark.parametrize(
    "line",
    [
        *("open(path, 'w')", "open(path, mode='a')", "path.open('xb')", "path.open(mode='r+')", "io.open(path, 'w')"),
        *("path.write_text('')", "path.write_bytes(b'')", "(a / b).touch()", "path.mkdir()", "path.unlink()"),
        *("path.rmdir()", "path.rename(other)", "path.replace(other)", "path.symlink_to(a)", "path.hardlink_to(a)"),
        *("os.open(path, os.O_CREAT)", "os.remove(path)", "os.unlink(path)", "os.rename(a, b)", "os.replace(a, b)"),
        *("os.mkdir(path)", "os.makedirs(path)", "os.rmdir(path)", "os.truncate(path, 0)", "os.link(a, b)"),
        *("shutil.rmtree(path)", "shutil.move(a, b)", "shutil.copyfile(a, b)", "sh.rmtree(path)", "path.chmod(0)"),
        *("import tempfile", "from tempfile import mkdtemp", "from shutil import rmtree", "from os import unlink"),
        *("map(os.unlink, paths)", "file.truncate(0)"),
    ],
)
def test_what_writes(line: str) -> None:
    text = f"import io, os, shutil\nimport shutil as sh\n{line}\n"
    assert len(list(writing_problems("src/hopfleet/a.py", text))) >= 1
    assert list(writing_problems(f"{WRITER}a.py", text)) == []


@pytest.mark.parametrize(
    "line",
    [
        *("open(path)", "path.open('rb')", "open(path, 'r')", "archive.open(about, 'w')", "text.replace('a', 'b')"),
        *("dataclasses.replace(unit)", "replace(unit, a=1)", "os.open(path, os.O_RDONLY)", "shutil.disk_usage(path)"),
        *("write_text(path, text, durable=True)", "self.touch(trial)", "path.read_text()", "remote.makedirs(path)"),
    ],
)
def test_what_writes_nothing(line: str) -> None:
    text = f"import dataclasses, os, shutil\nfrom hopfleet.support.files import write_text\n{line}\n"
    assert list(writing_problems("src/hopfleet/a.py", text)) == []


def test_any_is_counted_in_code_alone() -> None:
    assert any_count('from typing import Any\ndef f(x: Any) -> list[Any]:\n    """Any."""\n') == 3


def test_a_whole_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / ANY_LIMIT[0]
    folder.mkdir(parents=True)
    assert main([str(tmp_path)]) == 0
    (folder / "a.py").write_text("x: Any\n" * ANY_LIMIT[1] + "CACHE = {}\n")
    (tmp_path / "tests" / "store").mkdir(parents=True)
    (tmp_path / "tests" / "store" / "test_a.py").write_text("x = 1\n" * (MOST_LINES + 1))
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{ANY_LIMIT[0]}/a.py:31: mutable state in a module; give it an owner",
        "tests/store/test_a.py: has 451 lines, at most 450; find the seam",
        f"{ANY_LIMIT[0]}: has 30 Any, must have fewer than 30",
    ]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("path.read_text()", 1),
        ("open(path)", 1),
        ("open(path, 'w', newline='')", 1),
        ("os.fdopen(number, 'a')", 1),
        ("path.open('r')", 1),
        ("subprocess.run(command, text=True)", 1),
        ("path.read_text(encoding='utf-8')", 0),
        ("open(path, 'rb')", 0),
        ("archive.open(info, 'w')", 0),
        ("os.fdopen(number, 'wb')", 0),
        ("write_text(path, text)", 0),
    ],
)
def test_text_in_the_encoding_of_the_locale(line: str, found: int) -> None:
    assert len(list(encoding_problems("a.py", line))) == found
