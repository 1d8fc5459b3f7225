"""Figures of all experiments in the text format of Prometheus."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hopfleet.ui.board import Board
from hopfleet.ui.details import worker_health
from hopfleet.ui.processes import run_memory

Figure = tuple[str, dict[str, str], float]
"""The name of a family, labels beside the experiment, and a value."""

Sample = tuple[dict[str, str], float]

FAMILIES: dict[str, tuple[str, str]] = {
    "hopfleet_experiments": ("gauge", "Experiments by state; those in state reading have no other figures yet."),
    "hopfleet_running": ("gauge", "Whether a process runs the experiment."),
    "hopfleet_units_total": ("counter", "Training units that have finished."),
    "hopfleet_units_planned": ("gauge", "Training units that the experiment is going to have."),
    "hopfleet_units_queued": ("gauge", "Training units that are still to be done."),
    "hopfleet_busy_seconds_total": ("counter", "Seconds that workers have spent on units."),
    "hopfleet_elapsed_seconds": ("gauge", "Seconds in which the experiment was running and not paused."),
    "hopfleet_hops_total": ("counter", "Models that went from one worker to another."),
    "hopfleet_saved_bytes": ("gauge", "Bytes of all durable model versions that exist."),
    "hopfleet_faults_total": ("counter", "Lost workers, failed units, units that hung, and delayed saves."),
    "hopfleet_trials": ("gauge", "Trials by state."),
    "hopfleet_workers": ("gauge", "Workers that are present."),
    "hopfleet_memory_bytes": ("gauge", "Memory of a running experiment and its workers on this machine."),
    "hopfleet_worker_last_report_seconds": ("gauge", "When a worker was last heard from, in seconds since 1970."),
    "hopfleet_worker_memory_bytes": ("gauge", "Memory of a worker's processes."),
    "hopfleet_worker_device_memory_bytes": ("gauge", "Memory of a worker's processes on its devices, say a GPU."),
    "hopfleet_utilisation": ("gauge", "Fraction of the workers' time that was spent on units."),
    "hopfleet_best": ("gauge", "The metric of the best trial."),
}


def exposition(figures: Mapping[str, Iterable[Figure]], lines: Iterable[Mapping[str, Any]]) -> str:
    """Return the figures of experiments by key; ``lines`` tell the states of all, those included that are not read."""
    found: dict[str, list[Sample]] = {name: [] for name in FAMILIES}
    for state, count in sorted(Counter(str(line["state"]) for line in lines).items()):
        found["hopfleet_experiments"].append(({"state": state}, count))
    for key, listed in figures.items():
        for name, more, value in listed:
            found[name].append(({"experiment": key, **more}, value))
    return "".join(_family(name, samples) for name, samples in found.items())


def figures_of(board: Board) -> Iterator[Figure]:
    """Yield the figures of one experiment."""
    history, header = board.history, board.header()
    yield "hopfleet_running", {}, header["state"] == "running"
    yield "hopfleet_units_total", {}, history.trained
    yield "hopfleet_units_planned", {}, header["planned"]
    yield "hopfleet_units_queued", {}, max(0, header["planned"] - header["done"])
    yield "hopfleet_busy_seconds_total", {}, sum(worker.busy for worker in history.workers.values())
    yield "hopfleet_elapsed_seconds", {}, history.elapsed
    yield "hopfleet_hops_total", {}, history.hops
    saved = sum(version.size for trial in history.trials.values() for version in trial.saved.values())
    yield "hopfleet_saved_bytes", {}, saved
    yield "hopfleet_faults_total", {}, history.faults.total()
    for state, count in history.counts().items():
        yield "hopfleet_trials", {"state": state.value}, count
    yield "hopfleet_workers", {}, len(history.live_workers())
    if (memory := run_memory(board.folder)) is not None:
        yield "hopfleet_memory_bytes", {}, memory
    health = worker_health(board)
    for worker in board.workers():
        if worker["lost"] is None:
            name = {"worker": worker["name"]}
            known = health.get(worker["name"], {"heard": 0.0})
            yield "hopfleet_worker_last_report_seconds", name, max(worker["heard"], known["heard"])
            for figure in ("memory", "device_memory"):
                if known.get(figure):
                    yield f"hopfleet_worker_{figure}_bytes", name, known[figure]
    if header["utilisation"] is not None:
        yield "hopfleet_utilisation", {}, header["utilisation"]
    if header["value"] is not None:
        yield "hopfleet_best", {"metric": history.metric}, header["value"]


def _family(name: str, samples: list[Sample]) -> str:
    kind, help_text = FAMILIES[name]
    lines = [f"{name}{{{_labels(labels)}}} {_number(value)}\n" for labels, value in samples]
    return "".join([f"# HELP {name} {help_text}\n", f"# TYPE {name} {kind}\n", *lines])


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: Any) -> str:
    number = float(value)
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"
