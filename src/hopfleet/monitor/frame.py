"""The history as pandas DataFrames, for people who go on with it in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopfleet.errors import MissingExtra
from hopfleet.monitor.history import History
from hopfleet.monitor.wording import flatten

if TYPE_CHECKING:
    import pandas


def dataframe(history: History) -> pandas.DataFrame:
    """One row per trial in the order of their numbers: state, metrics at the best epoch, configuration, error.

    With several objectives ``pareto`` says whether it is on the front; with limits ``feasible``, whether it keeps them.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra("pandas", "pandas") from error

    metrics = history.metric_names()
    trials = sorted(history.trials.values(), key=lambda trial: trial.number)
    configs = [flatten(trial.config) for trial in trials]
    bests = [trial.best.metrics if trial.best else {} for trial in trials]
    columns: dict[str, Any] = {
        "trial": [trial.id for trial in trials],
        "state": [trial.state.value for trial in trials],
        "epochs": [trial.epochs_trained for trial in trials],
        "best_epoch": pandas.array([trial.best.epoch if trial.best else None for trial in trials], dtype="Int64"),
        **{name: pandas.array([best.get(name) for best in bests], dtype="float64") for name in metrics},
    }
    if len(history.objectives) > 1:
        front = {trial.id for trial in history.pareto()}
        columns["pareto"] = [trial.id in front for trial in trials]
    if history.limits:
        columns["feasible"] = [history.feasible(trial) for trial in trials]
    for key in dict.fromkeys(key for config in configs for key in config):
        columns[f"config/{key}"] = [config.get(key) for config in configs]
    columns["origin"] = [trial.origin for trial in trials]
    columns["parent"] = [trial.parent or None for trial in trials]
    columns["error"] = [trial.error for trial in trials]
    return pandas.DataFrame(columns)


def epochs_frame(history: History) -> pandas.DataFrame:
    """One row per trial and epoch with all metrics; ``time`` is in seconds since the epoch."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra("pandas", "pandas") from error

    names = history.metric_names()
    rows = [
        {"trial": trial.id, "epoch": row.epoch, "version": row.version, "time": row.time, **row.metrics}
        for trial in sorted(history.trials.values(), key=lambda trial: trial.number)
        for row in trial.epochs_done
    ]
    return pandas.DataFrame(rows, columns=["trial", "epoch", "version", "time", *names])
