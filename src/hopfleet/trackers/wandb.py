"""A tracker for Weights & Biases: a run per trial, in one group; offline unless told otherwise."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.monitor.steps import Curves
from hopfleet.phrases import did_you_mean, shown
from hopfleet.runtime.callbacks import ExperimentInfo, TrialInfo
from hopfleet.support.files import make_folder, remove_folder
from hopfleet.trackers.base import STEPS, Tracker

MODES = ("offline", "online", "disabled", "shared")
"""What ``wandb.init`` takes as its mode."""

IN_USE = "is in use"
"""What ``wandb.init`` says of the id of a run that has not ended."""

MOST_KILLED = 100
"""Runs of one trial that killed processes may have left in a service of W&B."""


class WandB(Tracker):
    """Writes a run per trial into the run folder; ``wandb sync`` sends them later. ``mode="online"`` sends at once.

    The id of a run depends on the run folder and the trial alone, so a run that continues writes the same runs again. A
    service of W&B that this process shares with its parents may still hold the run of a killed process; the trial then
    gets a run with another id.
    """

    def __init__(self, project: str | None = None, mode: str = "offline") -> None:
        super().__init__()
        _wandb()
        if mode not in MODES:
            near = did_you_mean(mode, MODES)
            raise UsageError(f"mode={shown(mode)}: must be one of {', '.join(MODES)}; {near}".rstrip("; "))
        self._project, self._mode = project, mode
        self._experiment: ExperimentInfo | None = None
        self._runs: dict[str, Any] = {}
        self._stepped: set[str] = set()  #: trials that log values of single steps

    def write_begin(self, experiment: ExperimentInfo) -> None:
        self._experiment, self._runs, self._stepped = experiment, {}, set()
        if experiment.resumed and self._mode == "offline":
            remove_folder(self._base(experiment), ignore_errors=True)
        make_folder(self._base(experiment))

    @staticmethod
    def _base(experiment: ExperimentInfo) -> Path:
        return experiment.folder / "wandb"

    def write_trial(self, trial: TrialInfo) -> None:
        experiment = self._experiment
        assert experiment is not None
        for number in itertools.count():
            name = run_id(experiment.folder, trial.id, number)
            try:
                self._runs[trial.id] = self._started(experiment, trial, name)
                return
            except Exception as error:
                if IN_USE not in str(error) or number == MOST_KILLED:
                    raise
            self._tell(f"writes another run for {trial.id}: W&B still holds {name}, of a process that was killed")

    def _started(self, experiment: ExperimentInfo, trial: TrialInfo, name: str) -> Any:
        return _wandb().init(
            project=self._project or experiment.name,
            group=experiment.name,
            name=trial.id,
            id=name,
            config=dict(trial.chosen),
            dir=str(self._base(experiment)),
            mode=self._mode,
            resume="allow" if self._mode == "online" else None,
            reinit="create_new",
            settings=_wandb().Settings(silent=True, disable_git=True, console="off"),
        )

    def write_epoch(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float], time: float) -> None:
        if trial.id in self._stepped:
            self._runs[trial.id].log({"epoch": epoch, **metrics})
        else:
            self._runs[trial.id].log(dict(metrics), step=epoch)

    def write_steps(self, trial: TrialInfo, epoch: int, curves: Curves, time: float) -> None:
        run = self._runs[trial.id]
        if trial.id not in self._stepped:
            # A row has one number of its own, and numbers only grow: from now on, rows say what they belong to.
            self._stepped.add(trial.id)
            run.define_metric("*", step_metric="epoch")
            run.define_metric(f"{STEPS}*", step_metric="step")
        rows: dict[int, dict[str, float]] = {}
        for name, points in curves.items():
            for step, value in zip(*points, strict=True):
                rows.setdefault(step, {})[f"{STEPS}{name}"] = value
        for step in sorted(rows):
            run.log({"step": step, **rows[step]})

    def write_trial_end(self, trial: TrialInfo, state: str, reason: str) -> None:
        run = self._runs.get(trial.id)
        if run is not None:
            run.summary.update({"state": state, "reason": reason})
            run.finish(exit_code=1 if state == "failed" else 0)
            del self._runs[trial.id]

    def write_end(self, experiment: ExperimentInfo, complete: bool) -> None:
        for run in self._runs.values():
            run.finish()


def run_id(folder: Path, trial: str, number: int = 0) -> str:
    """Return the id of a trial's run, or of the run with that number that takes its place."""
    name = f"{os.path.realpath(folder)} {trial}" + (f" {number}" if number else "")
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise MissingExtra("wandb", "wandb") from error
    return wandb
