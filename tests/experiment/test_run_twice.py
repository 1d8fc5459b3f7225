"""A second run of the same thing: results come back, changes are named, and no stale result passes for a new one."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.errors import ExperimentExists, UsageError
from hopfleet.store.local import open_journal
from hopfleet.support.code_digests import digests
from hopfleet.support.machine import Machine
from tests.helpers import warm
from tests.helpers.cli import counting
from tests.helpers.sample_tasks import Plain, arrays

SCRIPT = """
import numpy as np, torch
import hopfleet as hop

x = np.linspace(0, 1, 64, dtype="float32")[:, None]
{helper}

class Line(hop.TorchTask):
    def build(self, config):
        model = torch.nn.Linear(1, 1)  {comment}
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])
    def loss(self, model, batch):
        return {loss}

experiment = hop.Experiment(
    Line(), train={{"x": x, "y": 2 * x}}, space={{"lr": hop.choice([{choices}])}}, name="line", partitions=2,
    search=hop.Random(trials=2, max_epochs=1), backend="inline", workers=1)
results = experiment.fit()
print("trained", len(results.trials), "best", results.best.config)
"""
PLAIN = {
    "helper": "",
    "comment": "",
    "choices": "0.1",
    "loss": "torch.nn.functional.mse_loss(model(batch['x']), batch['y'])",
}


def run_script(folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    file = folder / "line.py"
    file.write_text(SCRIPT.format(**{**PLAIN, **changes}))
    process = warm.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(str(file), process.returncode, out, err)


@pytest.mark.slow
def test_a_script_runs_twice_and_tells_when_its_code_has_changed(tmp_path: Path) -> None:
    first = run_script(tmp_path)
    assert first.returncode == 0, first.stderr
    again = run_script(tmp_path, comment="# a comment changes nothing")
    assert again.returncode == 0, again.stderr
    assert "line is finished already: nothing was trained" in again.stdout
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    stale = run_script(tmp_path, loss="3 * torch.nn.functional.mse_loss(model(batch['x']), batch['y'])")
    assert stale.returncode == 1
    assert "code: Line.loss changed" in stale.stderr
    helped = run_script(tmp_path, choices="0.1, 0.2")
    assert "space.lr: choice([0.1]) before, choice([0.1, 0.2]) now" in helped.stderr


def journaled(results: hop.Results) -> int:
    return len(list(open_journal(results.folder).read()))


def test_a_finished_experiment_returns_its_results() -> None:
    first = counting("mine").fit(quiet=True)
    length = journaled(first)
    again = counting("mine")
    assert again.fit(quiet=True) is again.results
    assert [trial.metrics for trial in again.results.trials] == [trial.metrics for trial in first.trials]
    assert journaled(again.results) == length


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 4}, r"batch_size: 5 before, 4 now"),
        ({"seed": 3}, r"seed: 0 before, 3 now"),
        ({"space": {"number": hop.grid_search([1, 2])}}, r"space\.number: grid_search\(\[1, 2, 3\]\) before"),
        ({"space": {"other": hop.grid_search([1])}}, r"space\.other: nothing before, grid_search\(\[1\]\) now"),
        ({"search": hop.Grid(max_epochs=1)}, r"search\.max_epochs: 2 before, 1 now"),
        ({"search": hop.Grid(max_epochs=5)}, r"hop\.control\('mine'\)\.extend\(epochs=3\)"),
        ({"train": {"x": np.arange(41.0)}}, r"train: rows 40 → 41"),
        ({"train": {"x": np.arange(1.0, 41.0)}}, r"train: the contents of rows"),
        ({"valid": None, "metric": "train_loss"}, r"metric: 'loss' before, 'train_loss' now"),
    ],
)
def test_a_changed_definition_is_told_with_both_values(changes: dict[str, Any], words: str) -> None:
    given = {"space": {"number": hop.grid_search([1, 2, 3])}, "metric": "loss", "mode": "min"}
    counting("mine", **given).fit(quiet=True)
    with pytest.raises(ExperimentExists, match=words) as refused:
        counting("mine", **{**given, **changes}).fit(quiet=True)
    for choice in ("hop.load('mine')", "fit(overwrite=True)", "another name="):
        assert choice in str(refused.value)


def test_data_that_moved_is_the_same_data(tmp_path: Path) -> None:
    for place in ("here", "there"):
        hop.partition({"x": np.arange(40.0)}, tmp_path / place, partitions=4)
    counting("mine", train=str(tmp_path / "here")).fit(quiet=True)
    assert counting("mine", train=str(tmp_path / "there")).fit(quiet=True).finished


def test_a_refused_run_leaves_no_folder_behind(own_home: Path) -> None:
    def plain(**changes: Any) -> hop.Experiment:
        given = {"train": arrays(), "valid": arrays(60), "space": {"lr": 0.1}, "name": "refused", "mode": "max"}
        return hop.Experiment(Plain(), **{**given, "metric": "accuracy", "backend": "inline", "workers": 1, **changes})

    with pytest.raises(UsageError, match=r"metrics\(\) does not return it"):
        plain(metric="recall").fit(quiet=True)
    device = "mps" if torch.cuda.is_available() else "cuda"
    elsewhere = plain(worker_options=hop.WorkerOptions(device=device))
    with pytest.raises(UsageError, match=rf"device='{device}': this machine has .*; use device='auto'"):
        elsewhere.fit(quiet=True)
    assert list(own_home.iterdir()) == []
    with pytest.raises(UsageError, match=rf"device='{device}': this machine has "):
        elsewhere.preview(quiet=True)


def test_a_run_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    asked = counting("mine", run_options=hop.RunOptions(folder=tmp_path / "file" / "run"))
    with pytest.raises(UsageError, match=r"file/run: the run folder cannot be written \(Not a directory\); set"):
        asked.fit(quiet=True)


def test_more_workers_than_a_machine_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.support.machine.LEAST_CROWD", 2)
    monkeypatch.setattr("hopfleet.experiment.resources.this_machine", lambda: Machine(cores=0, memory=8 << 30))
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        counting("mine", backend="local", workers=1000).fit()
    assert "mine: 2 workers on cpu (1000 were asked for)" in shown.getvalue()
    assert "warning: workers=1000: too many for" in shown.getvalue()


# ------------------------------------------------------------------------------------------------ the code of a task

WIDTH = 3


def helper() -> int:
    return WIDTH


class Net:
    def forward(self) -> int:
        """Return a value that no caller needs."""
        return helper()


class Using(Plain):
    factor = 2.0

    def __init__(self, dropout: float) -> None:
        self.dropout = dropout

    def build(self, config: Any) -> Any:
        Net()
        return super().build(config)


def test_digests_follow_what_a_task_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = digests(Using(0.5))
    for name in ("Using.build", "Using.factor", "self.dropout", "Net.forward", "helper", "WIDTH", "Plain.loss"):
        assert name in found
    assert digests(Using(0.5)) == found
    assert {name for name, digest in digests(Using(0.1)).items() if found[name] != digest} == {"self.dropout"}
    monkeypatch.setitem(globals(), "WIDTH", 4)
    assert {name for name, digest in digests(Using(0.5)).items() if found[name] != digest} == {"WIDTH"}


@pytest.mark.slow
def test_an_unfinished_run_continues_with_changed_code_and_a_warning() -> None:
    def using(dropout: float) -> hop.Experiment:
        given = {
            "train": arrays(),
            "space": {"lr": hop.uniform(0.01, 0.1)},
            "search": hop.Random(trials=1, max_epochs=1),
        }
        return hop.Experiment(Using(dropout), **given, name="e", backend="inline", workers=1)

    using(0.5).fit(quiet=True)
    hop.control("e").extend(trials=1)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert len(using(0.1).fit().trials) == 2
    assert "warning: the task's code has changed since this run began (self.dropout)" in shown.getvalue()
    assert len(using(0.1).fit(quiet=True).trials) == 2
    with pytest.raises(ExperimentExists, match=r"code: self\.dropout changed"):
        using(0.5).fit(quiet=True)


def test_code_without_source_is_skipped() -> None:
    names: dict[str, Any] = {"Plain": Plain, "__name__": "__main__"}
    exec("class Typed(Plain):\n    def build(self, config):\n        return super().build(config)\n", names)
    assert "Typed.build" not in digests(names["Typed"]())


def test_a_file_that_has_changed_since_has_no_digest(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    names: dict[str, Any] = {"__name__": "script", "hop": hop}
    source = "class Late(hop.TorchTask):\n    def build(self, config):\n        return None\n"
    exec(compile(source, str(script), "exec"), names)
    script.write_text("class Late:\n    def build(self, config): return (\n")
    assert "Late.build" not in digests(names["Late"]())
