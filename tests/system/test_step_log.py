"""Values of single steps in whole experiments: each point once, on any worker and after any interruption."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.cli.app import main
from hopfleet.domain.messages import TrialRolledBack, UnitFinished
from hopfleet.domain.step_values import NAMES
from hopfleet.errors import HopfleetError, Interrupted
from hopfleet.runtime.callbacks import TrialInfo, UnitInfo
from hopfleet.store.local import open_journal
from hopfleet.support.files import remove_file
from tests.helpers.sample_tasks import Plain, arrays

ROWS, PARTITIONS, BATCH, EPOCHS = 91, 3, 5, 3
STEPS = 19
"""Of an epoch: the partition of 31 rows has 7 batches, and those of 30 rows have 6."""


class Logged(Plain):
    """Logs its learning rates, its loss, and how many steps there have been."""

    lr_step = "batch"
    log_lr = True

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer = super().build(config)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.total_steps)
        model.register_buffer("steps", torch.zeros(()))
        return model, optimizer, schedule

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        if model.training:
            model.steps += 1
        self.log("steps", model.steps)
        self.log("loss", loss)
        return loss


class Many(Logged):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        for number in range(NAMES + 1):
            self.log(f"value {number}", number)
        return super().loss(model, batch)


def experiment(task: hop.TorchTask | None = None, **changes: Any) -> hop.Experiment:
    given: dict[str, Any] = {
        "train": arrays(ROWS),
        "valid": arrays(20, seed=1),
        "space": {"lr": hop.grid_search([0.03, 0.1])},
        "search": hop.Grid(max_epochs=EPOCHS),
        "metric": "loss",
        "mode": "min",
        "name": "e",
        "backend": "inline",
        "workers": 1,
        "batch_size": BATCH,
        "partitions": PARTITIONS,
        **changes,
    }
    return hop.Experiment(task or Logged(), **given)


def rates(lr: float, total: int) -> list[float]:
    """Return the learning rates of all steps of a schedule by itself."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    found = []
    for _ in range(total):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return found


def check(results: hop.Results) -> None:
    """Every step of every trial is there once, with its number and its learning rate."""
    total = STEPS * EPOCHS
    assert results.finished
    for trial in results.trials:
        logged = trial.logged
        assert [step for step, _ in logged["lr"]] == list(range(total)), trial.visits
        assert [value for _, value in logged["lr"]] == rates(trial.config["lr"], total)
        assert logged["steps"] == [(step, step + 1.0) for step in range(total)]
        losses = [value for _, value in logged["loss"]]
        for epoch in range(EPOCHS):
            part = losses[STEPS * epoch : STEPS * (epoch + 1)]
            assert min(part) < trial.history[epoch]["train_loss"] < max(part)


@pytest.mark.parametrize(
    ("workers", "fuse"),
    [
        pytest.param(1, "off", marks=pytest.mark.slow),
        pytest.param(4, "off", marks=pytest.mark.slow),
        (2, "exact"),
        pytest.param(2, "fast", marks=pytest.mark.slow),
    ],
)
def test_every_step_is_logged_once(workers: int, fuse: str) -> None:
    results = experiment(workers=workers, worker_options=hop.WorkerOptions(fuse=fuse)).fit(quiet=True)
    check(results)


@pytest.mark.slow
def test_every_step_is_logged_once_by_processes() -> None:
    check(experiment(workers=2, backend="local").fit(quiet=True))


class StopsAfter(hop.Callback):
    """Interrupts the run after some units."""

    def __init__(self, units: int) -> None:
        self.left = units

    def on_unit_end(self, trial: TrialInfo, unit: UnitInfo) -> None:
        self.left -= unit.work == "train"
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [pytest.param(False, marks=pytest.mark.slow), True], ids=["resumed", "rolled back"])
def test_a_run_that_is_interrupted_logs_every_step_once(lost: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Versions that are lost are trained again: their units replace the points of the earlier attempt."""
    trackers = ["csv", "jsonl"]
    with pytest.raises(Interrupted):
        experiment(callbacks=[*trackers, StopsAfter(14)]).fit(quiet=True)
    interrupted = hop.load("e")
    before = {trial.id: trial.logged for trial in interrupted.trials}
    if lost:
        for file in (interrupted.folder.path / "checkpoints").rglob("v*.safetensors"):
            remove_file(file)
    results = experiment(callbacks=trackers).fit(quiet=True)
    check(results)
    for trial in results.trials:
        for name, points in before[trial.id].items():
            assert trial.logged[name][: len(points)] == points
    journal = open_journal(results.folder)
    messages = [message for _, _, message in journal.read()]
    journal.close()
    assert any(isinstance(message, TrialRolledBack) for message in messages) is lost
    units = [message for message in messages if isinstance(message, UnitFinished)]
    assert all((message.logged is None) is not message.unit.trains for message in units)
    check_files(results)
    check_commands(results, capsys)


def check_files(results: hop.Results) -> None:
    expected = {(trial.id, name, *point) for trial in results for name in trial.logged for point in trial.logged[name]}
    with (results.folder.path / "metrics.steps.csv").open() as file:
        rows = [(row["trial"], row["name"], int(row["step"]), float(row["value"])) for row in csv.DictReader(file)]
    assert len(rows) == len(set(rows)) and set(rows) == expected
    lines = [json.loads(line) for line in (results.folder.path / "metrics.jsonl").read_text().splitlines()]
    points = [
        (line["trial"], line["name"], *point)
        for line in lines
        if line["kind"] == "steps"
        for point in zip(line["steps"], line["values"], strict=True)
    ]
    assert len(points) == len(set(points)) and set(points) == expected
    frame = results.steps()
    assert set(frame.itertuples(index=False, name=None)) == expected and len(frame) == len(expected)


def check_commands(results: hop.Results, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["show", "e", "--trial", "1"]) == 0
    assert f"in step {STEPS * EPOCHS - 1}, {STEPS * EPOCHS} values logged" in capsys.readouterr().out
    assert main(["export", "e", "--steps", "--csv", "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(results.steps()) + 1
    assert main(["plot", "e", "steps", "--metric", "lr", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["metric"] == "lr" and {curve["trial"] for curve in data["curves"]} == {"t0001", "t0002"}


def test_folds_log_the_mean_of_their_models() -> None:
    results = experiment(valid="kfold(3)", search=hop.Grid(max_epochs=1)).fit(quiet=True)
    for trial in results.trials:
        logged = trial.logged
        assert [step for step, _ in logged["lr"]] == list(range(STEPS))
        # Each unit trains two of the three models, and neither has seen a batch before the first unit.
        assert [value for _, value in logged["steps"]][:6] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_name_too_many_fails_its_trial(tmp_path: Path) -> None:
    with pytest.raises(HopfleetError, match=r"a unit must log at most 20 names, got one more; log fewer values"):
        experiment(Many()).fit(quiet=True)
