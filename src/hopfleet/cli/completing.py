"""Tab completion of experiments, trials and kinds of charts. Whatever goes wrong, nothing is completed."""

from __future__ import annotations

import contextlib

import typer

from hopfleet.errors import HopfleetError
from hopfleet.safe_text import visible
from hopfleet.store.folder import find_run, runs


def experiments(incomplete: str) -> list[str]:
    """Return the names of the experiments in the home folder that begin so."""
    with contextlib.suppress(HopfleetError, OSError):
        return [run.name for run in runs() if run.name.startswith(incomplete) and visible(run.name) == run.name]
    return []


def trials(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the trials of the experiment on the command line that begin so, best first, with their states."""
    from hopfleet.monitor.wording import number
    from hopfleet.runs.results import Results

    # Before the value of an option, the parser gives up and leaves the arguments as they are.
    names = [name for name in (context.params.get("name"), *context.args) if name]
    with contextlib.suppress(HopfleetError, OSError, IndexError):
        history = Results(find_run(names[0])).history
        found = [(trial, history.value(trial)) for trial in history.leaderboard()]
        return [
            (trial.id, trial.state.value if value is None else f"{trial.state.value} {number(value)}")
            for trial, value in found
            if trial.id.startswith(incomplete)
        ]
    return []


def kinds(incomplete: str) -> list[str]:
    """Return the kinds of charts that begin so."""
    from hopfleet.monitor.charts.charts import CHARTS

    return [kind for kind in CHARTS if kind.startswith(incomplete)]
