"""Every example runs, as a script without further ado, and says what it is for."""

from __future__ import annotations

import ast
import inspect
import runpy
import sys
from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet.testing.searches import SearchSuite
from tests.helpers.apart import passes_apart

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
ADAPTERS = "jax", "keras", "lightning", "transformers"
"""Frameworks whose tests run in sessions of their own."""


def marks(example: Path) -> list[pytest.MarkDecorator]:
    if example.stem in ("digits", "own_loop"):
        return []
    return [pytest.mark.slow, *[pytest.mark.adapter] * example.stem.startswith(ADAPTERS)]


MARKED = [pytest.param(path, marks=marks(path)) for path in EXAMPLES]
"""All examples; make test runs two of them."""


# Keras converts its variables in a way that NumPy will not support for ever.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("example", MARKED, ids=lambda path: path.stem)
def test_example(
    example: Path,
    own_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if example.stem.startswith(ADAPTERS) and passes_apart(request, example.stem.partition("_")[0]):
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(example)])
    values = runpy.run_path(str(example), run_name="__main__")
    results = values["results"]
    assert isinstance(results, hop.Results)
    assert results.finished
    assert all(trial.state is hop.TrialState.COMPLETED for trial in results.trials)
    assert results.best.metrics["accuracy"] > 0.6
    assert results.best.model() is not None
    assert "never read" not in capfd.readouterr().out


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_say_what_they_are_and_how_to_run_them(example: Path) -> None:
    text = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8")))
    assert text is not None
    assert f"python examples/{example.name}" in text


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


class TestTheSearchOfTheExample(SearchSuite):
    experiments = 20

    def make(self) -> hop.Search:
        # Only here, since the example imports scikit-learn, which takes as long as most tests.
        from examples.own_search import Climb

        return Climb()

    def test_it_is_short(self) -> None:
        assert len(inspect.getsource(type(self.make())).splitlines()) < 40
