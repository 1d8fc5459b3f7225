"""A tracker for TensorBoard: a folder of event files per trial, with scalars and the HParams plugin."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from hopfleet.errors import MissingExtra
from hopfleet.monitor.steps import Curves
from hopfleet.monitor.wording import flatten
from hopfleet.runtime.callbacks import ExperimentInfo, TrialInfo
from hopfleet.support.files import make_folder, remove_file
from hopfleet.trackers.base import STEPS, Tracker

FOLDER = "tensorboard"
"""The folder of event files in the run folder."""


class TensorBoard(Tracker):
    """Writes event files into ``folder``, by default ``tensorboard`` in the run folder.

    A run that continues replaces the files of its trials.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        _modules()
        self._folder = None if folder is None else Path(folder).expanduser()
        self._base = Path()
        self._writers: dict[str, Any] = {}

    def write_begin(self, experiment: ExperimentInfo) -> None:
        self._base = (self._folder / experiment.name) if self._folder else experiment.folder / FOLDER
        self._writers = {}
        make_folder(self._base)
        for path in self._base.glob("t[0-9]*"):
            _clear(path)

    def write_trial(self, trial: TrialInfo) -> None:
        modules = _modules()
        folder = self._base / trial.id
        make_folder(folder)
        _clear(folder)
        self._writers[trial.id] = modules.EventFileWriter(str(folder))
        values = {name: _hparam(value) for name, value in flatten(trial.chosen).items()}
        event = modules.Event(summary=modules.hparams_pb(values, trial_id=trial.id))
        self._writers[trial.id].add_event(event)

    def write_epoch(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float], time: float) -> None:
        modules = _modules()
        values = [modules.Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        event = modules.Event(wall_time=time, step=epoch, summary=modules.Summary(value=values))
        self._writers[trial.id].add_event(event)
        self._writers[trial.id].flush()

    def write_steps(self, trial: TrialInfo, epoch: int, curves: Curves, time: float) -> None:
        modules = _modules()
        for name, points in curves.items():
            for step, value in zip(*points, strict=True):
                point = modules.Summary.Value(tag=f"{STEPS}{name}", simple_value=value)
                event = modules.Event(wall_time=time, step=step, summary=modules.Summary(value=[point]))
                self._writers[trial.id].add_event(event)

    def write_trial_end(self, trial: TrialInfo, state: str, reason: str) -> None:
        writer = self._writers.get(trial.id)
        if writer is not None:
            writer.flush()

    def write_end(self, experiment: ExperimentInfo, complete: bool) -> None:
        for writer in self._writers.values():
            writer.close()


def _hparam(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)


class _Modules:
    """The parts of TensorBoard that write. They need no TensorFlow, which takes seconds to import."""

    def __init__(self) -> None:
        sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.plugins.hparams.summary_v2 import hparams_pb
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise MissingExtra("TensorBoard", "tensorboard") from error
        self.Event: Any = Event
        self.Summary: Any = Summary
        self.EventFileWriter: Any = EventFileWriter
        self.hparams_pb: Any = hparams_pb


def _clear(folder: Path) -> None:
    """Delete the event files of an earlier run; a folder that is a link is left as it is."""
    if not folder.is_symlink():
        for file in folder.glob("events.out.tfevents.*"):
            remove_file(file)


def _modules() -> _Modules:
    return _Modules()
