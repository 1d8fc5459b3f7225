"""Trials do not see what others change in their process: bits of a trial do not depend on its neighbours."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.data.dataset import open_dataset
from hopfleet.domain.messages import RunUnit, SaveVersion, UnitFailed, UnitFinished, VersionSaved
from hopfleet.domain.placement import CPU
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.worker.logs import copied
from hopfleet.worker.spec import WorkerSpec
from hopfleet.worker.surroundings.table import settings_of
from hopfleet.worker.worker import Worker
from tests.helpers.process_changes import CHANGES, Sensitive, seen


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("isolation")
    x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    hop.partition({"x": x, "y": x.sum(1)}, folder / "data", partitions=2)
    trained(folder, "exact", {"one": config(), "other": config()})  # libraries change settings when they are first used
    return folder


class Bench:
    """A worker that trains some trials for two units each, with an evaluation after each unit."""

    def __init__(self, place: Path, mode: str) -> None:
        data = open_dataset(place / "data")
        self.events: list[Any] = []
        self._mode = mode
        self._attempt = 0
        folders: dict[str, Any] = {"checkpoints": place / "versions", "logs": place}
        numbers: dict[str, Any] = {"seed": 0, "threads": 1, "batch_size": 3, "drop_last": False}
        spec = WorkerSpec(Sensitive(), data, data, **folders, **numbers, device="cpu", fast=mode == "fast")
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
        return digests, [getattr(event, "sums", None) or getattr(event, "reason", "") for event in mine]


def config(change: str = "", hook: str = "") -> dict[str, Any]:
    return {"lr": 0.05, "change": change, "hook": hook}


@functools.cache
def alone(place: Path, mode: str, change: str = "", hook: str = "") -> Any:
    """Return the outcome of a trial that is by itself."""
    return trained(place, mode, {"t": config(change, hook)})["t"]


def trained(place: Path, mode: str, configs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    draws = {"draws": mode != "fast"}  # trials that draw from streams of the host are not stacked
    return Bench(place, mode).run({name: {**config, **draws} for name, config in configs.items()})


@pytest.mark.parametrize(
    ("hook", "mode"),
    [
        ("build", "exact"),
        ("loss", "exact"),
        ("metrics", "inline"),
        pytest.param("loss", "off", marks=pytest.mark.slow),
        pytest.param("build", "fast", marks=pytest.mark.slow),
    ],
)
def test_a_trial_among_others_that_change_everything(place: Path, hook: str, mode: str) -> None:
    before, expected = seen(), alone(place, mode)
    others = {change: config(change, hook) for change in CHANGES}
    last = {"last": config()} if mode != "fast" else {}  # two trials that are alike would be stacked
    found = trained(place, mode, {"first": config(), **others, **last})
    assert found["first"] == expected
    assert mode == "fast" or found["last"] == expected
    assert seen() == before


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["build", "loss", "metrics"])
@pytest.mark.parametrize("change", CHANGES)
def test_bits_do_not_depend_on_a_neighbour(place: Path, change: str, hook: str) -> None:
    before, modes = seen(), ["off", "exact", "inline", "fast"]
    if hook == "metrics":
        modes.remove("fast")  # a stack that a change in metrics() breaks up has trained together before
    mode = modes[(list(CHANGES).index(change) + len(hook)) % len(modes)]
    found = trained(place, mode, {"dirty": config(change, hook), "t": config()})
    assert found["t"] == alone(place, mode), mode
    assert found["dirty"] == alone(place, mode, change, hook), mode
    assert seen() == before, mode


def test_the_table_is_covered() -> None:
    named = {setting.name for setting in settings_of(Sensitive()) if setting.restore is not None}
    assert named - {"inference mode"} == {change.row for change in CHANGES.values()} - {""}
