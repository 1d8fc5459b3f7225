"""The settings that a worker starts with, and the profile that it reports of a configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopfleet.data import Dataset
from hopfleet.domain.placement import SINGLE, Placement, Strategies, TeamShape
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Task
from hopfleet.store.base import Store
from hopfleet.store.local import LocalStore
from hopfleet.worker.pickling import dumps
from hopfleet.worker.surroundings.script import Surroundings


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The settings that all workers of an experiment share."""

    task: Task
    train: Dataset
    valid: Dataset | None
    checkpoints: Path
    logs: Path
    seed: int
    device: str
    threads: int
    batch_size: int
    drop_last: bool
    #: The most epochs that the search trains; 0 if nothing is trained.
    epochs: int = 0
    #: The process-wide settings of the framework, as its ``Framework.settings`` returned them in the script.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: What the script has configured in its process beside the framework.
    surroundings: Surroundings = field(default_factory=Surroundings)
    #: The goal of the experiment, if there is one.
    metric: str = ""
    mode: str = "min"
    #: Whether trials that train together may be rounded differently than alone.
    fast: bool = False
    #: Whether to report the number of trainable parameters as the metric ``params``.
    count_parameters: bool = False
    #: Name of the run for shared memory; empty if its workers share nothing.
    run: str = ""
    #: Maximum number of processes that transform batches for one worker.
    transform_workers: int = 0
    #: Bytes of transformed batches that all workers of a host may keep in memory.
    shared_bytes: int = 0
    #: Whether profiling also measures the gain of training together.
    compare: bool = False
    #: How workers train, in turn: the first worker as the first says, and so on.
    teams: tuple[TeamShape, ...] = (SINGLE,)
    #: The node of each worker at the start, by its name; empty for any.
    homes: tuple[str, ...] = ()
    #: Whether all members of a team are on one node of a cluster, also if its strategy does not need that.
    one_node: bool = False
    #: Whether the members of a team are on as many nodes as possible, so that a trial run measures the network.
    apart: bool = False
    #: The strategy of teams that devices may join later; empty if they never do.
    joining: str = ""
    #: Strategies of trials by a value of their configurations; empty if all train as their worker does.
    strategies: Strategies = field(default_factory=dict)
    #: Seconds after which a worker that checks a configuration before the run counts as hung.
    check_seconds: float = 60.0
    #: Seconds without progress after which a worker that starts counts as failed.
    start_timeout: float = 120.0
    #: Maximum seconds that a version at the end of an epoch may wait in memory for a newer one that replaces it.
    checkpoint_every: float = 0.0
    #: Rows evaluated at once; 0 chooses them by the size of a row.
    evaluation_batch: int = 0
    #: Where versions are kept, unless the backend keeps them itself.
    store: Store = field(default_factory=LocalStore)


def placement(spec: WorkerSpec, number: int, devices: int) -> Placement:
    """Return the placement of a worker, given by its number from 0 on, on a machine with that number of devices."""
    shapes = [spec.teams[before % len(spec.teams)] for before in range(number + 1)]
    return placements(spec.device, shapes, devices)[-1]


def placements(
    kind: str, shapes: Sequence[TeamShape], devices: int, present: Iterable[Placement] = ()
) -> list[Placement]:
    """Return the placements of workers that take the devices of a machine one after another.

    Devices that workers who are ``present`` have are taken last.
    """
    names = [f"{kind}:{number}" for number in range(devices)] if kind == "cuda" else [kind]
    used = dict.fromkeys(names, 0) | Counter(name for placement in present for name in placement.devices)
    found = []
    for shape in shapes:
        taken = []
        for _ in range(shape.devices):
            name = min(names, key=used.__getitem__)
            used[name] += 1
            taken.append(name)
        found.append(Placement(tuple(taken), shape.strategy))
    return found


def preload(spec: WorkerSpec) -> list[str]:
    """Return the modules that workers import before they fork: those of the task and of its strategies."""
    named = {strategy for by_value in spec.strategies.values() for strategy in by_value.values()}
    framework, strategies = (
        spec.task.framework,
        {*(shape.strategy for shape in spec.teams), *named, spec.joining} - {""},
    )
    return [*spec.task.preload, *(name for strategy in sorted(strategies) for name in framework.modules(strategy))]


def pickled(spec: WorkerSpec) -> bytes:
    """Serialize a spec for workers, with the user's task."""
    try:
        return dumps(spec)
    except Exception as error:
        live = any(data is not None and data.is_live for data in (spec.train, spec.valid))
        what = "the task or the live data set" if live else "the task"
        raise TaskError(
            f"{what} cannot be sent to workers ({error}): keep open files, locks, connections and the like out of its "
            f"attributes; make them in build(){', or in __getitem__ on first use' if live else ''}"
        ) from error


@dataclass(frozen=True, slots=True)
class Profile:
    """The measurements of a worker that built a trial and trained it on a few batches, then discarded it.

    Seconds and bytes are 0 if training was not profiled.
    """

    metrics: tuple[str, ...] = ()
    error: str = ""
    traceback: str = ""
    place: str = ""  #: the innermost line of the user's code in the traceback
    seconds: float = 0.0  #: to measure all of this
    seconds_per_row: float = 0.0  #: of training, without the time to make batches
    size: int = 0  #: bytes of a saved version
    evaluation_seconds_per_row: float = 0.0
    open_seconds: float = 0.0  #: to build the model
    save_seconds: float = 0.0  #: to write a durable version
    load_seconds: float = 0.0  #: to read a durable version
    feeding_seconds_per_row: float = 0.0  #: to make batches
    memory: int = 0  #: approximate bytes that a trial needs while it trains
    spare: int = 0  #: free bytes of a device with its own memory
    passed_on: bool = False  #: whether batches are slow to make, so that workers share them
    exact_share: float = 0.0  #: time of a further trial in a flotilla, as a fraction of its time alone; 0: not measured
    fast_share: float = 0.0  #: the same with ``fast`` rounding
    gains: bool = True  #: whether trials take clearly less time together than one by one
    unsteady: str = ""  #: a column that differs if a batch is transformed twice, in a worker's first profile
    doubt: str = ""  #: how a trial that hops differs from one that stays
    skipped: str = ""  #: what a check left out, and why
    averaged: str = ""  #: a metric that is averaged over batches although its name is that of none that may be
    varying: str = ""  #: a warning if training does not give the same bits each time, in a worker's first profile
