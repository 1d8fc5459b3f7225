"""Recovery: what is left of a damaged run is rebuilt, what is lost is named, and nothing is deleted."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.cli import main
from hopfleet.runs.recovery import recover
from hopfleet.store.folder import RunFolder
from hopfleet.support.files import digest
from hopfleet.testing.tasks import CountingTask


def experiment() -> hop.Experiment:
    asked = {"partitions": 2, "batch_size": 8, "backend": "inline", "name": "mine"}
    space, search = {"number": hop.grid_search([1, 2])}, hop.Grid(max_epochs=3)
    return hop.Experiment(CountingTask(), train={"x": np.arange(40.0)}, space=space, search=search, **asked)


@pytest.fixture
def results() -> hop.Results:
    return experiment().fit(quiet=True)


def outcome(results: hop.Results) -> object:
    return [(trial.id, trial.config, trial.history, digest(trial.last_checkpoint)) for trial in results.trials]


def test_a_whole_run_stays_as_it_is(results: hop.Results, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recover", "mine"]) == 0
    assert "Nothing to recover" in capsys.readouterr().out
    assert results.verify().ok


@pytest.mark.parametrize("damage", ["missing", "damaged", "modified"])
def test_a_definition_is_rebuilt_from_the_journal(results: hop.Results, damage: str) -> None:
    path = results.folder.definition_file
    definition = json.loads(path.read_text())
    if damage == "missing":
        path.unlink()
    else:
        path.write_text("{" if damage == "damaged" else json.dumps(definition | {"mode": "max"}))
    assert main(["verify", "mine"]) == 1
    assert main(["recover", "mine"]) == 0
    assert json.loads(path.read_text()) == definition
    assert results.verify().ok
    assert path.with_name("experiment.damaged-1.json").exists() == (damage != "missing")


def test_a_damaged_journal_is_rebuilt_and_the_rest_is_trained_again(results: hop.Results) -> None:
    before = outcome(results)
    database = sqlite3.connect(results.folder.journal_file)
    with database:
        database.execute("UPDATE messages SET body = '{}' WHERE number = 30")
    database.close()
    found = recover(results.folder)
    assert "29 messages" in found.rebuilt[0] and "hopfleet resume mine" in found.lost[0] and not found.ok
    assert results.folder.path.joinpath("journal.damaged-1.sqlite").is_file()
    assert outcome(experiment().fit(quiet=True)) == before
    assert hop.load("mine").verify().ok


def test_without_a_journal_a_table_tells_what_is_known(
    results: hop.Results, capsys: pytest.CaptureFixture[str]
) -> None:
    best = {trial.id: (dict(trial.config), trial.metrics, trial.checkpoint.name) for trial in results.trials}
    models = {path: path.read_bytes() for path in results.folder.models()}
    results.folder.journal_file.unlink()
    (results.folder.trials / "t0002.json").unlink()
    assert main(["recover", "mine"]) == 1
    told = capsys.readouterr().out
    assert "can be neither continued nor replayed" in told and "metrics of t0002" in told
    table = {row["trial"]: row for row in json.loads((results.folder.path / "recovered.json").read_text())}
    config, metrics, checkpoint = best["t0001"]
    assert (table["t0001"]["config"], table["t0001"]["best"]["metrics"]) == (config, metrics)
    (chosen,) = [model for model in table["t0001"]["models"] if model["best"]]
    assert chosen["file"] == f"checkpoints/t0001/{checkpoint}"
    assert chosen["sha256"] == digest(results.folder.path / chosen["file"])
    assert table["t0002"]["config"] is None and table["t0002"]["models"]
    assert {path: path.read_bytes() for path in results.folder.models()} == models


def test_only_models_are_left(results: hop.Results, tmp_path: Path) -> None:
    for path in (results.folder.journal_file, results.folder.definition_file):
        path.unlink()
    shutil.rmtree(results.folder.trials)
    found = recover(RunFolder(results.folder.path))
    assert [row["trial"] for row in found.trials] == ["t0001", "t0002"]
    assert len(found.lost) == 3 and "experiment.json: it is missing" in found.lost[0]


def test_records_follow_a_run(results: hop.Results) -> None:
    record = json.loads((results.folder.trials / "t0001.json").read_text())
    assert record["state"] == "completed" and record["last"]["epoch"] == results["t0001"].history[-1]["epoch"]
    hop.control("mine").delete("t0001")
    experiment().fit(quiet=True)
    assert [path.name for path in results.folder.trials.iterdir()] == ["t0002.json"]
