"""The definition of an experiment as ``experiment.json`` keeps it, and the comparison when a run continues.

Run folders outlive releases: keys may be added here, never renamed.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopfleet.data import Dataset
from hopfleet.domain import space as spaces
from hopfleet.errors import ExperimentExists
from hopfleet.experiment.resources import Data
from hopfleet.frameworks.base import Task
from hopfleet.runs.results import Results, load
from hopfleet.search.base import name_of
from hopfleet.store.local import LOCAL
from hopfleet.version import __version__

if TYPE_CHECKING:
    from hopfleet.experiment.experiment import Experiment

UNDER_RUN = "__hopfleet__"
"""The ``__name__`` of a file that ``hopfleet run`` loads."""

SAME = (
    *("task", "space", "search", "metric", "mode", "others", "limits", "rules", "points", "warm_start"),
    *("seed", "batch_size", "drop_last", "order", "fuse", "store", "train", "valid"),
)
"""Parts of the definition that must not change between a run and its resumption."""

REPLACE = "fit(overwrite=True) replaces it, another name= keeps both"


def define(experiment: Experiment, data: Data) -> dict[str, Any]:
    """Return the definition of an experiment, ready for JSON."""
    goal, run, worker = experiment.goal, experiment.run_options, experiment.worker_options
    further = {
        "others": [list(other) for other in goal.others],
        "limits": [str(limit) for limit in goal.limits],
        "rules": [name_of(constraint) for constraint in goal.constraints],
        "points": experiment.points,
        # "exact" and "off" leave no trace in a model.
        "fuse": worker.fuse if worker.fuse == "fast" else "",
        "store": run.store if run.store != LOCAL else "",
    }
    return {
        "name": experiment.name,
        "hopfleet": __version__,
        "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "task": _task_place(experiment.task),
        "space": spaces.describe(experiment.space),
        "search": experiment.search.describe(),
        "metric": goal.metric,
        "mode": goal.mode,
        **{key: value for key, value in further.items() if value},
        "seed": experiment.seed,
        "batch_size": experiment.batch_size,
        "drop_last": worker.drop_last,
        "order": run.order,
        "train": _summary(data.train),
        "valid": None if data.valid is None else _summary(data.valid),
        "policy": run.policy,
        "backend": experiment.backend.name,
        "device": worker.device,
        "threads": worker.threads,
        "origin": experiment.origin,
    }


def check_same(name: str, before: Mapping[str, Any], definition: Mapping[str, Any]) -> None:
    """Raise an error if an unfinished experiment was defined differently."""
    differ = [key for key in SAME if before.get(key) != definition.get(key)]
    if differ:
        raise ExperimentExists(
            f"name={name!r}: an unfinished experiment of that name has another {', '.join(differ)}; "
            f"resume it with its own definition; {REPLACE}"
        )


def earlier_trials(sources: Sequence[Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the definition with the trials of earlier experiments.

    A run that continues takes the part from its definition ``before``, if that part names the same experiments.
    """
    if not sources:
        return {}
    names = [source.name if isinstance(source, Results) else str(source) for source in sources]
    known: dict[str, Any] = before.get("warm_start") or {}
    if known.get("names") == names:
        return {"warm_start": known}
    found = [source.refresh() if isinstance(source, Results) else load(source) for source in sources]
    trials = [
        {"config": trial.config, "metrics": {name: value for name, value in last.items() if math.isfinite(value)}}
        for results in found
        for trial in results.trials
        for last in trial.history[-1:]
    ]
    return {"warm_start": {"names": names, "trials": trials}}


def script_origin() -> dict[str, Any]:
    """Return how to run the current script again, empty if no script is running."""
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    if script is not None and script.suffix == ".py" and script.is_file():
        return {"how": "script", "file": str(script.absolute()), "arguments": sys.argv[1:], "cwd": str(Path.cwd())}
    return {}


def _summary(dataset: Dataset) -> dict[str, Any]:
    summary = {"url": dataset.url, "rows": dataset.rows, "partitions": len(dataset), "fingerprint": dataset.fingerprint}
    return summary | ({"live": True} if dataset.is_live else {})


def _task_place(task: Task) -> dict[str, str]:
    """Return where the task's class is defined: ``__main__`` for a script, run by Python or by ``hopfleet run``."""
    module = type(task).__module__
    return {"module": "__main__" if module == UNDER_RUN else module, "name": type(task).__qualname__}
