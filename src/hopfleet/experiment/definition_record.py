"""The definition of an experiment as ``experiment.json`` keeps it, and the comparison when a run continues.

Run folders outlive releases: keys may be added here, never renamed.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hopfleet.data import Dataset
from hopfleet.domain import space as spaces
from hopfleet.domain.placement import SINGLE
from hopfleet.errors import ExperimentExists
from hopfleet.experiment.definition import Definition
from hopfleet.experiment.resources import Data
from hopfleet.frameworks.base import Task
from hopfleet.runs.results import Results, load
from hopfleet.safe_text import masked, masked_arguments
from hopfleet.search.base import name_of
from hopfleet.store.local import LOCAL
from hopfleet.support import code_digests
from hopfleet.version import __version__

UNDER_RUN = "__hopfleet__"
"""The ``__name__`` of a file that ``hopfleet run`` loads."""

SAME = (
    *("task", "space", "search", "metric", "mode", "others", "limits", "rules", "points", "warm_start", "folds"),
    *("seed", "batch_size", "drop_last", "order", "deterministic", "fuse", "store", "settings", "train", "valid"),
)
"""Parts of the definition that must not change between a run and its resumption."""

REPLACE = "fit(overwrite=True) replaces it, another name= keeps both"

SHOWN = 4
"""Changed pieces of code in a message at most."""

LONGEST = 80
"""Characters of a value in a message at most."""


def define(definition: Definition, data: Data) -> dict[str, Any]:
    """Return the definition of an experiment, ready for JSON."""
    goal, run, worker = definition.goal, definition.run_options, definition.worker_options
    further = {
        "others": [list(other) for other in goal.others],
        "limits": [str(limit) for limit in goal.limits],
        "rules": [name_of(constraint) for constraint in goal.constraints],
        "points": definition.points,
        "folds": definition.folds,
        # "exact" and "off" leave no trace in a model.
        "fuse": worker.fuse if worker.fuse == "fast" else "",
        "store": masked(run.store) if run.store != LOCAL else "",
        "deterministic": run.deterministic,
        "settings": definition.task.framework.settings(),
        "strategies": definition.strategies,
        "parallelism": [str(shape) for shape in definition.parallelism if definition.parallelism != (SINGLE,)],
    }
    return {
        "name": definition.name,
        "hopfleet": __version__,
        "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "task": _task_place(definition.task),
        "code": code_digests.digests(definition.task),
        "bare_task": not vars(definition.task),
        "space": spaces.describe(definition.space),
        "search": definition.search.describe(),
        "expected": definition.search.expected(len(definition.points)).as_json(),
        "metric": goal.metric,
        "mode": goal.mode,
        **{key: value for key, value in further.items() if value},
        "seed": definition.seed,
        "batch_size": definition.batch_size,
        "drop_last": worker.drop_last,
        "order": run.order,
        "train": _summary(data.train),
        "partition_rows": list(data.train.partition_rows),
        "valid": None if data.valid is None else _summary(data.valid),
        "policy": run.policy,
        "backend": definition.backend.name,
        "device": worker.device,
        "threads": worker.threads,
        "origin": _without_secrets(definition.origin),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what has changed between two definitions, each as ``batch_size: 32 before, 64 now``."""
    return [text for key in SAME for text in _differences(key, before.get(key), now.get(key))]


def refuse_changes(
    definition: Definition,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    data: Sequence[str] = (),
    *,
    finished: bool,
) -> None:
    """Raise an error if an earlier run was defined differently, or is finished and the task's code has changed.

    ``data`` are changes of data that the run folder holds.
    """
    found = changes(before, now)
    if before.get("seed") == now["seed"]:  # another seed deals the same rows into other partitions
        found += data
    extension = "" if data else _extension(definition, before, now)
    if finished and (pieces := changed_code(before, now)):
        found.append(f"code: {pieces} changed")
    if not found:
        return
    name, differ = definition.name, "; ".join(found)
    if finished:
        raise ExperimentExists(
            f"name={name!r}: is finished, and its definition has changed since ({differ}); hop.load({name!r}) opens "
            f"the results of the earlier definition, {extension}{REPLACE}"
        )
    raise ExperimentExists(
        f"name={name!r}: an unfinished experiment of that name is defined differently ({differ}); restore its "
        f"definition to resume it, {REPLACE}"
    )


def changed_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the functions, methods and constants of the task that have changed between two definitions, as a list."""
    names = code_digests.changed(before.get("code") or {}, now.get("code") or {})
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _extension(definition: Definition, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how to extend a finished search, if a longer search is all that has changed."""
    old, new = dict(before.get("search") or {}), dict(now.get("search") or {})
    more = {key: new.pop(key, 0) - old.pop(key, 0) for key in ("trials", "max_epochs")}
    apart = [text for text in changes(before, now) if not text.startswith("search.")]
    if apart or old != new or min(more.values()) < 0 or changed_code(before, now):
        return ""
    options = {"trials": more["trials"], "epochs": more["max_epochs"]}
    asked = ", ".join(f"{key}={value}" for key, value in options.items() if value)
    return f"hop.control({definition.folder.handle!r}).extend({asked}), then fit() with the earlier search, goes on, "


def _differences(path: str, before: Any, now: Any) -> Iterator[str]:
    if before == now:
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        if "fingerprint" in before and "fingerprint" in now:
            yield from _other_data(path, before, now)
            return
        for key in [*before, *(key for key in now if key not in before)]:
            yield from _differences(f"{path}.{key}", before.get(key), now.get(key))
    else:
        yield f"{path}: {_shown(before)} before, {_shown(now)} now"


def _other_data(role: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield how two data sets differ. The same rows may lie elsewhere."""
    counts = [key for key in ("rows", "partitions") if before[key] != now[key]]
    yield from (f"{role}: {before[key]:,} {key} before, {now[key]:,} now" for key in counts)
    if not counts and before["fingerprint"] != now["fingerprint"]:
        yield f"{role}: as many rows, but with other values or in another order"


def _shown(value: Any) -> str:
    text = "nothing" if value is None else value if isinstance(value, str) and value.endswith(")") else repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


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


def _without_secrets(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return an origin without the secrets among the arguments of a script, which ``hopfleet resume`` asks for."""
    return {**origin, **({"arguments": masked_arguments(origin["arguments"])} if "arguments" in origin else {})}


def _summary(dataset: Dataset) -> dict[str, Any]:
    url = masked(dataset.url)
    summary = {"url": url, "rows": dataset.rows, "partitions": len(dataset), "fingerprint": dataset.fingerprint}
    return summary | ({"live": True} if dataset.is_live else {})


def _task_place(task: Task) -> dict[str, str]:
    """Return where the task's class is defined: ``__main__`` for a script, run by Python or by ``hopfleet run``."""
    module = type(task).__module__
    return {"module": "__main__" if module == UNDER_RUN else module, "name": type(task).__qualname__}
