"""Refit: the configuration of a finished trial, trained anew on more data, as an experiment of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopfleet.backends.base import Backend
from hopfleet.data import Dataset
from hopfleet.domain import batching
from hopfleet.domain.choices import Auto
from hopfleet.domain.objectives import EPOCH
from hopfleet.domain.placement import AUTO, SINGLE, strategy_of
from hopfleet.errors import UsageError
from hopfleet.experiment.experiment import Experiment
from hopfleet.experiment.options import RunOptions, WorkerOptions
from hopfleet.experiment.resources import Joined
from hopfleet.frameworks.base import Task
from hopfleet.runs.results import Results
from hopfleet.runs.trial_result import TrialResult
from hopfleet.runs.verify import find_data
from hopfleet.search.base import at_least_one
from hopfleet.search.random import Random

BOTH = "train+valid"


def refit(
    results: Results,
    trial: TrialResult,
    on: Any,
    epochs: int | str,
    name: str | None,
    task: Task,
    workers: int | Auto,
    backend: Backend | str,
    overwrite: bool,
    quiet: bool,
) -> Results:
    """Train a trial's configuration anew, and return the results of the new experiment."""
    definition, name = results.definition, f"{results.name}-refit" if name is None else name
    with task.framework.applied(definition.get("settings", {})):
        return Experiment(
            task,
            train=_both(results, trial) if isinstance(on, str) and on == BOTH else on,
            space=dict(trial.config),
            search=Random(trials=1, max_epochs=_epochs(trial, epochs)),
            # Without validation data no epoch is known to be better than another: keep the last one.
            metric=EPOCH,
            mode="max",
            seed=definition["seed"],
            name=name,
            workers=workers,
            backend=backend,
            parallelism=_parallelism(definition, trial.config),
            batch_size=definition["batch_size"],
            run_options=RunOptions(folder=results.folder.path.with_name(name)),
            worker_options=WorkerOptions(
                device=definition["device"], threads=definition["threads"], drop_last=definition["drop_last"]
            ),
        ).fit(overwrite=overwrite, quiet=quiet)


def _parallelism(definition: Mapping[str, Any], config: Mapping[str, Any]) -> Sequence[str]:
    """Return how a trial's configuration was trained."""
    shapes: list[str] = definition.get("parallelism") or [SINGLE.strategy]
    if not (strategies := definition.get("strategies")):
        return shapes if shapes != [str(AUTO)] else str(AUTO)
    strategy, devices = strategy_of(config, strategies, ""), shapes[0].partition(":")[2]
    return f"{strategy}:{devices}" if devices and strategy != SINGLE.strategy else strategy


def _epochs(trial: TrialResult, epochs: int | str) -> int:
    if epochs != "best":
        if isinstance(epochs, str):
            raise UsageError(f"epochs={epochs!r}: must be a number of epochs, or 'best' for those until the best epoch")
        return at_least_one("epochs", epochs)
    if trial.best_epoch is None:
        raise UsageError(f"epochs='best': {trial.id} has no finished epoch; pass a number of epochs")
    return trial.best_epoch


def _both(results: Results, trial: TrialResult) -> Joined | Dataset:
    """Return the training and the validation data of an experiment; folds are both."""
    if results.definition.get("folds"):
        return find_data(results.folder, "train")
    own = "pass the data to train on, as in on=data"
    if results.definition["valid"] is None:
        raise UsageError(f"on={BOTH!r}: {results.name} has no validation data; {own}")
    train, valid = (find_data(results.folder, role) for role in ("train", "valid"))
    size = batching.batch_size(trial.config, results.definition["batch_size"])
    if size > (smallest := min(valid.partition_rows)):
        raise UsageError(
            f"on={BOTH!r}: a batch has {size} rows, but the smallest partition of the validation data only {smallest}; "
            f"{own}, with all rows in one data set"
        )
    return Joined((train, valid))
