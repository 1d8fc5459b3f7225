"""What single pages show beside a board: one trial in full, requests with their answers, and the data set."""

from __future__ import annotations

import contextlib
import os
import time as clocks
from pathlib import Path
from typing import Any

from hopfleet.domain.step_values import thinned
from hopfleet.errors import HopfleetError, NotFound
from hopfleet.monitor.charts.charts import chart_data
from hopfleet.monitor.load import MOST_BYTES, MOST_SAMPLES, decode_samples, series
from hopfleet.monitor.records import TrialHistory
from hopfleet.phrases import did_you_mean
from hopfleet.store.local import has_journal, open_journal
from hopfleet.store.versions.local import Versions
from hopfleet.support.files import open_plain
from hopfleet.support.plain import named
from hopfleet.ui.board import Board
from hopfleet.ui.files import trial_files

LOG_BYTES = 64 * 1024
"""The end of a log that a trial's page shows."""

VISITED_EPOCHS = 100
"""Epochs whose visits a trial's page shows, the last ones."""

STEP_POINTS = 1000
"""Most values of each name that a trial's page shows of single steps."""

HEALTH = ("memory", "device_memory", "heard")
"""The numbers in the health of a worker."""

CHART_SHARE = 0.02
"""Part of a core that a chart of a running experiment takes at most: a chart that takes long is made less often."""

KINDS = ("importance", "lineage", "rungs")
"""Charts whose data the server computes; the page draws all others from what it knows."""


def trial_details(board: Board, name: str) -> dict[str, Any]:
    """Return one trial in full."""
    trials = board.history.trials
    if name not in trials:
        raise NotFound(f"{name!r}: no such trial; {did_you_mean(name, trials)}it may have been deleted")
    trial = trials[name]
    rows = list(trial.epochs_done)
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
    versions = Versions(board.folder.checkpoints)
    parent = trials.get(trial.parent)
    return {
        **board.trial(trial),
        "seed": trial.seed,
        "full_config": named(trial.config),
        "parent_config": named(parent.config) if parent else None,
        "reason": trial.reason,
        "traceback": trial.traceback,
        "history": {
            "epoch": [row.epoch for row in rows],
            "time": [row.time for row in rows],
            "metrics": {metric: [row.metrics.get(metric) for row in rows] for metric in metrics},
        },
        "steps": _steps(board, trial),
        "replay": _replay(board, trial.id),
        "visits": trial.visits[-VISITED_EPOCHS:],
        "visits_before": max(0, len(trial.visits) - VISITED_EPOCHS),
        "checkpoints": [
            {
                "version": version,
                "bytes": saved.size,
                "digest": saved.digest,
                "file": versions.path(saved.ref, durable=True).name,
                "best": trial.best is not None and trial.best.version == version,
            }
            for version, saved in sorted(trial.saved.items())
        ],
        "files": trial_files(board.folder, trial.id),
        "log": log_tail(board.folder.logs / f"{trial.id}.log"),
        "notices": [notice for notice in board.notices if notice["trial"] == trial.id],
    }


def _steps(board: Board, trial: TrialHistory) -> dict[str, Any]:
    """Return the values of single steps by name: steps and values, evenly thinned out."""
    found = {}
    for name, (steps, values) in board.history.logged(trial).items():
        kept = thinned(steps, STEP_POINTS)
        found[name] = {"steps": [steps[place] for place in kept], "values": [values[place] for place in kept]}
    return found


def _replay(board: Board, trial: str) -> dict[str, Any] | None:
    """Return the last verdict of a replay of a trial: its time, and a text; None if there is none."""
    found = board.folder.replays().get(trial)
    if not isinstance(found, dict) or not isinstance(found.get("time"), int | float):
        return None
    verdict, versions = str(found.get("verdict")), found.get("versions")
    which = ", ".join(map(str, versions)) if isinstance(versions, list) else ""
    text = f"{verdict} at version {which}" if which else verdict
    reason = str(found.get("reason") or "")
    return {"time": found["time"], "equal": verdict == "equal", "text": f"{text}: {reason}" if reason else text}


def log_tail(path: Path) -> dict[str, Any]:
    """Return the end of a log, and its size."""
    with contextlib.suppress(OSError), open_plain(path, links=True) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        return {"text": file.read(LOG_BYTES).decode(errors="replace"), "bytes": size}
    return {"text": "", "bytes": 0}


def request_trail(board: Board) -> list[dict[str, Any]]:
    """Return all requests ever made, the newest first."""
    if not has_journal(board.folder):
        return []
    with contextlib.closing(open_journal(board.folder)) as journal:
        found = journal.requests.trail()
    names = ("number", "time", "who", "request", "arguments", "granted", "text")
    return [{name: named(getattr(request, name)) for name in names} for request in reversed(found)]


def worker_health(board: Board) -> dict[str, Any]:
    """Return by name how the workers of a running experiment are; empty if it does not run, or that is not known."""
    found = board.folder.health().items()
    return {
        name: {"host": str(health.get("host", "")), **{each: health[each] for each in HEALTH}}
        for name, health in found
        if isinstance(health, dict) and all(isinstance(health.get(each), int | float) for each in HEALTH)
    }


def worker_load(board: Board) -> dict[str, Any]:
    """Return the load of workers by name: times in seconds since the start, and figures; empty if none was measured."""
    with contextlib.suppress(OSError), open_plain(board.folder.load_file) as file:
        found = series(decode_samples(file.read(MOST_BYTES))[-MOST_SAMPLES:])
        start = board.history.started or 0.0
        return {name: {**each, "time": [at - start for at in each["time"] if at]} for name, each in found.items()}
    return {}


def data_sets(board: Board) -> dict[str, Any]:
    """Return the training and the validation data, with the sizes of their partitions where they can be read."""
    return {name: _data_set(board.definition[name]) for name in ("train", "valid") if board.definition.get(name)}


def _data_set(described: dict[str, Any]) -> dict[str, Any]:
    from hopfleet.data import open_dataset  # imports pyarrow

    found = dict(described)
    if "://" in described["url"]:
        return found  # a page does not wait for a network
    try:
        data = open_dataset(described["url"])
        found["partition_rows"] = list(data.partition_rows)
        found["columns"] = [
            {"name": column.name, "type": column.dtype, "shape": list(column.shape)} for column in data.columns.values()
        ]
    except (HopfleetError, OSError) as error:
        found["problem"] = str(error)
    return found


def chart(board: Board, kind: str, metric: str | None = None) -> dict[str, Any]:
    """Return the data of a chart. Raise NotFound for another kind, and UsageError if the kind does not apply."""
    if kind not in KINDS:
        raise NotFound(f"{kind!r}: no such chart; there are {', '.join(KINDS)}")
    options = {"metric": metric} if metric and kind == "importance" else {}
    key, now = (kind, options.get("metric", "")), clocks.monotonic()
    if key in board.charts:
        number, until, known = board.charts[key]
        if number == board.number or (now < until and board.history.finished is None):
            return known
    found = chart_data(board.history, kind, **options)
    until = now + (clocks.monotonic() - now) / CHART_SHARE
    board.charts[key] = board.number, until, found
    return found


def predicted_spans(board: Board) -> list[Any]:
    """Return the spans of the schedule that was predicted before the first unit; empty if there is none."""
    prediction = board.folder.prediction() or {}
    spans = prediction.get("spans", [])
    return list(spans)
