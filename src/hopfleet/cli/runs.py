"""What the commands need to know of an experiment beside its results: is it running, where is it, how is it loaded."""

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
    RUNNING = "running"  #: a process holds its lock
    FINISHED = "finished"  #: all trials have ended
    INTERRUPTED = "interrupted"  #: it can be resumed


def run_state(results: Results) -> RunState:
    if results.finished:
        return RunState.FINISHED
    return RunState.RUNNING if results.folder.running else RunState.INTERRUPTED


def trial_counts(results: Results) -> dict[str, int]:
    """States and how many trials are in each, without those that none is in."""
    return {state.value: count for state, count in results.history.counts().items() if count}


def bytes_on_disk(folder: RunFolder) -> int:
    """The size of all files; those that vanish meanwhile do not count."""
    total = 0
    for path, _, files in os.walk(folder.path):
        for file in files:
            try:
                total += os.lstat(os.path.join(path, file)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total


def find_trial(results: Results, name: str) -> TrialResult:
    """A trial by its name, or by its number alone: ``3`` is ``t0003``."""
    return results[f"t{int(name):04d}" if name.isascii() and name.isdigit() else name]


def checkpoint_path(trial: TrialResult) -> str | None:
    """Where the trial's best model lies, if there is one."""
    try:
        return str(trial.checkpoint)
    except (CheckpointError, NotFound):
        return None


def loading_code(results: Results) -> str:
    """Three lines of Python that load the best model."""
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
