"""A space that is a function: views show the values under the names that the function asked for."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.cli import main
from hopfleet.domain import messages as m
from hopfleet.domain import space as spaces
from hopfleet.errors import Interrupted
from hopfleet.monitor.charts.charts import chart_data
from hopfleet.monitor.page import results_html
from hopfleet.monitor.terminal.tables import best_text
from hopfleet.store.folder import RunFolder
from hopfleet.ui.board import Board
from hopfleet.ui.details import trial_details
from tests.helpers.curve_task import asked, curve_experiment

NAMES = {"log_lr", "blocks", "act.name", "rate"}
"""The names that ``asked`` asks for: one with a dot, one in some trials only."""

KEYS = {"lr", "width", "dropout"}
"""Keys of the configuration that are no such names."""


def same_names(trial: Any) -> None:
    trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    trial.suggest_int("width", 32, 128)
    trial.suggest_categorical("activation", ["relu", "tanh"])
    trial.suggest_float("dropout", 0, 0.5)


def made(chosen: Any) -> dict[str, Any]:
    """The configuration that the function makes of the values."""
    assert chosen.keys() <= NAMES
    return spaces.configure(asked, seed=0, number=0, fixed=chosen)


class Interruption(hop.Callback):
    """Interrupts the run after some epochs."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def on_epoch_end(self, trial: hop.TrialInfo, epoch: int, metrics: Any) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def experiment(name: str, **more: Any) -> hop.Experiment:
    search = more.pop("search", hop.Random(trials=10, max_epochs=1, concurrency=2))
    return curve_experiment(name, space=asked, search=search, initial_configs=[{"blocks": 3}], partitions=1, **more)


def shown(name: str) -> dict[str, Any]:
    return {trial.id: dict(trial.chosen) for trial in hop.load(name)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLEET_HOME", str(home))
        experiment("whole", callbacks=["jsonl"]).fit(quiet=True)
    return home


@pytest.fixture(autouse=True)
def home(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOPFLEET_HOME", str(runs))
    monkeypatch.setenv("COLUMNS", "200")
    return runs


def test_the_values_of_a_trial_make_its_configuration() -> None:
    results = hop.load("whole")
    assert {trial.origin for trial in results} == {"search", "point"}
    for trial in results:
        assert made(trial.chosen) == trial.config
        assert ("rate" in trial.chosen) == (trial.config["activation"] == "tanh")
    assert results.trials[0].chosen["blocks"] == 3
    with pytest.raises(AttributeError, match=r"trial\.chosen\['blocks'\]"):
        _ = results.best.blocks


def test_a_resumed_and_a_loaded_run_show_the_same_names() -> None:
    with pytest.raises(Interrupted):
        experiment("resumed", callbacks=[Interruption(4)]).fit(quiet=True)
    before = shown("resumed")
    results = experiment("resumed").fit(quiet=True)
    assert before.items() < shown("resumed").items()
    assert shown("resumed") == shown("whole") == {trial.id: trial.chosen for trial in results}


@pytest.mark.slow
def test_an_old_journal_without_the_values_shows_configurations(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(spaces, "chosen", lambda *arguments: {})
        experiment("old", callbacks=[Interruption(4)]).fit(quiet=True)
    with closing(sqlite3.connect(home / "old" / "journal.sqlite")) as journal:
        assert not any(
            "chosen" in body for (body,) in journal.execute("SELECT body FROM messages WHERE kind = 'TrialAdded'")
        )
    old = hop.load("old").trials
    assert all(trial.chosen == trial.config for trial in old)
    experiment("old").fit(quiet=True)
    assert [trial.config for trial in hop.load("old")] == [trial.config for trial in hop.load("whole")]
    assert {trial.id for trial in hop.load("old") if trial.chosen == trial.config} == {each.id for each in old}
    assert len(old) < 11


def test_tables_and_charts_show_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    history = hop.load("whole").history
    frame = hop.load("whole").dataframe()
    assert {name for name in frame.columns if name.startswith("config/")} == {f"config/{name}" for name in NAMES}
    assert frame["config/rate"].isna().any()
    for kind in ("parallel", "importance"):
        text = str(chart_data(history, kind))
        assert all(f"'{name}'" in text for name in NAMES)
        assert not any(f"'{key}'" in text for key in KEYS)
    assert "log_lr=" in best_text(history)
    assert "<th" in results_html(history) and "blocks</th>" in results_html(history)
    main(["show", "whole"])
    heads = next(line for line in capsys.readouterr().out.splitlines() if "state" in line and "trial" in line)
    assert set(heads.split()) >= NAMES
    assert not set(heads.split()) & KEYS
    main(["export", "whole", "--csv", "-"])
    heads = next(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert {f"config/{name}" for name in NAMES} <= set(heads)


def test_one_trial_is_shown_with_its_configuration_too(capsys: pytest.CaptureFixture[str]) -> None:
    best = hop.load("whole").best
    for command in (["show", "whole", "--trial", best.id], ["best", "whole"]):
        main(command)
        text = capsys.readouterr().out
        assert "blocks" in text
        assert str(dict(best.config)) in text
        main([*command, "--json"])
        found = json.loads(capsys.readouterr().out)
        assert (found["config"], found["chosen"]) == (best.config, best.chosen)


def test_trackers_get_both(home: Path) -> None:
    lines = map(json.loads, (home / "whole" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    trials = [line for line in lines if line["kind"] == "trial"]
    assert {line["trial"]: line["chosen"] for line in trials} == shown("whole")
    assert all(made(line["chosen"]) == line["config"] for line in trials)


def test_the_page_gets_both_where_they_differ(home: Path) -> None:
    board = Board(RunFolder(home / "whole"))
    board.advance(60)
    for row in board.snapshot()["trials"]:
        assert made(row["chosen"]) == row["config"] == trial_details(board, row["id"])["full_config"]
    curve_experiment("same", space=same_names, search=hop.Random(trials=2, max_epochs=1)).fit(quiet=True)
    board = Board(RunFolder(home / "same"))
    board.advance(60)
    assert all(row["config"] is None and row["chosen"] for row in board.snapshot()["trials"])
    assert all(message.chosen == {} for message in added(home / "same"))


def added(folder: Path) -> list[m.TrialAdded]:
    from hopfleet.store.local import open_journal

    with closing(open_journal(RunFolder(folder))) as journal:
        return [message for _, _, message in journal.read() if isinstance(message, m.TrialAdded)]
