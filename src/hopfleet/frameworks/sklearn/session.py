"""A session: one estimator of scikit-learn, trained by ``partial_fit`` batch by batch."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import ThreadpoolController

from hopfleet.domain.rowsum import RowSum, add
from hopfleet.domain.trial import Config
from hopfleet.errors import NotFinite, TaskError
from hopfleet.frameworks.base import Batch, Batches, EngineCache
from hopfleet.frameworks.example import Example, GivesExamples, example_of
from hopfleet.frameworks.host import HostSession
from hopfleet.frameworks.sklearn import scores
from hopfleet.frameworks.sklearn.scores import Estimator
from hopfleet.frameworks.sklearn.state import decode, encode, is_generator
from hopfleet.frameworks.state.tree import Tree
from hopfleet.frameworks.whole_set import collected
from hopfleet.phrases import shown


class Hooks(GivesExamples, Protocol):
    """The hooks of a task that a session calls."""

    classes: Sequence[Any] | None
    scoring: str | Sequence[str]

    def for_config(self, config: Config) -> Hooks: ...
    def build(self, config: Config) -> Estimator: ...
    def metrics(self, model: Estimator, batch: Batch) -> Mapping[str, Any]: ...


class Threads:
    """The thread pools of this process's numerical libraries: one part of a worker's engine cache."""

    def __init__(self) -> None:
        self.limit = ThreadpoolController().limit


class SklearnSession(HostSession):
    """A trial in scikit-learn. ``own_metrics`` tells whether the task computes its metrics itself."""

    kind = "hopfleet-sklearn-1"

    def __init__(
        self, task: Hooks, config: Config, *, seed: int, threads: int, cache: EngineCache, own_metrics: bool
    ) -> None:
        super().__init__(config, seed=seed, threads=threads)
        self._hooks = task.for_config(config)
        self._own_metrics = own_metrics
        self._limit = cache.part(Threads).limit
        with self.environment():
            #: The estimator or pipeline that ``build`` returned.
            self.model: Estimator = self._hooks.build(self.config)
        self.check_config(config)
        #: The estimator that is trained: the last step of a pipeline.
        self.estimator = checked(self.model)
        self._parameters = frozenset(self.estimator.get_params(deep=False))
        self._scoring = scores.names_of(self._hooks.scoring)
        self._classes = self._known_classes()

    def _known_classes(self) -> Any:
        if not is_classifier(self.estimator):
            return None
        if self._hooks.classes is None:
            raise TaskError(
                f"{type(self.estimator).__name__} is a classifier: set classes = [0, 1] in the task, all values of y, "
                "since one batch may not have all of them"
            )
        return np.unique(np.asarray(self._hooks.classes))

    def _check_classes(self, y: Any) -> None:
        """Raise TaskError for a target that is not in ``classes``: some estimators would take it for another class."""
        if self._classes is None:
            return
        targets = np.asarray(y)
        nearest = self._classes.take(self._classes.searchsorted(targets), mode="clip")
        if others := targets[nearest != targets].tolist():
            raise TaskError(
                f"y has the value {others[0]!r}, which is not in the task's classes = {self._classes.tolist()}: list "
                "all values of y there"
            )

    # ---------------------------------------------------------------------------------------------- the work

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        latest: Example | None = None
        with self.environment():
            for batch in batches:
                latest = self._fit(batch)
            if latest is None:
                raise TaskError(
                    "the unit has no batches: the partition is empty, or smaller than a batch with drop_last"
                )
            measured = scores.has_loss(self.estimator) or not self._own_metrics
            found = RowSum.of(scores.loss(self.estimator, latest), batches.rows) if measured else RowSum(0, 0)
        if isinstance(found.total, float):
            raise NotFinite(
                f"the loss is {found.total} after batch {len(batches)} of {len(batches)}", batch=len(batches)
            )
        self.end_unit(last=last)
        return {"train_loss": found} if measured else {}

    def _fit(self, batch: Batch) -> Example:
        """Train on a batch; return it as the last step of the pipeline sees it."""
        x, y, weight = example_of(self._hooks, batch)
        if y is None and (is_classifier(self.estimator) or is_regressor(self.estimator)):
            raise TaskError("the batch has no column 'y': override example(self, batch) and return x, y")
        self._check_classes(y)
        if self.model is not self.estimator:
            x = self.model[:-1].transform(x)
        options: dict[str, Any] = {} if self._classes is None else {"classes": self._classes}
        if weight is not None:
            options["sample_weight"] = weight
        self.estimator.partial_fit(x, y, **options)
        return Example(x, y, weight)

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        with self.environment(seed):
            some: Iterable[Batch] = batches
            model = self.model
            if not self.counters["units"]:
                some = list(batches)
                model = self._tried(some)
            if not self._own_metrics:
                return scores.measured(model, (example_of(self._hooks, batch) for batch in some), self._scoring)
            return add([self._measured(model, batch) for batch in some])

    def _tried(self, batches: Sequence[Batch]) -> Estimator:
        """Return a copy of an untrained model that was trained on some batches: without training, it cannot predict."""
        trial = copy.copy(self)
        trial.model = copy.deepcopy(self.model)
        trial.estimator = checked(trial.model)
        for batch in batches:
            trial._fit(batch)
        return trial.model

    def _measured(self, model: Estimator, batch: Batch) -> dict[str, RowSum]:
        found, rows = self._hooks.metrics(model, batch), len(next(iter(batch.values())))
        if not isinstance(found, Mapping):
            raise TaskError(f"metrics() returned {shown(found)}: must be a dict of names to numbers")
        return {
            name: value if isinstance(value, RowSum) else RowSum.of(float(value), rows)
            for name, value in collected(found).items()
        }

    # ------------------------------------------------------------------------------------------------- state

    def state(self) -> Tree:
        # Parameters belong to the configuration, and build() sets them; training changes all other attributes.
        return encode({name: value for name, value in vars(self.estimator).items() if not self._is_fixed(name, value)})

    def restore(self, state: Tree) -> None:
        values: Any = vars(self.estimator)
        for name in [name for name, value in values.items() if not self._is_fixed(name, value)]:
            del values[name]
        values.update(decode(state))

    def _is_fixed(self, name: str, value: object) -> bool:
        return name in self._parameters and not is_generator(value)

    @contextlib.contextmanager
    def environment(self, seed: int | None = None) -> Iterator[None]:
        with super().environment(seed), self._limit(limits=self.threads):
            yield


def checked(model: Estimator) -> Estimator:
    """Return the part of a model that training changes. Raise TaskError if the model cannot train in batches."""
    if isinstance(model, type):
        raise TaskError(f"build() returned the class {model.__name__}: return an estimator, {model.__name__}(...)")
    estimator = model.steps[-1][1] if isinstance(model, Pipeline) else model
    if not hasattr(estimator, "get_params"):
        raise TaskError(f"build() returned {shown(model)}: return an estimator of scikit-learn, or a pipeline")
    if not hasattr(estimator, "partial_fit"):
        raise TaskError(
            f"{type(estimator).__name__} has no partial_fit, so it cannot train on one partition after another: use an "
            "estimator that has, such as SGDClassifier, MLPClassifier or MiniBatchKMeans"
        )
    for name, transformer in model.steps[:-1] if isinstance(model, Pipeline) else ():
        try:
            check_is_fitted(transformer)
        except NotFittedError:
            raise TaskError(
                f"the step {name!r} of the pipeline is not fitted: fit it before the experiment, e.g. self.{name} = "
                f"{type(transformer).__name__}().fit(sample) in the task's __init__, and put it into the pipeline"
            ) from None
        except TypeError:  # not an estimator: "passthrough", or a transformer without fit
            continue
    return estimator
