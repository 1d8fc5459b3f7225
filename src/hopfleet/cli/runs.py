"""Facts about an experiment beside its results: its state, its size on disk, and how to load its model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from hopfleet.errors import CheckpointError, NotFound
from hopfleet.store.folder import RunFolder

if TYPE_CHECKING:
    from hopfleet.runs.results import Results, TrialResult


class RunState(Enum):
    """The state of an experiment as the commands show it."""

    RUNNING = "running"  #: a process holds the run folder's lock
    FINISHED = "finished"  #: all trials have ended
    INTERRUPTED = "interrupted"  #: not running, and can be resumed


def run_state(results: Results) -> RunState:
    if results.finished:
        return RunState.FINISHED
    return RunState.RUNNING if results.folder.running else RunState.INTERRUPTED


def trial_counts(results: Results) -> dict[str, int]:
    """Count the trials in each state, leaving out empty states."""
    return {state.value: count for state, count in results.history.counts().items() if count}


def bytes_on_disk(folder: RunFolder) -> int:
    """Sum the sizes of all files in a run folder, ignoring files that disappear meanwhile."""
    total = 0
    for path, _, files in os.walk(folder.path):
        for file in files:
            try:
                total += os.lstat(os.path.join(path, file)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total


def find_trial(results: Results, name: str) -> TrialResult:
    """Return a trial by its id or by its number alone: ``3`` is ``t0003``."""
    return results[f"t{int(name):04d}" if name.isascii() and name.isdigit() else name]


def checkpoint_path(trial: TrialResult) -> str | None:
    """Return the path of the trial's best checkpoint, or None."""
    try:
        return str(trial.checkpoint)
    except (CheckpointError, NotFound):
        return None


def loading_code(results: Results) -> str:
    """Return three lines of Python that load the best model."""
    task, origin = results.definition["task"], results.definition.get("origin", {})
    handle = results.folder.handle
    name = task["name"]
    if task["module"] != "__main__" and name != "FunctionTask":
        return f"import hopfleet as hop\nresults = hop.load({handle!r})\nmodel = results.best.model()"
    if origin.get("how") == "run":
        variable = origin["variable"]
        return (
            "import hopfleet as hop, runpy\n"
            f"task = runpy.run_path({origin['file']!r})[{variable!r}].task\n"
            f"model = hop.load({handle!r}, task=task).best.model()"
        )
    return (
        "import hopfleet as hop\n"
        f"task = {_construct(name, origin)}\n"
        f"model = hop.load({handle!r}, task=task).best.model()"
    )


def _construct(name: str, origin: Mapping[str, Any]) -> str:
    made = "hop.FunctionTask(input_fn, model_fn, train_fn)" if name == "FunctionTask" else f"{name}()"
    where = f" of {origin['file']}" if "file" in origin else ""
    return f"{made}  # the task{where}"
