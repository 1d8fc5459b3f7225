"""The command profile: the table of strategies and the choice. Trial runs themselves are tested with teams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hopfleet.domain.placement import TeamShape
from hopfleet.forecast.trial_runs import TrialRun
from tests.helpers.cli import NET, Cli

SCRIPT = f"""{NET}
experiment = hop.Experiment(
    Net(), train={{"x": np.ones((64, 4), np.float32)}}, space={{"width": 8}}, search=hop.Grid(max_epochs=1)
)
"""

RATES = {"single": 100.0, "ddp:2": 190.0, "fsdp:2": 0.0}


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "net.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture(autouse=True)
def tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_trials(experiment: Any, place: Any, shapes: Sequence[TeamShape], tell: Any) -> Iterator[TrialRun]:
        for shape in shapes:
            rate = RATES[str(shape)]
            yield TrialRun({"width": 8}, shape, rate, 2048, "" if rate else "RuntimeError: too large", batch=475)

    monkeypatch.setattr("hopfleet.experiment.trial_runs.run_trials", run_trials)


def test_the_table_and_the_choice(cli: Cli, target: str) -> None:
    given = ("--parallelism", "ddp:2", "--parallelism", "fsdp:2", "--trials", "4", "--devices", "8")
    outcome = cli("profile", target, *given)
    assert outcome.code == 0, outcome.err
    assert ["width=8", "ddp:2", "2.5", "s", "190", "2.0", "KiB"] in [line.split() for line in outcome.out.splitlines()]
    assert "fsdp:2    RuntimeError: too large" in outcome.out
    assert "width=8: ddp:2 (each trial can have 2 of 8 devices; 1.90 times as fast as single)" in outcome.out


def test_json(cli: Cli, target: str) -> None:
    found = json.loads(cli("profile", target, "--trials", "8", "--devices", "8", "--json").out)
    assert [run["parallelism"] for run in found["runs"]] == ["single", "ddp:2"]
    assert [run["seconds_per_batch"] for run in found["runs"]] == [4.75, 2.5]
    assert found["choices"][0]["parallelism"] == "single"


def test_nothing_works(cli: Cli, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RATES, "single", 0.0)
    monkeypatch.setitem(RATES, "ddp:2", 0.0)
    outcome = cli("profile", target, "--devices", "2")
    assert outcome.code == 1
    assert "width=8: none (no strategy works: RuntimeError: too large)" in outcome.out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param(("--trials", "0"), "--trials=0: must be at least 1", id="trials"),
        pytest.param(("--parallelism", "dpp:2"), "did you mean 'ddp'", id="strategy"),
    ],
)
def test_mistakes(given: tuple[str, ...], said: str, cli: Cli, target: str) -> None:
    outcome = cli("profile", target, *given)
    assert outcome.code == 2
    assert said in outcome.err
