"""hopfleet verify and hopfleet replay: what they print, and their exit codes."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hopfleet.forecast import preview
from tests.helpers.cli import FAULTY, Cli, fitted

Script = Callable[..., Path]


def test_verify_says_that_all_is_well(cli: Cli) -> None:
    fitted("whole")
    done = cli("verify", "whole")
    assert (done.code, done.err) == (0, "")
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        [part, "ok"] for part in ("journal", "models", "data", "folder")
    ]


def test_verify_says_what_is_wrong_and_what_to_do(cli: Cli) -> None:
    results = fitted("whole")
    path = results["t0001"].last_checkpoint
    path.unlink()
    done = cli("verify", "whole")
    assert done.code == 1
    assert done.err == f"hopfleet: {path}: is missing; restore it from a backup\n"
    assert [line.split()[1:3] for line in done.out.splitlines() if line.startswith("models")] == [["1", "fault"]]


def test_verify_as_json(cli: Cli) -> None:
    results = fitted("whole")
    stray = results.folder.checkpoints / "mine"
    stray.touch()
    done = cli("verify", str(results.folder.path), "--json")
    assert done.code == 1
    assert done.json["ok"] is False and list(done.json["checked"]) == ["journal", "models", "data", "folder"]
    assert [(fault["part"], fault["where"]) for fault in done.json["faults"]] == [("models", str(stray))]
    assert done.json["notes"] == []


def test_verify_names_what_it_does_not_know(cli: Cli) -> None:
    results = fitted("whole", FAULTY)
    leftover = results.folder.checkpoints / "t0002" / "v00001.safetensors"
    leftover.parent.mkdir(exist_ok=True)
    leftover.touch()
    done = cli("verify", "whole")
    assert done.code == 1 and f"{leftover}: is a stray" in done.err


def test_progress_is_told_when_it_takes_long(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted("whole")
    monkeypatch.setattr(preview, "SLOW", 0.0)
    assert "verify: reading the journal\n" in cli("verify", "whole").err
    assert "replay: 24 of 24 units\n" in cli("replay", "whole", "--backend", "inline").err


def test_unknown_names(cli: Cli) -> None:
    assert cli("verify", "none").code == cli("replay", "none").code == 2


def test_replay_trial_by_trial(cli: Cli) -> None:
    fitted("first", FAULTY)
    done = cli("replay", "first", "--backend", "inline", "--workers", "2")
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines() if line.startswith("t0")]
    assert [row[:3] for row in rows] == [["t0001", "equal", "8"], ["t0002", "skipped", "0"]]
    assert done.out.splitlines()[-1] == "1 equal, 1 skipped"


def test_replay_as_json(cli: Cli) -> None:
    results = fitted("first")
    done = cli("replay", "first", "--trial", "3", "--trial", "t0001", "--backend", "inline", "--json")
    assert done.code == 0 and done.json["ok"]
    assert [trial["trial"] for trial in done.json["trials"]] == ["t0003", "t0001"]
    last = done.json["trials"][0]["versions"][-1]
    assert last["found"] == last["expected"] == results.history.trials["t0003"].saved[8].digest


def test_standard_output_is_for_the_json(cli: Cli, script: Script) -> None:
    path = script("backend='inline', name='mine'")
    path.write_text(path.read_text().replace("    pass", LOUD))
    assert cli("run", str(path)).code == 0
    done = cli("replay", "mine", "--backend", "inline", "--json")
    assert done.json["ok"] and "loud" in done.err
    done = cli("run", str(path), "--preview", "--json")
    assert done.json["name"] == "mine" and "loud" in done.err


LOUD = """
    def open(self, config, **more):
        print("loud")
        return super().open(config, **more)


print("loud from the start")
"""


def test_replay_finds_a_task_in_its_file_and_a_change_of_it(cli: Cli, script: Script) -> None:
    path = script("backend='inline', name='mine'")
    assert cli("run", str(path)).code == 0
    assert cli("replay", "mine").code == 0
    changed = path.read_text().replace("    pass", "    def open(self, config, **more):\n        return Other(config)")
    other = "from hopfleet.testing.tasks import CountingSession\n\n\nclass Other(CountingSession):\n"
    other += "    def save(self, path):\n        path.write_text(str(self.rows))\n"
    path.write_text(f"{other}\n\n{changed}")
    done = cli("replay", "mine", "--backend", "inline")
    assert done.code == 1 and "3 different" in done.out


def test_replay_of_a_script_runs_it_up_to_its_fit(
    cli: Cli, script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    below = (
        f"import sys\nwith open({str(ran)!r}, 'a') as file:\n    file.write(sys.argv[1])\nexperiment.fit(quiet=True)\n"
    )
    path = script("backend='inline', name='scripted'", below=below)
    monkeypatch.setattr(sys, "argv", [str(path), "a"])
    runpy.run_path(str(path), run_name="__main__")
    assert cli("replay", "scripted", "--backend", "inline").code == 0
    assert ran.read_text() == "aa", "once to train, once to find the task"


def test_replay_of_live_data_gets_it_from_the_file(cli: Cli, script: Script) -> None:
    path = script("backend='inline', name='mine'")
    path.write_text(path.read_text().replace('train={"x": np.arange(40.0)}', "train=hop.live(np.arange(40.0))"))
    assert cli("run", str(path)).code == 0
    assert cli("replay", "mine", "--backend", "inline").code == 0
    path.write_text(path.read_text().replace("np.arange(40.0)", "np.arange(1, 41.0)"))
    done = cli("replay", "mine", "--backend", "inline")
    assert done.code == 2 and "the contents of items" in done.err
    path.unlink()
    done = cli("replay", "mine")
    assert done.code == 2 and "task=..., train=hop.live(dataset))" in done.err


def test_replay_without_a_file_that_makes_the_task(cli: Cli, script: Script) -> None:
    path = script("backend='inline', name='mine'")
    cli("run", str(path))
    path.write_text(path.read_text().replace("Mine", "Yours"))
    done = cli("replay", "mine")
    assert done.code == 2 and "now creates Yours instead of Mine; pass the task in Python" in done.err
    path.unlink()
    done = cli("replay", "mine")
    assert done.code == 2 and "hopfleet.clients.replay.replay('mine', task=...)" in done.err


def test_replay_of_what_has_not_begun(cli: Cli) -> None:
    results = fitted("first")
    results.folder.journal_file.unlink()
    done = cli("replay", "first")
    assert (done.code, done.out) == (0, "No trial has started yet.\n")
