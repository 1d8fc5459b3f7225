"""Cross-validation in one trial: an estimator for each split, trained side by side on one stream of batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import cloudpickle
import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection._validation import _score
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _check_method_params

from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Config
from hopfleet.errors import CheckpointError, TaskError
from hopfleet.frameworks.base import Batch, Batches, Flotilla, Result
from hopfleet.frameworks.in_turn import InTurn, Kept
from hopfleet.frameworks.sklearn.framework import SklearnFramework
from hopfleet.frameworks.sklearn.scores import Estimator
from hopfleet.frameworks.sklearn.session import SklearnSession
from hopfleet.frameworks.sklearn.task import SklearnTask
from hopfleet.frameworks.state.arrays import Array
from hopfleet.frameworks.state.tree import Tree
from hopfleet.support.files import check_private


class Table:
    """The rows of a search as the user gave them: arrays, sparse matrices, data frames or lists.

    The data set of the search has the numbers of the rows alone, so there is one copy of the rows. ``fit_params`` and
    ``score_params`` are arguments of ``partial_fit`` and of the scorer; those with a value for each row are divided
    like the rows. If one batch has all rows, ``splits`` has the rows that each split trains on, in their order.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        fit_params: Mapping[str, Any] | None = None,
        score_params: Mapping[str, Any] | None = None,
    ) -> None:
        self.x, self.y = x, y
        self.fit_params, self.score_params = fit_params or {}, score_params or {}
        self.splits: Sequence[Array] | None = None
        self._file: Path | None = None
        #: What ``transformed`` has returned, and the steps, so that no others get their id.
        self._kept: dict[Any, tuple[Any, Table]] = {}

    def take(self, rows: Array) -> Table:
        """Return a table with copies of some rows."""
        fit, score = (_check_method_params(self.x, some, rows) for some in (self.fit_params, self.score_params))
        return Table(_safe_indexing(self.x, rows), None if self.y is None else _safe_indexing(self.y, rows), fit, score)

    def transformed(self, rows: Array, steps: Any, key: Any) -> Table:
        """Return a table with copies of some rows, transformed by steps of a pipeline. They do so once for each key."""
        if steps is None:
            return self.take(rows)
        key = id(steps), key
        if key not in self._kept:
            part = self.take(rows)
            part.x = steps.transform(part.x)
            self._kept[key] = steps, part
        part = self._kept[key][1]
        # An estimator may work in place.
        return Table(part.x.copy() if hasattr(part.x, "copy") else part.x, part.y, part.fit_params, part.score_params)

    def share(self, file: Path) -> None:
        """Write the inputs, if they are an array, to a file that other processes map instead of receiving a copy."""
        if isinstance(self.x, np.ndarray) and not self.x.dtype.hasobject:
            np.save(file, self.x)
            self._file = file

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": {}} | ({"x": None} if self._file else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._file:
            self.x = np.load(self._file, mmap_mode="r")


def single(name: str, split: int) -> str:
    """Return the name of a score in one split."""
    return f"{name}.{split}"


def scores_of(metrics: Mapping[str, float], split: int) -> dict[str, Any]:
    """Return the scores of one split under the names that scikit-learn's searches have for them."""
    ending = f".{split}"
    each = {name.removesuffix(ending): value for name, value in metrics.items() if name.endswith(ending)}
    trained = {name: each[f"train_{name}"] for name in each if f"train_{name}" in each}
    tested = {name: each[name] for name in trained} if trained else each
    kinds = {"test_scores": tested, "train_scores": trained} if trained else {"test_scores": tested}
    return {kind: found["score"] if found.keys() == {"score"} else found for kind, found in kinds.items()}


def train_on(estimator: Estimator, rows: Table, classes: Any) -> None:
    """Train an estimator on some rows."""
    options = {} if classes is None else {"classes": classes}
    estimator.partial_fit(rows.x, rows.y, **options, **rows.fit_params)
    if isinstance(classes, list) and not hasattr(estimator, "classes_"):  # as its fit would have set it
        estimator.classes_ = classes


class Folds(BaseEstimator):  # type: ignore[misc]
    """One estimator for each split, and the fitted ``steps`` of a pipeline before it, or why they could not be fitted.

    ``classes`` are those of a classifier, or a list of those of each output.
    """

    def __init__(self, template: Estimator, steps: Sequence[Any] | str, classes: Any) -> None:
        self.template, self.steps, self.classes = template, steps, classes

    def partial_fit(self, batch: Table, y: None = None, sample_weight: Array | None = None) -> Folds:
        """Train each estimator on the rows of its split; weights say how often each row of the batch is among them."""
        assert sample_weight is not None, "the column split takes the place of weights"
        if isinstance(self.steps, str):
            raise TaskError(self.steps)
        if not hasattr(self, "estimators_"):
            self.estimators_ = [clone(self.template) for _ in self.steps]
        for split, (estimator, steps) in enumerate(zip(self.estimators_, self.steps, strict=True)):
            times = sample_weight[:, split]
            rows = np.repeat(np.arange(len(times)), times) if batch.splits is None else batch.splits[split]
            if len(rows):
                # Copies: an estimator may work in place, and other candidates train on the same batch.
                train_on(estimator, batch.transformed(rows, steps, split), self.classes)
        return self


class Gathered:
    """The batches of a unit with the rows that their numbers stand for: the first ones, a random share of all."""

    def __init__(self, batches: Batches, table: Table, shares: int) -> None:
        self._batches, self._table, self._count = batches, table, -(-len(batches) // shares)
        self.rows = batches.rows // shares

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        for batch in islice(self._batches, self._count):
            table = self._table if self._table.splits is not None else self._table.take(batch["row"])
            yield {"rows": table, "split": batch["split"]}


class FoldsSession(SklearnSession):
    """A trial that is scored split by split, each on all of its test rows at once."""

    _hooks: FoldsTask
    #: The file that is being loaded.
    _source: Path

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        # A flotilla has gathered the rows already.
        return super().train(batches if isinstance(batches, Kept) else self.gathered(batches), last=last)

    def gathered(self, batches: Batches) -> Batches:
        """Return the batches of a unit that are trained on."""
        return Gathered(batches, self._hooks.table, self._hooks.shares)

    def state(self) -> Tree:
        try:
            return super().state()
        except CheckpointError:  # an estimator of a user's own class
            return np.frombuffer(cloudpickle.dumps(self.estimator.estimators_), np.uint8)

    def load(self, path: Path) -> None:
        self._source = path
        super().load(path)

    def restore(self, state: Tree) -> None:
        if isinstance(state, np.ndarray):
            check_private(self._source.parent, self._source)
            self.estimator.estimators_ = cloudpickle.loads(state.tobytes())
        else:
            super().restore(state)

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        with self.environment(seed):
            model = self.model if self.counters["units"] else self._tried(list(self.gathered(batches)))
            found = _scores(self._hooks, model, self._hooks.tests, "")
            if self._hooks.trains is not None:
                found |= _scores(self._hooks, model, self._hooks.trains, "train_")
            return {name: RowSum.of(value, batches.rows) for name, value in found.items()}


def _scores(task: FoldsTask, folds: Folds, rows: Sequence[Array], prefix: str) -> dict[str, float]:
    """Return the scores of each split by name, and their means. The one called ``score`` decides."""
    each: dict[str, list[float]] = {}
    for split, (model, steps, some) in enumerate(zip(folds.estimators_, folds.steps, rows, strict=True)):
        # A user's own function may look at the pipeline.
        whole = steps is not None and task.own_scorer
        part = task.table.take(some) if whole else task.table.transformed(some, steps, (prefix, split))
        scored = Pipeline([*steps.steps, (task.name, model)]) if whole else model
        scores = _score(scored, part.x, part.y, task.scorer, part.score_params, task.error_score)
        for name, value in (scores if isinstance(scores, Mapping) else {"score": scores}).items():
            each.setdefault(f"{prefix}{name}", []).append(float(value))
    means = {name: float(np.mean(values)) for name, values in each.items()}
    if "score" not in each:
        means.setdefault("score", means.get(str(task.refit), next(iter(means.values()))))
    return {single(name, split): value for name, values in each.items() for split, value in enumerate(values)} | means


class FoldsFlotilla(InTurn):
    """Candidates that train in turn on the same batches, which none of them changes."""

    def __init__(self, sessions: Sequence[FoldsSession]) -> None:
        super().__init__(sessions, copies=False)
        self._gathered = sessions[0].gathered

    def train(self, batches: Batches, *, last: Sequence[bool]) -> list[Result]:
        return super().train(self._gathered(batches), last=last)


class FoldsFramework(SklearnFramework):
    """scikit-learn with trials that are cross-validated."""

    session = FoldsSession

    def flotilla(self, sessions: Sequence[SklearnSession], *, fast: bool = False) -> Flotilla:
        return FoldsFlotilla(cast("Sequence[FoldsSession]", sessions))


class FoldsTask(SklearnTask):
    """A task whose configurations are numbers of ``candidates``: estimators with their parameters.

    ``steps`` has the fitted steps before each candidate, ``labels`` its classes, and ``tests`` the rows that each split
    is scored on; ``name`` is that of the last step of a pipeline. An epoch of the experiment has a random share of the
    rows of ``table``, one in ``shares``.
    """

    preload = ("hopfleet.frameworks.sklearn.folds",)

    def __init__(
        self,
        candidates: Sequence[Estimator],
        steps: Sequence[Sequence[Any] | str],
        labels: Sequence[Any],
        table: Table,
        tests: Sequence[Array],
        *,
        name: str,
        trains: Sequence[Array] | None,
        scorer: Any,
        refit: Any,
        error_score: Any,
        shares: int,
    ) -> None:
        self.candidates, self.steps, self.labels, self.table = candidates, steps, labels, table
        self.tests, self.trains, self.scorer = tests, trains, scorer
        self.name, self.refit, self.error_score, self.shares = name, refit, error_score, shares
        scorers = getattr(scorer, "_scorers", {"score": scorer}).values()
        self.own_scorer = any(type(each).__module__.partition(".")[0] != "sklearn" for each in scorers)

    def build(self, config: Config) -> Folds:
        number = config["candidate"]
        return Folds(clone(self.candidates[number]), self.steps[number], self.labels[number])

    def example(self, batch: Batch) -> tuple[Any, ...]:
        return batch["rows"], None, batch["split"]

    @property
    def framework(self) -> FoldsFramework:
        return FoldsFramework(self, own_metrics=True)
