"""What the tests of the command line share: running a command in this process, and experiments to look at."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hopfleet.cli import main
from tests.helpers.cli import SCRIPT, Cli, Outcome


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Runs a command line in this process. Whatever it does to the process is undone after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HOPFLEET_DEBUG", "0")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Outcome:
        code = main(arguments)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Writes a user's file."""

    def write(more: str = "backend='inline'", *, below: str = "", name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(SCRIPT.format(more=more) + below)
        return path

    return write
