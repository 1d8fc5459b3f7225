"""Definition: what the arguments of an experiment resolve to. All that works on an experiment takes it, or a part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hopfleet.backends.base import Backend
from hopfleet.domain import batching
from hopfleet.domain.placement import Strategies, TeamShape
from hopfleet.domain.space import Space
from hopfleet.domain.trial import Config
from hopfleet.experiment.options import RunOptions, WorkerOptions
from hopfleet.frameworks.base import Task
from hopfleet.frameworks.folds import KFold
from hopfleet.runtime.callbacks import Callback
from hopfleet.scheduler.dispatch import Policy
from hopfleet.search.base import Goal, Search
from hopfleet.store.base import Store
from hopfleet.store.folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A checked experiment: task, data, space, search, objective and options."""

    name: str
    folder: RunFolder
    store: Store
    task: Task
    #: Data sets, or sources that are partitioned when work starts.
    train: Any
    valid: Any
    partitions: int | None
    #: The rows of a batch, unless a configuration has its own; see ``rows_per_batch``.
    batch_size: int
    space: Space
    search: Search
    goal: Goal
    #: Configurations to try first.
    points: list[Config]
    #: Names and results of earlier experiments.
    warm_start: list[Any]
    seed: int
    workers: int | str
    backend: Backend | type[Backend]
    #: How workers train, in turn, and strategies of trials by a value of their configurations.
    parallelism: tuple[TeamShape, ...]
    strategies: Strategies
    policy: Callable[[], Policy]
    run_options: RunOptions
    worker_options: WorkerOptions
    callbacks: list[Callback]
    #: How to make this experiment again, for ``hopfleet resume``; ``hopfleet run`` sets its own value.
    origin: Mapping[str, Any]

    @property
    def folds(self) -> int:
        """The number of folds; 0 without folds."""
        return self.valid.count if isinstance(self.valid, KFold) else 0

    @property
    def trials(self) -> int:
        """The number of trials that are planned."""
        return len(self.points) + self.search.trials

    def find_backend(self) -> Backend:
        """Return the backend, made anew if only its class was given."""
        return self.backend() if isinstance(self.backend, type) else self.backend

    def examples(self, most: int) -> list[Config]:
        """Return the configurations that are known before work starts, and examples of others: ``most`` at most."""
        return [*self.points, *self.search.examples(most)][:most]

    def rows_per_batch(self, config: Config) -> int:
        """Return the batch size of a configuration."""
        return batching.batch_size(config, self.batch_size)
