"""The demo, made shorter: one epoch of one trial per network."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet import demo
from hopfleet.runtime.loop import Loop
from tests.helpers.cli import Cli, fitted


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "EPOCHS", 1)
    monkeypatch.setattr(demo, "SPACE", {**demo.SPACE, "lr": 0.01, "batch_size": 64})


def test_there_is_something_to_choose_from() -> None:
    experiment = demo.experiment(name="demo", folder=None, workers=2)
    configs = experiment.search.examples(experiment.search.trials)
    assert len(configs) == 16
    assert {config["network"] for config in configs if config} == set(demo.NETWORKS)


def test_no_row_is_both_trained_and_validated() -> None:
    train, valid = demo.data()
    assert len(train["digit"]) + len(valid["digit"]) == 1797
    assert len(valid["digit"]) == demo.VALID_ROWS


@pytest.mark.usefixtures("short")
def test_demo(cli: Cli) -> None:
    outcome = cli("demo")
    assert outcome.code == 0
    results = hop.load("demo")
    assert [trial.config["network"] for trial in results.trials] == list(demo.NETWORKS)
    assert str(results.best.checkpoint) in outcome.out
    for picture in ("curves.png", "gantt.png"):
        path = results.folder.plots / picture
        assert str(path) in outcome.out
        assert path.read_bytes().startswith(b"\x89PNG")
    for command in ("hopfleet show demo", "hopfleet best demo"):
        assert command in outcome.out
    assert results.best.model() is not None


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_an_interrupted_demo_goes_on_and_a_second_one_replaces_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "SPACE", {**demo.SPACE, "network": "mlp"})
    monkeypatch.setattr(hop, "Experiment", functools.partial(hop.Experiment, backend="inline"))
    begin, folder = Loop.run, str(tmp_path / "there")

    def drained(loop: Loop, first: Any) -> bool:
        loop.drain()
        return begin(loop, first)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "run", drained)
        stopped = cli("demo", "--folder", folder, "--name", "mine", "--workers", "1", "--quiet")
    assert stopped.code == 130
    assert f"hopfleet resume {folder}" in stopped.err
    assert cli("resume", folder).code == 0
    assert cli("demo", "--folder", folder, "--name", "mine", "--workers", "1", "--quiet").code == 0


def test_the_demo_replaces_nothing_of_the_users(cli: Cli) -> None:
    fitted("demo")
    outcome = cli("demo")
    assert outcome.code == 2
    assert "choose another --name" in outcome.err
    assert hop.load("demo").finished


def test_what_the_demo_needs(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else found(name))
    outcome = cli("demo")
    assert outcome.code == 1
    assert "pip install 'hopfleet[demo]'" in outcome.err
