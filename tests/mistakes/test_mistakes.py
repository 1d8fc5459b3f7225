"""The table of mistakes: what users do wrong, and what they are told.

Each area has a file with a list of rows. A row passes if the user is told the value, the constraint and the remedy in a
few lines, without a traceback or the insides of a library.
"""

from __future__ import annotations

import functools
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from hopfleet.errors import HopfleetError
from hopfleet.support import registry
from tests.helpers.mistakes import CommandFailed, Mistake, TrialFailed, Warned
from tests.mistakes import cli, cluster, control, data, experiment, results, search, space, task

AREAS = (space, task, data, experiment, search, control, cli, results, cluster)
TABLE = [mistake for area in AREAS for mistake in area.MISTAKES]

ENTRY_POINTS = functools.cache(entry_points)
"""The packages that are installed do not change from row to row."""

LINES, WIDTH = 6, 100
"""A message takes at most this many lines of a terminal."""

INSIDES = re.compile(r"Traceback \(most recent|cannot pickle| at 0x[0-9a-f]{6}|_pickle\.|site-packages")


SLOW = {"a mode that Weights & Biases does not have", "an MLflow server that does not answer"}
"""Mistakes with packages that take long to import."""

ROWS = [
    pytest.param(mistake, id=mistake.name, marks=[pytest.mark.slow] if mistake.name in SLOW else [])
    for mistake in TABLE
]


@pytest.mark.parametrize("mistake", ROWS)
def test_a_mistake_is_explained(mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "entry_points", ENTRY_POINTS)
    with pytest.raises(mistake.expect) as caught:
        mistake.run()
    # An unknown name is an AttributeError, or a TypeError for an argument, as everywhere in Python.
    kinds = HopfleetError | TrialFailed | Warned | CommandFailed
    assert type(caught.value) in (AttributeError, TypeError) or isinstance(caught.value, kinds)
    text = str(caught.value)
    missing = [words for words in mistake.says if words not in text]
    assert not missing, f"{missing} not in: {text}"
    assert not INSIDES.search(text), text
    assert sum(-(-len(line) // WIDTH) for line in text.splitlines()) <= LINES, text


def test_the_names_of_mistakes_are_unique() -> None:
    names = [mistake.name for mistake in TABLE]
    assert len(set(names)) == len(names)
