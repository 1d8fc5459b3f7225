"""Run folders written by release 0.1 can still be opened, resumed, replayed and controlled.

They are in ``fixtures/release_0_1``, where ``make.py`` says how they were made. This test uses public names only, since
everything else may be renamed between releases.
"""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop

KEPT = Path(__file__).parents[1] / "fixtures" / "release_0_1"

# The run folders name the module of the task, and workers import it by that name.
sys.path.insert(0, str(KEPT))

from release_outcome import outcome  # noqa: E402
from release_task import experiment, rows  # noqa: E402

EXPECTED = json.loads((KEPT / "expected.json").read_text())

SAME_TORCH = torch.__version__.partition("+")[0] == EXPECTED["made_with"]["torch"].partition("+")[0]

Cli = Callable[..., str]


@pytest.fixture(autouse=True)
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the fixture, and make the copy look as if release 0.1 had run there."""
    folder = tmp_path / "release"
    shutil.copytree(KEPT, folder, ignore=shutil.ignore_patterns("__pycache__", "make.py", "expected.json"))
    for run in (folder / "runs").iterdir():
        # Git keeps neither permissions nor empty folders.
        run.chmod(0o700)
        for name in ("checkpoints", "data", "logs", "plots"):
            (run / name).mkdir(exist_ok=True, mode=0o700)
        definition = run / "experiment.json"
        definition.write_text(definition.read_text().replace("FIXTURE_FOLDER", str(folder)))
    monkeypatch.setenv("HOPFLEET_HOME", str(folder / "runs"))
    return folder


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return a function that runs a command in this process and returns its output."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> str:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["hopfleet", *arguments])
        with pytest.raises(SystemExit) as left:
            runpy.run_module("hopfleet", run_name="__main__")
        found = capsys.readouterr()
        assert not left.value.code, found.err
        return found.out

    return run


def comparable(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same of trials that were trained now. With another PyTorch, files may differ."""
    if SAME_TORCH:
        return outcome
    trials = {
        name: {**trial, **{which: trial[which] and trial[which]["weights"] for which in ("best", "last")}}
        for name, trial in outcome["trials"].items()
    }
    return {**outcome, "trials": trials}


needs_that_torch = pytest.mark.skipif(
    not SAME_TORCH, reason="replays compare files, which may differ with another version of PyTorch"
)

# ------------------------------------------------------------------------------------------------------------ opening


@pytest.mark.parametrize("name", ["finished", "killed"])
def test_results_are_what_they_were(name: str) -> None:
    assert outcome(hop.load(name)) == EXPECTED[name]["then"]


@pytest.mark.parametrize("name", ["finished", "killed"])
def test_models_predict_as_they_did(name: str) -> None:
    results = hop.load(name)
    data = {column: torch.from_numpy(values) for column, values in rows(24, seed=2).items()}
    saved = [trial for trial in results.trials if trial.best_epoch is not None]
    assert len(saved) >= 3 and results.best.id in [trial.id for trial in saved]
    for trial in saved:
        with torch.no_grad():
            errors = (trial.model()(data["x"]) - data["y"]).abs().double()
        assert float(errors.mean()) == pytest.approx(trial.metrics["error"], rel=1e-12)


def test_errors_and_logs() -> None:
    results = hop.load("finished")
    failed = {trial.id: trial.error or "" for trial in results.trials if trial.state is hop.TrialState.FAILED}
    assert sorted(failed) == ["t0003", "t0006"]
    assert "this configuration always fails" in failed["t0003"] and "in loss" in failed["t0003"]
    assert "8 features" in results["t0001"].log()


def test_tables_and_charts() -> None:
    results = hop.load("finished")
    assert len(results.dataframe()) == len(results.trials)
    for kind in ("curves", "gantt", "parallel", "rungs", "lineage"):
        assert results.plot_data(kind)


def test_a_simulated_run() -> None:
    """Its journal has messages about workers that can read only some of the partitions."""
    results = hop.load("simulated")
    assert results.finished
    assert {trial.id: trial.state for trial in results.trials} == dict.fromkeys(
        ("t0001", "t0002"), hop.TrialState.COMPLETED
    )
    assert all(sorted(visits) == [0, 1, 2] for trial in results.trials for visits in trial.visits)


# ------------------------------------------------------------------------------------------------------- command line


def test_ls_show_best_export(cli: Cli, release: Path) -> None:
    listed = {row["name"]: row for row in json.loads(cli("ls", "--json"))}
    assert {name: row["state"] for name, row in listed.items()} == {
        "finished": "finished",
        "killed": "interrupted",
        "simulated": "finished",
    }
    recorded = EXPECTED["finished"]["then"]
    best = recorded["best"]
    assert listed["finished"]["best"] == recorded["trials"][best]["metrics"]["error"]
    assert "killed" in cli("ls")
    for name in listed:
        assert "t0001" in cli("show", name)
        assert json.loads(cli("show", name, "--json"))["definition"]["name"] == name
    shown = json.loads(cli("show", "finished", "--trial", "t0009", "--json"))
    assert (shown["parent"], shown["history"]) == ("t0001", recorded["trials"]["t0009"]["history"])
    assert "this configuration always fails" in cli("show", "finished", "--trial", "3")
    assert best in cli("best", "finished")
    assert len(cli("export", "finished", "--csv", "-").splitlines()) == 1 + len(recorded["trials"])


def requests(name: str) -> list[list[Any]]:
    """Return all control requests that an experiment ever got, with their answers. Release 0.1 has another name."""
    control = hop.control(name)
    trail = control.requests() if hasattr(control, "requests") else control.wishes()
    return [[getattr(each, "request", None) or each.wish, each.granted, each.text] for each in trail]


def test_requests_and_answers() -> None:
    assert requests("finished") == EXPECTED["requests"]
    assert requests("killed") == [["add", None, ""]]


@pytest.mark.parametrize("name", ["finished", "killed"])
def test_verify(cli: Cli, name: str) -> None:
    verdict = json.loads(cli("verify", name, "--json"))
    assert verdict["ok"] and not verdict["faults"] and not verdict["notes"]


# ----------------------------------------------------------------------------------------------------------- going on


def assert_undisturbed() -> None:
    """Check that ``killed`` has become what it would be if it had not been killed."""
    results = hop.load("killed")
    assert comparable(outcome(results)) == comparable(EXPECTED["killed"]["undisturbed"])
    assert results["t0005"].origin == "person", "the request that was waiting is carried out"
    assert results.verify().ok


def test_a_killed_run_resumes_to_the_same_bits(release: Path) -> None:
    experiment("killed", release, backend="inline", workers=1).fit(quiet=True)
    assert_undisturbed()


@pytest.mark.slow
def test_resume_runs_the_script_again(release: Path) -> None:
    """The script has two worker processes."""
    command = [sys.executable, "-m", "hopfleet", "resume", "killed"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr  # one configuration fails
    assert_undisturbed()


def test_definitions_are_compared(release: Path) -> None:
    """A run resumes because its definition was found to be the same, not because nothing was compared."""
    with pytest.raises(hop.HopfleetError, match="seed"):
        experiment("killed", release, seed=9, backend="inline").fit(quiet=True)
    with pytest.raises(hop.HopfleetError, match=r"is finished.*seed"):
        experiment("finished", release, seed=9, backend="inline").fit(quiet=True)
    assert experiment("finished", release, backend="inline").fit(quiet=True).finished


# ---------------------------------------------------------------------------------------------------------- replaying


def replayed(cli: Cli, name: str) -> dict[str, Any]:
    """Return what ``hopfleet replay`` says about each trial."""
    printed = cli("replay", name, "--backend", "inline", "--workers", "1", "--json")
    found = json.loads(printed[printed.index("{") :])  # inline workers print what the task prints
    assert found["ok"] and not found["notes"]
    return {trial["trial"]: trial for trial in found["trials"]}


@needs_that_torch
@pytest.mark.parametrize(("name", "deleted"), [("finished", {"t0007"}), ("killed", set())])
def test_replay(cli: Cli, name: str, deleted: set[str]) -> None:
    """Replays give the same files: weights, optimizer, schedule and random streams."""
    recorded, found = EXPECTED[name]["then"]["trials"], replayed(cli, name)
    assert found.keys() == recorded.keys() | deleted
    for trial, again in found.items():
        files = {version["found"] for version in again["versions"]}
        if trial in deleted or recorded[trial]["last"] is None:
            assert again["verdict"] == "skipped" and not files
        else:
            assert again["verdict"] == "equal"
            assert files == {recorded[trial][which]["file"] for which in ("best", "last")}


# ----------------------------------------------------------------------------------------------------------- control


@pytest.mark.slow
def test_a_finished_run_takes_requests(cli: Cli, release: Path) -> None:
    control = hop.control("finished", who="a test")
    control.resume("t0005", epochs=3)
    control.clone("t0009", {"lr": 1 / 128}, warm=True, epochs=6)
    control.add({"lr": 1 / 256, "width": 4, "fault": "none"})
    control.extend(trials=1)
    control.delete("t0002")
    with pytest.raises(hop.HopfleetError, match="t0099"):
        control.stop("t0099")
    results = experiment("finished", release, backend="inline", workers=1).fit(quiet=True)
    answers = requests("finished")[len(EXPECTED["requests"]) :]
    assert [(what, granted) for what, granted, _ in answers] == [
        ("resume", True),
        ("clone", True),
        ("add", True),
        ("extend", True),
        ("delete", True),
    ]

    now, then = outcome(results)["trials"], EXPECTED["finished"]["then"]["trials"]
    assert then.keys() - now.keys() == {"t0002"}
    assert sorted(now.keys() - then.keys()) == ["t0011", "t0012", "t0013"]
    # ASHA may promote a paused trial when it hears of another one; all others stay as they were.
    settled = {name for name, trial in then.items() if trial["state"] != "paused"} - {"t0005"}
    assert len(settled) >= 5
    assert {name: now[name] for name in settled} == {name: then[name] for name in settled}

    longer, clone, person, more = (results[name] for name in ("t0005", "t0011", "t0012", "t0013"))
    assert [epoch["epoch"] for epoch in longer.history] == [1, 2, 3]
    assert longer.history[:2] == then["t0005"]["history"] and longer.visits[:2] == then["t0005"]["visits"]
    assert (clone.parent, clone.begins, clone.state) == ("t0009", 5, hop.TrialState.COMPLETED)
    assert (person.origin, person.state, more.origin) == ("person", hop.TrialState.COMPLETED, "search")
    assert results.verify().ok
    if SAME_TORCH:
        assert {trial["verdict"] for trial in replayed(cli, "finished").values()} == {"equal", "skipped"}
