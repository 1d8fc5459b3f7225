"""What a worker is told before its first command, and what it reports after profiling a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import cloudpickle

from hopfleet.data import Dataset
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Task
from hopfleet.store.base import Store
from hopfleet.store.local import LocalStore


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
    #: Where versions are kept, unless the backend keeps them itself.
    store: Store = field(default_factory=LocalStore)


def pickled(spec: WorkerSpec) -> bytes:
    """Serialize a spec for workers, with the user's task."""
    try:
        return bytes(cloudpickle.dumps(spec))
    except Exception as error:
        raise TaskError(
            f"the task cannot be sent to workers ({error}): keep open files, locks, connections and the like out of "
            "its attributes; make them in build()"
        ) from error


@dataclass(frozen=True, slots=True)
class Profile:
    """The measurements of a worker that built a trial and trained it on a few batches, then discarded it.

    Seconds and bytes are 0 if training was not profiled.
    """

    metrics: tuple[str, ...] = ()
    error: str = ""
    traceback: str = ""
    seconds_per_row: float = 0.0  #: of training, when the batches are there
    size: int = 0  #: bytes of a saved version
    evaluation_seconds_per_row: float = 0.0
    open_seconds: float = 0.0  #: to build the model
    save_seconds: float = 0.0  #: to write a durable version
    load_seconds: float = 0.0  #: to read it again
    feeding_seconds_per_row: float = 0.0  #: to have the batches
    memory: int = 0  #: bytes that a trial takes while it trains, about
    spare: int = 0  #: free bytes of the device, if it has memory of its own
    passed_on: bool = False  #: whether batches take so long that workers share them
    exact_share: float = 0.0  #: what one more trial of a flotilla takes, as a part of its time alone; 0: not tried
    fast_share: float = 0.0
    gains: bool = True  #: whether trials take clearly less time together than one after another
    unsteady: str = ""  #: a column that differs if one batch is transformed twice, in the first finding of a worker
