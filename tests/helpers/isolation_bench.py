"""A worker in this process whose trials train in turn or together, for tests of what they see of each other."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hopfleet.data.dataset import open_dataset
from hopfleet.domain.messages import RunUnit, SaveVersion, UnitFailed, UnitFinished, VersionSaved
from hopfleet.domain.placement import CPU
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.frameworks.base import Task
from hopfleet.worker.logs import copied
from hopfleet.worker.spec import WorkerSpec
from hopfleet.worker.worker import Worker


class Bench:
    """A worker that trains some trials for two units each, with an evaluation after each unit.

    ``place`` has a data set of two partitions in the folder "data".
    """

    def __init__(self, task: Task, place: Path, mode: str) -> None:
        data = open_dataset(place / "data")
        self.events: list[Any] = []
        self._mode = mode
        self._attempt = 0
        folders: dict[str, Any] = {"checkpoints": Path(mkdtemp(dir=place)), "logs": place}
        numbers: dict[str, Any] = {"seed": 0, "threads": 1, "batch_size": 3, "drop_last": False}
        spec = WorkerSpec(task, data, data, **folders, **numbers, device="cpu", fast=mode == "fast")
        self._worker = Worker("w1", spec, CPU, self.events.extend, capture=copied, guest=mode == "inline")

    def run(self, configs: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Train, and return the bits and metrics of each trial, or the reason of its failure."""
        trials = [Trial(name, number, config, 0, 1) for number, (name, config) in enumerate(configs.items())]
        saved: dict[str, VersionRef] = {trial.id: VersionRef(trial.id, 0, None) for trial in trials}
        for partition in (0, 1):
            for work in (Work.TRAIN, Work.EVALUATE):
                self._units(trials, Unit("", 1, partition, work), saved)
                for trial in trials if work is Work.TRAIN else ():
                    self._attempt += 1
                    saved[trial.id] = VersionRef(trial.id, partition + 1, self._attempt)
                    self._worker.execute(SaveVersion("w1", saved[trial.id], durable=True), trial)
        self._worker.close()
        return {trial.id: self._outcome(trial.id) for trial in trials}

    def _units(self, trials: list[Trial], unit: Unit, models: dict[str, VersionRef]) -> None:
        together = self._mode in ("exact", "inline", "fast") and len(trials) > 1
        for trial in trials:
            self._attempt += 1
            own = Unit(trial.id, unit.epoch, unit.partition, unit.work)
            more = together and trial is not trials[-1]
            command = RunUnit("w1", own, self._attempt, models[trial.id], flotilla=int(together), more=more)
            self._worker.execute(command, trial)

    def _outcome(self, trial: str) -> Any:
        mine = [
            event for event in self.events if isinstance(event, UnitFinished | UnitFailed) and event.unit.trial == trial
        ]
        digests = [
            event.digest for event in self.events if isinstance(event, VersionSaved) and event.ref.trial == trial
        ]
        return digests, [event.sums if isinstance(event, UnitFinished) else event.error for event in mine]
