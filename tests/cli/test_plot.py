"""hopfleet plot: pictures and their data."""

from __future__ import annotations

from pathlib import Path

import pytest

import hopfleet as hop
from tests.helpers.cli import Cli, fitted

TWO = {"number": hop.grid_search([1, 2, 3]), "kind": hop.grid_search(["a", "b"])}


@pytest.mark.slow
def test_the_picture_lies_in_the_run_folder_or_where_it_was_asked_for(cli: Cli, tmp_path: Path) -> None:
    results = fitted("mine", TWO)
    outcome = cli("plot", "mine", "--kind", "parallel")
    assert outcome.code == 0 and str(results.folder.plots / "parallel.png") in outcome.out
    assert (results.folder.plots / "parallel.png").read_bytes().startswith(b"\x89PNG")
    assert cli("plot", "mine", "-o", str(tmp_path / "curves.svg")).code == 0
    assert (tmp_path / "curves.svg").read_bytes().startswith(b"<?xml")


def test_json_prints_the_data_and_draws_nothing(cli: Cli) -> None:
    results = fitted("mine", TWO)
    data = cli("plot", "mine", "--kind", "parallel", "--json").json
    assert [axis["name"] for axis in data["axes"]] == ["number", "kind", "loss"]
    assert data == results.plot_data("parallel") | {"axes": data["axes"]}
    assert not results.folder.plots.exists() or not list(results.folder.plots.iterdir())
    assert cli("plot", "mine", "--kind", "importance", "--epoch", "1", "--json").json["epoch"] == 1


def test_metrics_are_named_with_their_modes(cli: Cli) -> None:
    fitted("mine", TWO)
    data = cli("plot", "mine", "--kind", "pareto", "--metric", "loss:min", "--metric", "train_loss:max", "--json").json
    assert (data["metrics"], data["modes"]) == (["loss", "train_loss"], ["min", "max"])
    assert cli("plot", "mine", "--metric", "train_loss", "--json").json["metric"] == "train_loss"
    wrong = cli("plot", "mine", "--metric", "loss:min")
    assert wrong.code == 2 and "kind='curves' takes one name" in wrong.err


def test_what_makes_no_sense_is_refused_with_the_remedy(cli: Cli) -> None:
    results = fitted("mine", TWO)
    for kind, words in {
        "pie": "must be one of curves, gantt, importance, lineage, parallel, pareto, rungs",
        "lineage": "has no clones",
        "rungs": "kind='curves' shows its learning curves",
        "pareto": "needs two or three metrics",
    }.items():
        outcome = cli("plot", "mine", "--kind", kind)
        assert outcome.code == 2 and words in outcome.err, kind
        assert not (results.folder.plots / f"{kind}.png").exists()
