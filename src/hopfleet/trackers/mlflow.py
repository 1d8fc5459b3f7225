"""A tracker for MLflow: a parent run for the experiment and a child run for each trial, both with artefacts."""

from __future__ import annotations

import os
import re
import socket
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.monitor.steps import Curves
from hopfleet.monitor.wording import flatten
from hopfleet.runtime.callbacks import ExperimentInfo, TrialInfo
from hopfleet.store.folder import RunFolder
from hopfleet.trackers.base import STEPS, Tracker

LONGEST_VALUE = 500
"""Characters of a parameter; MLflow refuses longer ones."""

MOST_POINTS = 1000
"""Values that MLflow takes at once."""

ANSWER_SECONDS = 5.0
"""Longest wait for a server before a run starts."""

STATES = {"completed": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    """Logs to the server or database ``uri``: MLFLOW_TRACKING_URI, or ``mlflow.db`` in the run folder.

    A run that continues finds its runs by their tags, and logs only epochs that they do not have. The artefacts are the
    definition of the experiment, and the configuration and the log of each trial that has ended.
    """

    def __init__(self, uri: str | None = None, experiment: str | None = None) -> None:
        super().__init__()
        _client_class()
        self._uri, self._experiment = uri, experiment
        self._client: Any = None
        self._place = self._parent = ""
        self._folder = Path()
        self._metric = ""
        self._runs: dict[str, str] = {}
        self._logged: dict[str, int] = {}  #: the last epoch that the server has, by trial

    def check(self) -> None:
        """Raise UsageError if the server at the URI does not answer."""
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
        place = urllib.parse.urlsplit(uri)
        if place.scheme not in ("http", "https"):
            return
        try:
            port = place.port or (443 if place.scheme == "https" else 80)
            socket.create_connection((place.hostname or "", port), timeout=ANSWER_SECONDS).close()
        except (OSError, ValueError) as error:
            raise UsageError(
                f"uri={uri!r}: no MLflow server answers ({error}); start it, correct the URI, or leave uri out, which "
                "writes into the run folder"
            ) from None

    def write_begin(self, experiment: ExperimentInfo) -> None:
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI")
        own = None if uri else (experiment.folder / "mlflow").as_uri()  # or it would be in the current directory
        self._client = client = _client_class()(tracking_uri=uri or f"sqlite:///{experiment.folder / 'mlflow.db'}")
        self._metric, self._runs, self._logged = experiment.metric, {}, {}
        name = self._experiment or experiment.name
        found = client.get_experiment_by_name(name)
        self._place = found.experiment_id if found else client.create_experiment(name, own)
        folder = str(experiment.folder)
        runs = client.search_runs([self._place], f"tags.`hopfleet.folder` = '{_quoted(folder)}'", max_results=50_000)
        for run in runs if experiment.resumed else ():
            if trial := run.data.tags.get("hopfleet.trial"):
                self._runs[trial] = run.info.run_id
                history = client.get_metric_history(run.info.run_id, _accepted(self._metric))
                self._logged[trial] = max((point.step for point in history), default=0)
            else:
                self._parent = run.info.run_id
        if not (experiment.resumed and self._parent):
            tags = {"hopfleet.folder": folder, "mlflow.runName": experiment.name}
            self._parent = client.create_run(self._place, tags=tags).info.run_id
        self._folder = experiment.folder
        client.log_artifact(self._parent, str(RunFolder(experiment.folder).definition_file))

    def write_trial(self, trial: TrialInfo) -> None:
        if trial.id in self._runs:
            return
        tags = {"mlflow.runName": trial.id, "mlflow.parentRunId": self._parent, "hopfleet.trial": trial.id}
        run = self._client.create_run(self._place, tags={**tags, "hopfleet.folder": str(self._folder)}).info.run_id
        self._runs[trial.id] = run
        params = [_entity("Param")(name, str(value)[:LONGEST_VALUE]) for name, value in flatten(trial.chosen).items()]
        self._client.log_batch(run, params=params)

    def write_epoch(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float], time: float) -> None:
        if epoch <= self._logged.get(trial.id, 0):
            return
        make = _entity("Metric")
        points = [make(_accepted(name), float(value), int(time * 1000), epoch) for name, value in metrics.items()]
        self._client.log_batch(self._runs[trial.id], metrics=points)

    def write_steps(self, trial: TrialInfo, epoch: int, curves: Curves, time: float) -> None:
        if epoch <= self._logged.get(trial.id, 0):
            return
        make, when = _entity("Metric"), int(time * 1000)
        for name, columns in curves.items():
            points = [
                make(_accepted(f"{STEPS}{name}"), value, when, step) for step, value in zip(*columns, strict=True)
            ]
            for begin in range(0, len(points), MOST_POINTS):
                self._client.log_batch(self._runs[trial.id], metrics=points[begin : begin + MOST_POINTS])

    def write_trial_end(self, trial: TrialInfo, state: str, reason: str) -> None:
        if run := self._runs.get(trial.id):
            if reason:
                self._client.set_tag(run, "hopfleet.reason", reason[:LONGEST_VALUE])
            self._client.log_dict(run, dict(trial.config), "config.json")
            if (log := RunFolder(self._folder).logs / f"{trial.id}.log").is_file():
                self._client.log_artifact(run, str(log))
            self._client.set_terminated(run, STATES.get(state, "FINISHED"))

    def write_end(self, experiment: ExperimentInfo, complete: bool) -> None:
        self._client.set_terminated(self._parent, "FINISHED" if complete else "KILLED")


def _accepted(name: str) -> str:
    """Return the name of a metric with characters that MLflow accepts."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _client_class() -> Any:
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise MissingExtra("MLflow", "mlflow") from error
    return MlflowClient


def _entity(name: str) -> Any:
    from mlflow import entities

    return getattr(entities, name)
