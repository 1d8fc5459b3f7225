"""What the tests of the command line share: running a command in this process, and experiments to look at."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.cli import main
from hopfleet.testing.tasks import CountingTask

#: A file as a user writes it, with a task that needs no framework. {more} takes further arguments.
SCRIPT = """
import numpy as np

import hopfleet as hop
from hopfleet.testing.tasks import CountingTask


class Mine(CountingTask):
    pass


experiment = hop.Experiment(
    Mine(),
    train={{"x": np.arange(40.0)}},
    valid={{"x": np.arange(8.0)}},
    space={{"number": hop.grid_search([1, 2, 3])}},
    search=hop.Grid(max_epochs=2),
    partitions=4,
    batch_size=5,
    {more}
)
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Outcome]


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


def fitted(name: str, space: Mapping[str, Any] | None = None, **more: Any) -> hop.Results:
    """A finished experiment in the home folder."""
    return counting(name, space, **more).fit(quiet=True)


def counting(name: str, space: Mapping[str, Any] | None = None, **more: Any) -> hop.Experiment:
    return hop.Experiment(
        CountingTask(),
        train={"x": np.arange(40.0)},
        valid={"x": np.arange(8.0)},
        space=dict(space or {"number": hop.grid_search([1, 2, 3])}),
        **{
            "search": hop.Grid(max_epochs=2),
            "partitions": 4,
            "batch_size": 5,
            "backend": "inline",
            "name": name,
            **more,
        },
    )


FAULTY = {"fault": hop.grid_search([False, True])}
