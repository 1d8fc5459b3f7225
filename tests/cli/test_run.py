"""The command run: finding the experiment in a file, overriding it, and what comes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hopfleet as hop
from tests.helpers.cli import Cli

Write = Callable[..., Path]


def test_run(cli: Cli, script: Write) -> None:
    outcome = cli("run", str(script("backend='inline', name='mine'")))
    assert outcome.code == 0
    results = hop.load("mine")
    assert results.finished
    assert str(results.best.checkpoint) in outcome.out
    assert "t0001" in outcome.out
    assert "hopfleet best mine" in outcome.out
    assert results.definition["origin"]["how"] == "run"
    assert results.definition["origin"]["variable"] == "experiment"


def test_quiet_shows_the_outcome_alone(cli: Cli, script: Write) -> None:
    loud = cli("run", str(script("backend='inline', name='loud'"))).out
    quiet = cli("run", str(script("backend='inline', name='quiet'")), "--quiet").out
    assert "12/24 units" not in quiet
    assert "finished  24/24 units" in loud
    assert "finished  24/24 units" not in quiet
    assert "t0001" in quiet


def test_a_main_guard_does_not_fire(cli: Cli, script: Write) -> None:
    path = script("backend='inline'", below="if __name__ == '__main__':\n    raise SystemExit('fired')\n")
    assert cli("run", str(path), "-q").code == 0


def test_modules_beside_the_file_can_be_imported(cli: Cli, script: Write, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "neighbour_of_mine.py").write_text("NAME = 'neighbourly'\n")
    path = script("backend='inline', name=__import__('neighbour_of_mine').NAME", name="deep/mine.py")
    assert cli("run", str(path), "-q").code == 0
    assert hop.load("neighbourly").finished


@pytest.mark.slow
def test_options_hold_for_a_file_that_calls_fit(cli: Cli, script: Write) -> None:
    path = script("name='mine', backend='local'", below="results = experiment.fit(quiet=True)\nprint(len(results))\n")
    outcome = cli("run", str(path), "--workers", "2", "--backend", "inline", "-q")
    assert outcome.code == 0 and outcome.out.splitlines()[0] == "3", "the code after fit() runs, too"
    results = hop.load("mine")
    assert results.definition["backend"] == "inline" and len(results.history.workers) == 2
    assert results.definition["origin"]["overrides"] == {"workers": 2, "backend": "inline"}
    cli("extend", "mine", "--epochs", "1")
    outcome = cli("resume", "mine")
    assert outcome.code == 0 and len(results.refresh().history.workers) == 2
    assert results.finished and not results.history.gaps[1:], "it went on once"
    assert [trial.epochs_trained for trial in results.history.trials.values()] == [3, 3, 3]
    assert cli("run", str(path), "--backend", "inline", "-q", "--overwrite").code == 0
    assert [trial.epochs_trained for trial in hop.load("mine").history.trials.values()] == [2, 2, 2]


def test_another_process_can_load_classes_of_a_file_that_calls_fit(cli: Cli, script: Write, tmp_path: Path) -> None:
    below = (
        "class Plain: pass\nimport cloudpickle, pathlib\nexperiment.fit(quiet=True)\n"
        f"pathlib.Path({str(tmp_path / 'it')!r}).write_bytes(cloudpickle.dumps(Plain()))\n"
    )
    assert cli("run", str(script("name='mine', backend='inline'", below=below)), "-q").code == 0
    code = f"import pickle; print(type(pickle.load(open({str(tmp_path / 'it')!r}, 'rb'))).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "Plain\n", done.stderr


def test_overrides(cli: Cli, script: Write) -> None:
    path = script("name='mine', backend='local'")
    assert cli("run", str(path), "--workers", "2", "--backend", "inline", "--policy", "random", "-q").code == 0
    results = hop.load("mine")
    assert results.definition["backend"] == "inline"
    assert results.definition["policy"] == "random"
    assert results.definition["origin"]["overrides"] == {"workers": 2, "backend": "inline", "policy": "random"}
    assert len(results.history.workers) == 2


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--workers", "0", "workers=0"),
        ("--workers", "-3", "workers=-3"),
        ("--workers", "two", "workers='two'"),
        ("--backend", "moon", "backend='moon'"),
        ("--policy", "whim", "policy='whim'"),
    ],
)
def test_overrides_are_checked_as_the_experiment_does(
    cli: Cli, script: Write, option: str, value: str, said: str
) -> None:
    outcome = cli("run", str(script("name='mine', backend='inline'")), option, value)
    assert outcome.code == 2
    assert f"hopfleet: {said}" in outcome.err
    assert cli("ls", "--json").json == []


def test_failed_trials_make_exit_code_1(cli: Cli, script: Write) -> None:
    path = script("name='mine', backend='inline'")
    path.write_text(path.read_text().replace('"number"', '"fault"').replace("[1, 2, 3]", "[False, True]"))
    outcome = cli("run", str(path), "-q")
    assert outcome.code == 1
    assert "hopfleet: 1 of 2 trials failed; hopfleet show mine --trial t0002 shows the reason" in outcome.err
    path.write_text(path.read_text().replace("[False, True]", "[1, 2]"))
    outcome = cli("run", str(path), "-q", "--overwrite")
    assert outcome.code == 1
    assert "hopfleet: mine: all 2 trials failed, the first one with " in outcome.err


def test_check_tries_the_task_in_this_process(cli: Cli, script: Write) -> None:
    file = script("name='mine', backend='inline'", below="experiment.fit()\n")
    outcome = cli("run", str(file), "--check")
    assert outcome.code == 0
    assert "mine: 1 configuration built, trained, evaluated, saved and loaded without a mistake" in outcome.out
    assert cli("ls", "--json").json == []
    file.write_text(
        "import hopfleet as hop\n"
        "from tests.helpers.sample_tasks import Faulty, arrays\n"
        "experiment = hop.Experiment(Faulty(), train=arrays(), space={'fault': 'build'}, name='mine')\n"
    )
    outcome = cli("run", str(file), "--check")
    assert outcome.code == 1
    assert 'raise RuntimeError("no such architecture")' in outcome.err
    assert "hopfleet: Faulty.build: RuntimeError: no such architecture (sample_tasks.py:" in outcome.err
    assert "profiler.py" not in outcome.err
    assert cli("run", str(file), "--check", "--preview").code == 2


@pytest.mark.slow
def test_a_finished_one_is_kept_unless_told(cli: Cli, script: Write) -> None:
    path = str(script("name='mine', backend='inline'"))
    assert cli("run", path, "-q").code == 0
    again = cli("run", path, "-q")
    assert again.code == 0
    assert "mine is already finished: nothing was trained; --overwrite starts over" in again.out
    assert cli("run", path, "-q", "--overwrite").code == 0


def test_a_file_that_fits_by_itself_is_only_reported(cli: Cli, script: Write) -> None:
    outcome = cli("run", str(script("name='mine', backend='inline'", below="results = experiment.fit(quiet=True)\n")))
    assert outcome.code == 0
    assert "hopfleet best mine" in outcome.out
    assert hop.load("mine").definition["origin"]["how"] == "run", "resume loads it in the same way"


SECOND = "\nother = hop.Experiment(experiment.task, train=experiment.train, space={'number': 1}, backend='inline')\n"


def test_which_experiment(cli: Cli, script: Write) -> None:
    path = script("name='mine', backend='inline'", below=SECOND + "alias = experiment\n")
    several = cli("run", str(path))
    assert several.code == 2
    assert "several experiments (experiment, other, alias)" in several.err
    wrong = cli("run", f"{path}:task")
    assert wrong.code == 2
    assert "the file's experiments are experiment, other, alias" in wrong.err
    assert cli("run", f"{path}:alias", "-q").code == 0
    assert hop.load("mine").finished


def test_the_only_experiment_may_have_two_names(cli: Cli, script: Write) -> None:
    assert cli("run", str(script(below="alias = experiment\n")), "-q").code == 0


def test_no_experiment(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    outcome = cli("run", str(path))
    assert outcome.code == 2
    assert "empty.py: has no experiment" in outcome.err
    assert cli("run", f"{path}:x").code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ny = x / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("x = 1\n\nx ===\n", "line 3: SyntaxError: invalid syntax"),
        ("import nothing_of_the_kind\n", "line 1: ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
    ],
)
def test_an_error_in_the_file_is_told_with_its_line(cli: Cli, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    outcome = cli("run", str(path))
    assert outcome.code == 1
    assert outcome.err.startswith(f"hopfleet: {path}, {said}")
    assert outcome.err.count("\n") == 1
    assert "bad.py" in cli("--debug", "run", str(path)).err


def test_wrong_values_in_the_file_are_usage_errors(cli: Cli, script: Write) -> None:
    outcome = cli("run", str(script("backend='inline', worker_options=hop.WorkerOptions(threads=0)")))
    assert outcome.code == 2
    assert "threads=0" in outcome.err


# -------------------------------------------------------------------------------------------------------- --preview


def test_preview_trains_nothing_and_leaves_nothing(cli: Cli, script: Write, own_home: Path) -> None:
    outcome = cli("run", str(script("backend='inline', name='mine'")), "--preview")
    assert outcome.code == 0, outcome.err
    assert "mine: 3 trials of 2 epochs" in outcome.out
    assert "24 units and 6 evaluations" in outcome.out
    assert not own_home.exists()


def test_preview_as_json_and_as_a_picture(cli: Cli, script: Write, tmp_path: Path) -> None:
    path = script("backend='inline', name='mine'")
    outcome = cli("run", str(path), "--preview", "--json", "--policy", "random", "--gantt", str(tmp_path / "g.svg"))
    assert outcome.json["units"] == 24
    assert outcome.json["policy"] == "random"
    assert outcome.json["makespan"] >= outcome.json["lower_bound"] > 0
    assert (tmp_path / "g.svg").stat().st_size > 1000


@pytest.mark.parametrize(("option", "value"), [("--json", None), ("--gantt", "g.svg")])
def test_what_goes_with_preview_only(cli: Cli, script: Write, option: str, value: str | None) -> None:
    outcome = cli("run", str(script()), option, *([value] if value else []))
    assert outcome.code == 2
    assert f"{option}: needs --preview" in outcome.err


def test_preview_of_a_file_that_fits_by_itself(cli: Cli, script: Write, own_home: Path) -> None:
    path = script("name='mine', backend='inline'", below="experiment.fit()\nraise SystemExit('not reached')\n")
    outcome = cli("run", str(path), "--preview")
    assert outcome.code == 0, outcome.err
    assert "mine: 3 trials" in outcome.out
    assert not own_home.exists()
    assert "HOPFLEET_PREVIEW" not in os.environ


def test_preview_refuses_what_a_run_refuses(cli: Cli, script: Write) -> None:
    outcome = cli("run", str(script("backend='inline', metric='accuracy', mode='max'")), "--preview")
    assert outcome.code == 2
    assert "metric='accuracy': metrics() does not return it; it returns loss" in outcome.err
