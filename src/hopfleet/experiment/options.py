"""Options of an experiment that most users leave at their defaults, in two frozen groups.

``Experiment`` took these options as keywords of its own before; ``merged`` still accepts the old keywords.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopfleet.domain.signatures import explained
from hopfleet.errors import UsageError
from hopfleet.experiment import arguments
from hopfleet.phrases import did_you_mean
from hopfleet.scheduler.policies import DEFAULT
from hopfleet.search.base import at_least_one
from hopfleet.store.local import LOCAL
from hopfleet.support.deprecation import deprecated


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Where a run is stored, and how its units are scheduled."""

    #: The run folder. None stands for a folder with the experiment's name in ``HOPFLEET_HOME``.
    folder: str | os.PathLike[str] | None = None
    #: Name of the store that keeps the journal and, except on a cluster, the models.
    store: str = LOCAL
    #: Name of the policy that chooses the next unit of an idle worker.
    policy: str = DEFAULT
    #: ``"open"`` lets the policy choose the partitions a trial visits next; ``"fixed"`` derives them from the seed.
    order: str = "open"
    #: Whether the same seed gives the same experiment, whatever the speed of the workers: see docs/concepts.md.
    deterministic: bool = False
    #: Seconds after which a unit counts as hung; ``"auto"`` judges by estimates, None waits without limit.
    unit_timeout: float | str | None = "auto"
    #: Maximum seconds after which the model of an epoch is on the disk. Where epochs are shorter than that and saving
    #: would take more than 3% of the time, models of some epochs are skipped; 0 saves every epoch.
    checkpoint_every: float = 30.0
    #: Whether to end a run whose first three failures are alike and come before any trial has finished a unit.
    fail_fast: bool = True
    #: What ``fit`` does when every trial has failed: ``"raise"`` AllTrialsFailed, or ``"return"`` the results.
    all_failed: str = "raise"

    def __post_init__(self) -> None:
        if self.folder is not None and not isinstance(self.folder, str | os.PathLike):
            raise UsageError(f"folder={self.folder!r}: must be the path of a folder")
        if "://" in str(self.folder):
            raise UsageError(
                f"folder={str(self.folder)!r}: must be a folder of this machine; data sets may be elsewhere, models "
                "with hop.Ray(storage=...)"
            )
        arguments.order(self.order)
        arguments.fail_fast(self.fail_fast)
        arguments.all_failed(self.all_failed)
        if not isinstance(self.deterministic, bool):
            raise UsageError(f"deterministic={self.deterministic!r}: must be True or False")
        if self.deterministic:  # what a search hears follows from the visit orders, too
            object.__setattr__(self, "order", "fixed")
        arguments.unit_timeout(self.unit_timeout)
        arguments.checkpoint_every(self.checkpoint_every)


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How each worker trains."""

    #: ``"cuda"``, ``"mps"`` or ``"cpu"``; ``"auto"`` takes the best device that the machine has.
    device: str = "auto"
    #: CPU threads of each worker.
    threads: int = 1
    #: How trials train together: ``"exact"`` keeps the bits of each, ``"fast"`` rounds differently, ``"off"`` does not.
    fuse: str = "exact"
    #: Whether to leave out the last batch of each unit if it is short.
    drop_last: bool = False
    #: Processes that transform batches for one worker; ``"auto"`` takes the cores that no worker needs.
    transform_workers: int | str = "auto"
    #: Seconds without progress after which a worker that starts counts as failed.
    start_timeout: float = 120.0

    def __post_init__(self) -> None:
        if not isinstance(self.device, str) or not self.device:
            raise UsageError(f"device={self.device!r}: must be 'auto', 'cpu', 'cuda' or 'mps'")
        if not isinstance(self.drop_last, bool):
            raise UsageError(f"drop_last={self.drop_last!r}: must be True or False")
        at_least_one("threads", self.threads)
        arguments.fuse(self.fuse)
        arguments.transform_workers(self.transform_workers)
        arguments.start_timeout(self.start_timeout)


NEW = ("store", "deterministic", "checkpoint_every", "fail_fast", "all_failed", "start_timeout")
"""Options that never were keywords of ``Experiment``."""

_RUN, _WORKER = "run_options", "worker_options"

MOVED = {
    **{field.name: (_RUN, field.name) for field in dataclasses.fields(RunOptions) if field.name not in NEW},
    **{field.name: (_WORKER, field.name) for field in dataclasses.fields(WorkerOptions) if field.name not in NEW},
    "feeders": (_WORKER, "transform_workers"),  # prose: allow, the old name
}
"""Keywords that ``Experiment`` took before: for each, the options argument and the field that replace it."""


_COUNTED = "give it to the search, as in search=hop.Random(trials=16, max_epochs=10)"
_VALID = "pass validation data as valid=..."
_GOAL = "name the metric and its direction, as in metric='accuracy', mode='max'"

ELSEWHERE = {
    **dict.fromkeys(("epochs", "max_epochs", "trials", "n_trials", "num_samples", "max_evals", "sampler"), _COUNTED),
    **dict.fromkeys(("val", "validation", "validation_data", "valid_data", "eval", "test"), _VALID),
    **dict.fromkeys(("objective", "direction", "directions", "goal", "monitor"), _GOAL),
    **dict.fromkeys(("data", "dataset", "train_data", "train_loader"), "pass training data as train=..."),
    **dict.fromkeys(("config", "params", "param_space", "search_space"), "pass the space as space={...}"),
    **dict.fromkeys(("n_jobs", "num_workers", "max_concurrent", "gpus"), "set the number of workers, workers=2"),
    **dict.fromkeys(("verbose", "quiet", "overwrite"), "pass quiet= and overwrite= to fit()"),
    **dict.fromkeys(("lr", "optimizer", "loss", "model"), "set it in build() or loss() of the task, or in space={...}"),
}
"""Arguments that other libraries have, and where their counterparts are."""


def _remedy(keyword: str) -> str:
    """Return what to write instead of an unknown keyword; empty if that is unclear."""
    known = ("train", "valid", "space", "search", "metric", "mode", "constraints", "points", "warm_start", "stop")
    more = ("callbacks", "seed", "name", "workers", "backend", "parallelism", "batch_size", "partitions", _RUN, _WORKER)
    if keyword in NEW:
        return f"; pass run_options=hop.RunOptions({keyword}=...)"
    remedy = ELSEWHERE.get(keyword) or did_you_mean(keyword, (*known, *more, *MOVED)).strip()
    return f"; {remedy}" if remedy else ""


def merged(
    run_options: RunOptions | None, worker_options: WorkerOptions | None, old: Mapping[str, Any]
) -> tuple[RunOptions, WorkerOptions]:
    """Return both groups of options, with the values of old keywords filled in and a warning for each."""
    groups = {
        _RUN: _checked(_RUN, run_options, RunOptions),
        _WORKER: _checked(_WORKER, worker_options, WorkerOptions),
    }
    changes: dict[str, dict[str, Any]] = {_RUN: {}, _WORKER: {}}
    for keyword, value in old.items():
        if keyword not in MOVED:
            raise TypeError(f"Experiment() got an unexpected keyword argument {keyword!r}{_remedy(keyword)}")
        argument, field = MOVED[keyword]
        group = groups[argument]
        spelling = f"{argument}=hop.{type(group).__name__}({field}=...)"
        if field in changes[argument] or getattr(group, field) != getattr(type(group)(), field):
            raise UsageError(f"{keyword}={value!r}: {field} is given twice; keep {spelling} and remove {keyword}=")
        deprecated(f"Experiment({keyword}=...)", f"Experiment({spelling})", stacklevel=5)
        changes[argument][field] = value
    return (
        dataclasses.replace(groups[_RUN], **changes[_RUN]),
        dataclasses.replace(groups[_WORKER], **changes[_WORKER]),
    )


def _checked(argument: str, given: Any, kind: type[Any]) -> Any:
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise UsageError(f"{argument}={given!r}: must be hop.{kind.__name__}(...)")
    return given
