"""Pages of the documentation as tests run them: their Python, their commands, and the packages that they describe."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.helpers import warm

ROOT = Path(__file__).parents[2]
EXTEND = sorted((ROOT / "docs" / "extend").glob("*.md"))
FILE = re.compile(r"# ([\w.]+\.py)\n")
"""The first line of a block that is a file of its own."""

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Commands that other tests run, or that need what a test must not touch; each is checked to exist.
ELSEWHERE = {"make", "pip"}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each block of code."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all Python of a page in one session, with its commands in between, in a folder with the examples."""
    monkeypatch.chdir(folder)
    shutil.copytree(ROOT / "examples", folder / "examples")
    monkeypatch.syspath_prepend(str(folder))
    session: dict[str, object] = {"__name__": "__main__"}
    for language, text in blocks(page):
        if language == "python" and (file := FILE.match(text)):
            (folder / file[1]).write_text(text)
        elif language == "python":
            exec(compile(text, str(page), "exec"), session)
        elif language == "toml":
            install(folder, tomllib.loads(text)["project"])
        elif language == "bash":
            for line in text.splitlines():
                run_command(line, folder)
    for name in [name for name, module in sys.modules.items() if lies_in(module, folder)]:
        del sys.modules[name]


def install(folder: Path, project: dict[str, Any]) -> None:
    """Install the distribution that a ``pyproject.toml`` describes into a folder on the path."""
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines: list[str] = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    importlib.invalidate_caches()


def lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).parent == folder


def run_command(line: str, folder: Path) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[0] in ELSEWHERE:
        check_exists(words)
        return
    if words[0] == "hopfleet":
        words = [sys.executable, "-m", *words]
    elif words[0] == "python":
        words[0] = sys.executable
    done = warm.run(words, cwd=folder, text=True)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def check_exists(words: list[str]) -> None:
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets), words
    else:
        extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
        for wanted in re.findall(r"\[(.*?)\]", " ".join(words)):
            assert set(wanted.split(",")) <= extras, words
