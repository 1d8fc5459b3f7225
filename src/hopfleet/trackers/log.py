"""A callback that writes a run to ``logging``, each record with the ids of its trial and its worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from hopfleet.runtime.callbacks import Callback, ExperimentInfo, HopInfo, TrialInfo, UnitInfo
from hopfleet.support.logging import messages
from hopfleet.support.plain import plain


class Log(Callback):
    """Writes to the logger ``hopfleet.run``: trials and epochs at level INFO, units and hops at DEBUG.

    Failures have the level WARNING. Each record has ``experiment`` and, where they apply, ``trial``, ``worker``,
    ``epoch``, ``partition`` and ``metrics`` as attributes, which any formatter or filter can use.
    """

    def __init__(self) -> None:
        self._name = ""

    def _write(self, level: int, text: str, **fields: object) -> None:
        logger = messages("run")
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        logger.log(level, text, extra={"experiment": self._name, **fields})

    def on_experiment_begin(self, experiment: ExperimentInfo) -> None:
        self._name = experiment.name
        self._write(logging.INFO, f"{experiment.name} {'continues' if experiment.resumed else 'starts'}")

    def on_experiment_end(self, experiment: ExperimentInfo, complete: bool) -> None:
        self._write(logging.INFO, f"{experiment.name} {'is complete' if complete else 'ends early'}")

    def on_trial_start(self, trial: TrialInfo) -> None:
        values = {"config": plain(trial.config), "chosen": plain(trial.chosen)}
        self._write(logging.INFO, f"{trial.id} starts", trial=trial.id, **values)

    def on_trial_complete(self, trial: TrialInfo, reason: str) -> None:
        self._write(logging.INFO, f"{trial.id} {f'stops: {reason}' if reason else 'completes'}", trial=trial.id)

    def on_trial_error(self, trial: TrialInfo, error: str) -> None:
        self._write(logging.WARNING, f"{trial.id} fails: {error}", trial=trial.id)

    def on_epoch_end(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float]) -> None:
        listed = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        text = f"{trial.id} ends epoch {epoch}: {listed}"
        self._write(logging.INFO, text, trial=trial.id, epoch=epoch, metrics=plain(dict(metrics)))

    def on_unit_end(self, trial: TrialInfo, unit: UnitInfo) -> None:
        place = {"trial": trial.id, "worker": unit.worker, "epoch": unit.epoch, "partition": unit.partition}
        what = f"{trial.id} epoch {unit.epoch} partition {unit.partition} on {unit.worker}"
        if unit.error:
            self._write(logging.WARNING, f"{what} fails: {unit.error}", seconds=unit.seconds, **place)
        else:
            self._write(logging.DEBUG, f"{what}: {unit.work}, {unit.seconds:.3f} s", seconds=unit.seconds, **place)

    def on_hop(self, trial: TrialInfo, hop: HopInfo) -> None:
        text = f"{trial.id} hops from {hop.source} to {hop.target}"
        self._write(logging.DEBUG, text, trial=trial.id, worker=hop.target, epoch=hop.epoch, partition=hop.partition)
