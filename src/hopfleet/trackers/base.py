"""The common part of trackers: a thread that writes, so that a run never waits for a disk, a network or a library.

A run that continues tells a tracker all epochs of the earlier runs again, from the journal, before new ones. So a
tracker starts its output afresh, and a process that was killed leaves neither gaps nor doubled points.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from hopfleet.errors import describe
from hopfleet.monitor.steps import Curves
from hopfleet.runs.results import Results
from hopfleet.runtime.callbacks import Callback, ExperimentInfo, TrialInfo
from hopfleet.store.folder import RunFolder
from hopfleet.support.clock import now
from hopfleet.support.logging import messages

MOST_WAITING = 100_000
"""Jobs that may wait for the thread; further ones are dropped, with one warning."""

STEPS = "step/"
"""How trackers name values of single steps: a metric of epochs may have the same name."""

END_SECONDS = 30.0
"""Seconds for which the end of a run waits for its tracker."""


class Tracker(Callback):
    """A callback whose ``write_*`` methods run in a thread of its own, one after another.

    An error is logged once and never reaches the run. A tracker that hangs loses what it has not written.
    """

    recalls = True  #: whether the epochs of earlier runs are told again

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], object] | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()  #: problems that were logged
        self._seen: dict[str, int] = {}  #: the last epoch written, by trial

    # ------------------------------------------------------------------------------- what a tracker overrides

    def write_begin(self, experiment: ExperimentInfo) -> None:
        """Open the output, and discard what an earlier run has written."""

    def write_trial(self, trial: TrialInfo) -> None:
        """Write that a trial has started."""

    def write_epoch(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float], time: float) -> None:
        """Write the metrics of an epoch. ``time`` is in seconds since 1970."""

    def write_steps(self, trial: TrialInfo, epoch: int, curves: Curves, time: float) -> None:
        """Write the values of single steps that an epoch logged: for each name, steps and values."""

    def write_trial_end(self, trial: TrialInfo, state: str, reason: str) -> None:
        """Write that a trial has ended: ``completed``, ``stopped`` or ``failed``."""

    def write_end(self, experiment: ExperimentInfo, complete: bool) -> None:
        """Close the output."""

    # -------------------------------------------------------------------------------------------------- hooks

    def on_experiment_begin(self, experiment: ExperimentInfo) -> None:
        self._jobs, self._seen = queue.Queue(MOST_WAITING), {}
        self._thread = threading.Thread(target=self._work, args=(self._jobs,), daemon=True, name="hopfleet-tracker")
        self._thread.start()
        self._add(self.write_begin, experiment)
        if experiment.resumed and self.recalls:
            self._add(self._recall, experiment)

    def on_trial_start(self, trial: TrialInfo) -> None:
        self._add(self._start, trial)

    def on_epoch_end(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float]) -> None:
        self._add(self._epoch, trial, epoch, metrics, now())

    def on_steps_logged(self, trial: TrialInfo, epoch: int, curves: Curves) -> None:
        self._add(self._steps, trial, epoch, curves, now())

    def on_trial_complete(self, trial: TrialInfo, reason: str) -> None:
        self._add(self.write_trial_end, trial, "stopped" if reason else "completed", reason)

    def on_trial_error(self, trial: TrialInfo, error: str) -> None:
        self._add(self.write_trial_end, trial, "failed", error)

    def on_experiment_end(self, experiment: ExperimentInfo, complete: bool) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._add(self.write_end, experiment, complete)
        with contextlib.suppress(queue.Full):
            self._jobs.put_nowait(None)
        thread.join(END_SECONDS)
        if thread.is_alive():
            self._tell("has not finished writing and is left behind; its output may be incomplete")

    # ------------------------------------------------------------------------------------------------- thread

    def _add(self, job: Callable[..., object], *arguments: Any) -> None:
        try:
            self._jobs.put_nowait(lambda: job(*arguments))
        except queue.Full:
            self._tell("is too slow; some of its output is lost")

    def _work(self, jobs: queue.Queue[Callable[[], object] | None]) -> None:
        while (job := jobs.get()) is not None:
            try:
                job()
            except Exception as error:
                self._tell(f"cannot write: {describe(error)}; the run continues, and further errors are not shown")

    def _tell(self, what: str) -> None:
        kind = what.partition(":")[0]
        if kind not in self._told:
            self._told.add(kind)
            messages().warning(f"tracker {type(self).__name__} {what}")

    def _start(self, trial: TrialInfo) -> None:
        if trial.id not in self._seen:
            self._seen[trial.id] = 0
            self.write_trial(trial)

    def _steps(self, trial: TrialInfo, epoch: int, curves: Curves, time: float) -> None:
        self._start(trial)
        if curves and epoch > self._seen[trial.id]:
            self.write_steps(trial, epoch, curves, time)

    def _epoch(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float], time: float) -> None:
        self._start(trial)
        if epoch > self._seen[trial.id]:
            self._seen[trial.id] = epoch
            self.write_epoch(trial, epoch, metrics, time)

    def _recall(self, experiment: ExperimentInfo) -> None:
        """Write what the journal has. Epochs that end meanwhile come again as calls, and are then known."""
        history = Results(RunFolder(experiment.folder)).history
        for trial in history.trials.values():
            told = 0
            facts = trial.id, trial.number, trial.config, trial.epochs, trial.origin, trial.parent
            info = TrialInfo(*facts, trial.displayed)
            for row in sorted(trial.epochs_done, key=lambda row: row.epoch):
                curves = trial.logged.curves(history.definition, trial.config, told, row.version)
                told = row.version
                self._steps(info, row.epoch, curves, row.time)
                self._epoch(info, row.epoch, row.metrics, row.time)
            if trial.state.ended and trial.id in self._seen:
                self.write_trial_end(info, trial.state.value, trial.reason)
