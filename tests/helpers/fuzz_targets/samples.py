"""Targets with known outcomes, which the tests of the fuzzing engine use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hopfleet.errors import UsageError
from tests.helpers.mutation import Mutator


def wary(mutator: Mutator, folder: Path) -> None:
    """Refuse every second input in words."""
    path = folder / "input.json"
    path.write_text('{"a": [1, 2.5, "x"], "b": {"c": null}}')
    mutator.file(path)
    if mutator.random.random() < 0.5:
        raise UsageError(f"{path}: cannot be read; write it again")


def careless(mutator: Mutator, folder: Path) -> None:
    """Raise an error that is none of Hopfleet's."""
    raise KeyError("raw")


def crashing(mutator: Mutator, folder: Path) -> None:
    """End the process."""
    os.kill(os.getpid(), signal.SIGKILL)
