"""Options of an experiment that most users leave at their defaults, in two frozen groups.

``Experiment`` took these options as keywords of its own before: ``guided`` says where they are now.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from hopfleet.domain.choices import AllFailed, Auto, Device, Fuse, Order, PolicyName, StoreName
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
    store: StoreName | str = LOCAL
    #: Name of the policy that chooses the next unit of an idle worker.
    policy: PolicyName | str = DEFAULT
    #: ``"open"`` lets the policy choose the partitions a trial visits next; ``"fixed"`` derives them from the seed.
    order: Order = "open"
    #: Whether the same seed gives the same experiment, whatever the speed of the workers: see docs/concepts.md.
    deterministic: bool = False
    #: Seconds after which a unit counts as hung; ``"auto"`` judges by estimates, None waits without limit.
    unit_timeout: float | Literal["auto", "none"] | None = "auto"
    #: Maximum seconds after which the model of an epoch is on the disk. Where epochs are shorter than that and saving
    #: would take more than 3% of the time, models of some epochs are skipped; 0 saves every epoch.
    checkpoint_every: float = 30.0
    #: Whether to end a run whose first three failures are alike and come before any trial has finished a unit.
    fail_fast: bool = True
    #: What ``fit`` does when every trial has failed: ``"raise"`` AllTrialsFailed, or ``"return"`` the results.
    all_failed: AllFailed = "raise"

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
    device: Device | str = "auto"
    #: CPU threads of each worker.
    threads: int = 1
    #: How trials train together: ``"exact"`` keeps the bits of each, ``"fast"`` rounds differently, ``"off"`` does not.
    fuse: Fuse = "exact"
    #: Whether to leave out the last batch of each unit if it is short.
    drop_last: bool = False
    #: Processes that transform batches for one worker; ``"auto"`` takes the cores that no worker needs.
    transform_workers: int | Auto = "auto"
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


_RUN, _WORKER = "run_options=hop.RunOptions({}=...)", "worker_options=hop.WorkerOptions({}=...)"

PLACES = {
    **{field.name: _RUN.format(field.name) for field in dataclasses.fields(RunOptions)},
    **{field.name: _WORKER.format(field.name) for field in dataclasses.fields(WorkerOptions)},
    "feeders": _WORKER.format("transform_workers"),  # prose: allow, the old name
}
"""Where options are that release 0.1, or a guess, has as keywords of ``Experiment``."""

RENAMED = {"points": "initial_configs"}
"""Keywords of ``Experiment`` that still work, with a warning, and their new names."""

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

Kind = TypeVar("Kind", bound=type)


def guided(target: Kind) -> Kind:
    """Have the constructor of a class say where unknown keywords belong. Type checkers see its own signature."""
    make: Any = target.__dict__["__init__"]
    known = tuple(inspect.signature(make).parameters)

    @functools.wraps(make)
    def guide(self: Any, *arguments: Any, **keywords: Any) -> None:
        for old, new in RENAMED.items():
            if old in keywords and new in keywords:
                raise UsageError(
                    f"{old}={keywords[old]!r}: is the old name of {new}, which is given too; remove {old}="
                )
            if old in keywords:
                keywords[new] = keywords.pop(old)
                deprecated(f"{target.__name__}({old}=...)", f"{target.__name__}({new}=...)", stacklevel=3)
        if unknown := [keyword for keyword in keywords if keyword not in known]:
            text = f"{target.__name__}() got an unexpected keyword argument {unknown[0]!r}{_remedy(unknown[0], known)}"
            raise TypeError(text)
        make(self, *arguments, **keywords)

    setattr(target, "__init__", guide)  # noqa: B010
    return target


def _remedy(keyword: str, known: Sequence[str]) -> str:
    """Return what to write instead of an unknown keyword; empty if that is unclear."""
    if keyword in PLACES:
        return f"; pass {PLACES[keyword]}"
    remedy = ELSEWHERE.get(keyword) or did_you_mean(keyword, (*known[1:], *PLACES)).strip()
    return f"; {remedy}" if remedy else ""


def groups(run_options: RunOptions | None, worker_options: WorkerOptions | None) -> tuple[RunOptions, WorkerOptions]:
    """Return both groups of options: those given, or the defaults."""
    return _checked("run_options", run_options, RunOptions), _checked("worker_options", worker_options, WorkerOptions)


def _checked(argument: str, given: Any, kind: type[Any]) -> Any:
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise UsageError(f"{argument}={given!r}: must be hop.{kind.__name__}(...)")
    return given
