"""Facts about an experiment beside its results: its trials by state, and how to load its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hopfleet.errors import CheckpointError, NotFound
from hopfleet.runs.state import RunState as RunState
from hopfleet.runs.state import bytes_on_disk as bytes_on_disk
from hopfleet.runs.state import state_of as state_of

if TYPE_CHECKING:
    from hopfleet.runs.results import Results
    from hopfleet.runs.trial_result import TrialResult


def trial_counts(results: Results) -> dict[str, int]:
    """Count the trials in each state, leaving out empty states."""
    return {state.value: count for state, count in results.history.counts().items() if count}


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
