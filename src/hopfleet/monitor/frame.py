"""The history as pandas DataFrames, for further analysis in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hopfleet.errors import MissingExtra
from hopfleet.monitor.history import History, TrialHistory
from hopfleet.monitor.wording import flatten

if TYPE_CHECKING:
    from pandas import DataFrame


def dataframe(history: History) -> DataFrame:
    """Return one row per trial in the order of their numbers: state, metrics at the best epoch, configuration, error.

    With several objectives, ``pareto`` marks the trials on the front; with limits, ``feasible`` marks those within.
    """
    pandas = _pandas()
    trials = _in_order(history)
    bests = [trial.best.metrics if trial.best else {} for trial in trials]
    columns: dict[str, Any] = {
        "trial": [trial.id for trial in trials],
        "state": [trial.state.value for trial in trials],
        "epochs": [trial.epochs_trained for trial in trials],
        "best_epoch": pandas.array([trial.best.epoch if trial.best else None for trial in trials], dtype="Int64"),
    }
    for name in history.metric_names():
        columns[name] = pandas.array([best.get(name) for best in bests], dtype="float64")
    columns.update(_marks(history, trials))
    columns.update(_config_columns(trials))
    columns["origin"] = [trial.origin for trial in trials]
    columns["parent"] = [trial.parent or None for trial in trials]
    columns["error"] = [trial.error for trial in trials]
    frame: DataFrame = pandas.DataFrame(columns)
    return frame


def _in_order(history: History) -> list[TrialHistory]:
    return sorted(history.trials.values(), key=lambda trial: trial.number)


def _marks(history: History, trials: Sequence[TrialHistory]) -> dict[str, list[bool]]:
    """Return a column for the Pareto front, if there are several objectives, and one for limits, if there are any."""
    columns = {}
    if len(history.objectives) > 1:
        front = {trial.id for trial in history.pareto()}
        columns["pareto"] = [trial.id in front for trial in trials]
    if history.limits:
        columns["feasible"] = [history.feasible(trial) for trial in trials]
    return columns


def _config_columns(trials: Sequence[TrialHistory]) -> dict[str, list[Any]]:
    """Return a column for each flattened configuration key."""
    configs = [flatten(trial.displayed) for trial in trials]
    keys = dict.fromkeys(key for config in configs for key in config)
    return {f"config/{key}": [config.get(key) for config in configs] for key in keys}


def epochs_frame(history: History) -> DataFrame:
    """Return one row per trial and epoch with all metrics; ``time`` is in seconds since 1970."""
    rows = [
        {"trial": trial.id, "epoch": row.epoch, "version": row.version, "time": row.time, **row.metrics}
        for trial in _in_order(history)
        for row in trial.epochs_done
    ]
    columns = ["trial", "epoch", "version", "time", *history.metric_names()]
    frame: DataFrame = _pandas().DataFrame(rows, columns=columns)
    return frame


def steps_frame(history: History) -> DataFrame:
    """Return one row per trial, logged name and step, with the value."""
    rows = [
        {"trial": trial.id, "name": name, "step": step, "value": value}
        for trial in _in_order(history)
        for name, points in history.logged(trial).items()
        for step, value in zip(*points, strict=True)
    ]
    frame: DataFrame = _pandas().DataFrame(rows, columns=["trial", "name", "step", "value"])
    return frame


def _pandas() -> Any:
    """Import pandas, or raise MissingExtra."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra("pandas", "pandas") from error
    return pandas
