"""Trackers that write plain files: one line per epoch, as JSON or as CSV."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from hopfleet.monitor.steps import Curves
from hopfleet.runtime.callbacks import ExperimentInfo, TrialInfo
from hopfleet.support.files import make_folder, start_text
from hopfleet.support.plain import plain
from hopfleet.trackers.base import Tracker


class _FileTracker(Tracker):
    """A tracker that writes one file, by default into the run folder. A run that continues writes the file again."""

    name = ""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self._path = None if path is None else Path(path).expanduser()
        self._file: TextIO | None = None

    def write_begin(self, experiment: ExperimentInfo) -> None:
        path = self._path or experiment.folder / self.name
        make_folder(path.parent)
        self._file = start_text(path)

    def write_end(self, experiment: ExperimentInfo, complete: bool) -> None:
        if self._file is not None:
            self._file.close()


class JsonLines(_FileTracker):
    """Writes ``metrics.jsonl``: an object per line for each trial, each epoch and each end of a trial."""

    name = "metrics.jsonl"

    def write_trial(self, trial: TrialInfo) -> None:
        values = {"config": trial.config, "chosen": trial.chosen}
        self._line(kind="trial", trial=trial.id, **values, origin=trial.origin, parent=trial.parent)

    def write_epoch(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float], time: float) -> None:
        self._line(kind="epoch", trial=trial.id, epoch=epoch, time=time, metrics=metrics)

    def write_steps(self, trial: TrialInfo, epoch: int, curves: Curves, time: float) -> None:
        for name, (steps, values) in curves.items():
            points = {"steps": list(steps), "values": list(values)}
            self._line(kind="steps", trial=trial.id, epoch=epoch, time=time, name=name, **points)

    def write_trial_end(self, trial: TrialInfo, state: str, reason: str) -> None:
        self._line(kind="end", trial=trial.id, state=state, reason=reason)

    def _line(self, **values: object) -> None:
        assert self._file is not None
        self._file.write(json.dumps(plain(values), allow_nan=False) + "\n")
        self._file.flush()


class Csv(_FileTracker):
    """Writes ``metrics.csv``: a line per trial, epoch and metric.

    Values of single steps are in ``metrics.steps.csv`` beside it, if there are any.
    """

    name = "metrics.csv"

    def write_begin(self, experiment: ExperimentInfo) -> None:
        super().write_begin(experiment)
        path = self._path or experiment.folder / self.name
        self._steps_path = path.with_suffix(f".steps{path.suffix}")
        self._steps_file: TextIO | None = None
        self._lines([["trial", "epoch", "time", "metric", "value"]])

    def write_epoch(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float], time: float) -> None:
        self._lines([[trial.id, epoch, time, name, value] for name, value in sorted(metrics.items())])

    def write_steps(self, trial: TrialInfo, epoch: int, curves: Curves, time: float) -> None:
        if self._steps_file is None:
            self._steps_file = start_text(self._steps_path)
            self._lines([["trial", "epoch", "name", "step", "value"]], self._steps_file)
        for name, points in curves.items():
            self._lines([[trial.id, epoch, name, *point] for point in zip(*points, strict=True)], self._steps_file)

    def write_end(self, experiment: ExperimentInfo, complete: bool) -> None:
        super().write_end(experiment, complete)
        if self._steps_file is not None:
            self._steps_file.close()

    def _lines(self, rows: list[list[object]], file: TextIO | None = None) -> None:
        file = file or self._file
        assert file is not None
        csv.writer(file).writerows(rows)
        file.flush()
