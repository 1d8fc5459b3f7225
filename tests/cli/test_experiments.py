"""The commands that look at experiments: ls, show, best, export."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from pathlib import Path
from typing import Any

import pandas
import pytest

import hopfleet as hop
from hopfleet.errors import Interrupted
from hopfleet.runtime.loop import Loop
from hopfleet.testing.tasks import CountingTask
from tests.helpers.cli import FAULTY, Cli, counting, fitted


def interrupted(monkeypatch: pytest.MonkeyPatch, name: str, **more: Any) -> hop.Experiment:
    """An experiment that was asked to drain as soon as it began."""
    experiment = counting(name, **more)
    begin = Loop.run

    def drained(loop: Loop, first: Any) -> bool:
        loop.drain()
        return begin(loop, first)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Loop, "run", drained)
        experiment.fit(quiet=True)
    return experiment


# --------------------------------------------------------------------------------------------------------------- ls


def test_ls_without_experiments(cli: Cli, own_home: Path) -> None:
    outcome = cli("ls")
    assert outcome.code == 0
    assert str(own_home) in outcome.out
    assert "hopfleet demo" in outcome.out
    assert cli("ls", "--json").json == []


def test_ls(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted("good")
    fitted("faulty", FAULTY)
    interrupted(monkeypatch, "cut")
    lines = cli("ls").out.splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [
        ["good", "finished"],
        ["faulty", "finished"],
        ["cut", "interrupted"],
    ]
    assert "3 completed" in lines[2]
    assert "1 completed, 1 failed" in lines[3]
    good, faulty, cut = cli("ls", "--json").json
    assert good["state"] == "finished"
    assert good["trials"] == {"completed": 3}
    assert good["metric"] == "loss"
    assert good["best"] == pytest.approx(1 / 9)
    assert good["best_trial"] == "t0001"
    assert good["bytes"] > 1000
    assert faulty["trials"] == {"completed": 1, "failed": 1}
    assert cut["state"] == "interrupted"
    assert cut["best"] is None


def test_one_that_runs_is_seen_to_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = interrupted(monkeypatch, "cut")
    with contextlib.closing(experiment.folder.lock()):
        assert cli("ls", "--json").json[0]["state"] == "running"
        assert "running" in cli("show", "cut").out
        resumed = cli("resume", "cut")
    assert resumed.code == 2
    assert "is running in another process" in resumed.err
    assert cli("ls", "--json").json[0]["state"] == "interrupted"


def test_a_damaged_one_does_not_hide_the_others(cli: Cli) -> None:
    fitted("good")
    damaged = fitted("bad").folder
    damaged.journal_file.write_bytes(b"nothing of the kind" * 100)
    outcome = cli("ls", "--json")
    assert [row["name"] for row in outcome.json] == ["good"]
    assert "hopfleet: skipped bad" in outcome.err
    assert cli("show", "bad").code == 1


# ------------------------------------------------------------------------------------------------------------- show


def test_show(cli: Cli) -> None:
    folder = fitted("good").folder
    outcome = cli("show", "good")
    assert outcome.code == 0
    assert "3 completed" in outcome.out
    assert all(trial in outcome.out for trial in ("t0001", "t0002", "t0003"))
    assert "w1" in outcome.out
    assert str(folder.path) in outcome.out
    assert cli("show", str(folder.path)).out == outcome.out


def test_show_as_json(cli: Cli) -> None:
    fitted("faulty", FAULTY)
    shown = cli("show", "faulty", "--json").json
    assert shown["name"] == "faulty"
    assert shown["definition"]["search"]["max_epochs"] == 2
    assert shown["progress"] == {"done": 8, "planned": 8, "bound": "exactly"}
    first, second = shown["leaderboard"]
    assert (first["trial"], first["state"], first["config"]) == ("t0001", "completed", {"fault": False})
    assert second["error"] == "ValueError: asked to fail"
    assert shown["workers"][0]["name"] == "w1"


@pytest.mark.slow
def test_show_limits_the_trials_unless_told(cli: Cli) -> None:
    fitted("many", {"number": hop.grid_search(list(range(22)))}, partitions=1)
    short = cli("show", "many").out
    assert "t0022" not in short
    assert "2 more trials; --all shows all" in short
    assert "t0022" in cli("show", "many", "--all").out


def test_show_names_failures_and_how_to_go_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted("faulty", FAULTY)
    outcome = cli("show", "faulty")
    assert "t0002 failed  ValueError: asked to fail" in outcome.out
    assert "hopfleet show faulty --trial t0002" in outcome.out
    interrupted(monkeypatch, "cut")
    assert "hopfleet resume cut" in cli("show", "cut").out


@pytest.mark.parametrize("trial", ["t0001", "1"])
def test_show_a_trial(cli: Cli, trial: str) -> None:
    results = fitted("good")
    outcome = cli("show", "good", "--trial", trial)
    assert outcome.code == 0
    assert "2/2 epochs" in outcome.out
    assert str(results["t0001"].checkpoint) in outcome.out
    for order in results["t0001"].visits:
        assert " ".join(map(str, order)) in outcome.out


def test_show_a_failed_trial(cli: Cli) -> None:
    fitted("faulty", FAULTY)
    outcome = cli("show", "faulty", "--trial", "t0002")
    assert "Traceback" in outcome.out
    assert "ValueError: asked to fail" in outcome.out
    shown = cli("show", "faulty", "--trial", "t0002", "--json").json
    assert shown["error"] == "ValueError: asked to fail"
    assert "Traceback" in shown["traceback"]
    assert shown["checkpoint"] is None


def test_show_the_end_of_a_trials_log(cli: Cli) -> None:
    results = fitted("good")
    (results.folder.logs / "t0001.log").write_text("".join(f"line {number}\n" for number in range(30)))
    shown = cli("show", "good", "--trial", "t0001").out
    assert "line 9\n" not in shown
    assert "the last 20 lines of 30" in shown
    assert shown.endswith("line 29\n")


def test_show_a_trial_as_json(cli: Cli) -> None:
    results = fitted("good")
    shown = cli("show", "good", "--trial", "t0003", "--json").json
    assert shown["config"] == {"number": 3}
    assert [row["epoch"] for row in shown["history"]] == [1, 2]
    assert shown["visits"] == results["t0003"].visits
    assert Path(shown["checkpoint"]).is_file()


def test_no_such_trial(cli: Cli) -> None:
    fitted("good")
    outcome = cli("show", "good", "--trial", "t0009")
    assert outcome.code == 2
    assert "'t0009': no such trial" in outcome.err


# ------------------------------------------------------------------------------------------------------------- best


def test_best(cli: Cli) -> None:
    results = fitted("good")
    outcome = cli("best", "good")
    assert outcome.code == 0
    assert "number=1" in outcome.out
    assert "at epoch 2" in outcome.out
    assert str(results.best.checkpoint) in outcome.out
    best = cli("best", "good", "--json").json
    assert best["trial"] == "t0001"
    assert best["checkpoint"] == str(results.best.checkpoint)


@pytest.mark.slow
def test_the_python_of_best_loads_the_model(cli: Cli, script: Any) -> None:
    fitted("importable")
    cli("run", str(script("backend='inline', name='mine'")), "--quiet")
    for name in ("importable", "mine"):
        namespace: dict[str, Any] = {}
        exec(cli("best", name, "--json").json["python"], namespace)
        assert namespace["model"] == [8, 80]


def test_the_python_of_best_names_the_task_of_a_script(cli: Cli) -> None:
    class Local(CountingTask):
        pass

    Local.__module__ = "__main__"
    experiment = counting("mine")
    origin = {"how": "script", "file": "/there/mine.py", "arguments": [], "cwd": "/"}
    experiment.definition = dataclasses.replace(experiment.definition, task=Local(), origin=origin)
    experiment.fit(quiet=True)
    code = cli("best", "mine", "--json").json["python"]
    assert "Local()  # the task of /there/mine.py" in code
    assert len(code.splitlines()) == 3


def test_best_of_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, "cut")
    outcome = cli("best", "cut")
    assert outcome.code == 2
    assert "no trial with a finished epoch" in outcome.err


# ----------------------------------------------------------------------------------------------------------- export


def test_export_csv(cli: Cli, tmp_path: Path) -> None:
    results = fitted("good")
    outcome = cli("export", "good", "--csv", str(tmp_path / "trials.csv"))
    assert outcome.code == 0
    assert outcome.out == ""
    frame = pandas.read_csv(tmp_path / "trials.csv")
    assert list(frame["trial"]) == ["t0001", "t0002", "t0003"]
    assert list(frame["loss"]) == pytest.approx(list(results.dataframe()["loss"]))


def test_export_csv_to_standard_output(cli: Cli) -> None:
    fitted("good")
    frame = pandas.read_csv(io.StringIO(cli("export", "good", "--csv", "-", "--epochs").out))
    assert list(frame["epoch"]) == [1, 2, 1, 2, 1, 2]


def test_export_parquet_of_mixed_settings(cli: Cli, tmp_path: Path) -> None:
    fitted("mixed", {"width": hop.grid_search([1, "wide", 0.5]), "layers": (8, 8)})
    outcome = cli("export", "mixed", "--parquet", str(tmp_path / "trials.parquet"), "--csv", str(tmp_path / "t.csv"))
    assert outcome.code == 0
    frame = pandas.read_parquet(tmp_path / "trials.parquet")
    assert list(frame["config/width"]) == ["1", "wide", "0.5"]
    assert (tmp_path / "t.csv").exists()


def test_export_needs_a_place(cli: Cli, tmp_path: Path) -> None:
    fitted("good")
    outcome = cli("export", "good")
    assert outcome.code == 2
    assert "--csv" in outcome.err
    missing = cli("export", "good", "--csv", str(tmp_path / "no" / "where.csv"))
    assert missing.code == 1
    assert missing.err.startswith("hopfleet: ")
