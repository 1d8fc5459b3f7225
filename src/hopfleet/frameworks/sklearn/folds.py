"""Cross-validation in one trial: an estimator for each split, trained side by side on one stream of batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Config
from hopfleet.frameworks.base import Batch, Batches, Flotilla, Result
from hopfleet.frameworks.in_turn import InTurn, Kept
from hopfleet.frameworks.sklearn.framework import SklearnFramework
from hopfleet.frameworks.sklearn.scores import Estimator
from hopfleet.frameworks.sklearn.session import SklearnSession
from hopfleet.frameworks.sklearn.task import SklearnTask
from hopfleet.frameworks.state.arrays import Array

TRAIN, TEST = 1, 2
"""Values of the column ``split``, which has one number for each split: in which part of the split a row is."""


class Table:
    """The rows of a search as the user gave them: arrays, sparse matrices, data frames or lists.

    The data set of the search has the numbers of the rows alone, so there is one copy of the rows.
    """

    def __init__(self, x: Any, y: Any = None) -> None:
        self.x, self.y = x, y
        self._file: Path | None = None

    def take(self, rows: Array) -> tuple[Any, Any]:
        """Return copies of the inputs and targets of some rows."""
        return _safe_indexing(self.x, rows), None if self.y is None else _safe_indexing(self.y, rows)

    def share(self, file: Path) -> None:
        """Write the inputs, if they are an array, to a file that other processes map instead of receiving a copy."""
        if isinstance(self.x, np.ndarray) and not self.x.dtype.hasobject:
            np.save(file, self.x)
            self._file = file

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "x": None} if self._file else vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._file:
            self.x = np.load(self._file, mmap_mode="r")


def single(name: str, split: int) -> str:
    """Return the name of a score in one split."""
    return f"{name}.{split}"


class Folds(BaseEstimator):  # type: ignore[misc]
    """One estimator for each split. ``steps`` has the fitted steps of a pipeline before it, for each split."""

    def __init__(self, template: Estimator, steps: Sequence[Any], classes: Array | None) -> None:
        self.template, self.steps, self.classes = template, steps, classes

    def partial_fit(self, x: Any, y: Any = None, sample_weight: Array | None = None) -> Folds:
        """Train each estimator on the rows that are in the training part of its split; weights say which."""
        assert sample_weight is not None, "the column split takes the place of weights"
        if not hasattr(self, "estimators_"):
            self.estimators_ = [clone(self.template) for _ in self.steps]
        options = {} if self.classes is None else {"classes": self.classes}
        batch = Table(x, y)
        for split, (estimator, steps) in enumerate(zip(self.estimators_, self.steps, strict=True)):
            rows = np.flatnonzero(sample_weight[:, split] == TRAIN)
            if len(rows):
                # Copies: an estimator may work in place, and other candidates train on the same batch.
                inputs, targets = batch.take(rows)
                estimator.partial_fit(inputs if steps is None else steps.transform(inputs), targets, **options)
        return self

    def models(self) -> list[Estimator]:
        """Return the estimator of each split, with the steps before it."""
        pairs = zip(self.steps, self.estimators_, strict=True)
        return [last if steps is None else Pipeline([*steps.steps, ("last", last)]) for steps, last in pairs]


class Gathered:
    """The batches of a unit with the rows that their numbers stand for: the first ones, a random share of all."""

    def __init__(self, batches: Batches, table: Table, shares: int) -> None:
        self._batches, self._table, self._count = batches, table, -(-len(batches) // shares)
        self.rows = batches.rows // shares

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        for batch in islice(self._batches, self._count):
            x, y = self._table.take(batch["row"])
            yield {"x": x, "y": y, "split": batch["split"]}


class FoldsSession(SklearnSession):
    """A trial that is scored split by split, each on all of its test rows at once."""

    _hooks: FoldsTask

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        # A flotilla has gathered the rows already.
        return super().train(batches if isinstance(batches, Kept) else self.gathered(batches), last=last)

    def gathered(self, batches: Batches) -> Batches:
        """Return the batches of a unit that are trained on."""
        return Gathered(batches, self._hooks.table, self._hooks.shares)

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        kept = Kept(list(batches), batches.rows, copies=False)
        rows, split = (np.concatenate([batch[name] for batch in kept]) for name in ("row", "split"))
        with self.environment(seed):
            model = self.model if self.counters["units"] else self._tried(list(self.gathered(kept)))
            found: dict[str, RowSum] = {}
            for number, member in enumerate(model.models()):
                tested = rows[split[:, number] == TEST]
                scores = self._scores(member, *self._hooks.table.take(tested)) if len(tested) else {}
                found |= {single(name, number): RowSum.of(float(value), len(rows)) for name, value in scores.items()}
            return found | _means(found, len(rows))

    def _scores(self, model: Estimator, x: Any, y: Any) -> Mapping[str, float]:
        scorer = self._hooks.scorer
        found = scorer(model, x) if y is None else scorer(model, x, y)
        return found if isinstance(found, Mapping) else {"score": found}


def _means(found: Mapping[str, RowSum], rows: int) -> dict[str, RowSum]:
    names = dict.fromkeys(name.rpartition(".")[0] for name in found)
    values = {name: [sums.mean for each, sums in found.items() if each.rpartition(".")[0] == name] for name in names}
    return {name: RowSum.of(float(np.mean(some)), rows) for name, some in values.items()}


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
    """A task whose configurations are numbers of ``candidates``: parameters of one estimator.

    An epoch of the experiment has a random share of the rows of ``table``, one in ``shares``.
    """

    preload = ("hopfleet.frameworks.sklearn.folds",)

    def __init__(
        self,
        estimator: Estimator,
        candidates: Sequence[Mapping[str, Any]],
        steps: Sequence[Any],
        classes: Array | None,
        scorer: Any,
        shares: int,
        table: Table,
    ) -> None:
        self.estimator, self.candidates, self.steps = estimator, candidates, steps
        self.labels, self.scorer, self.shares, self.table = classes, scorer, shares, table

    def build(self, config: Config) -> Folds:
        params = clone(dict(self.candidates[config["candidate"]]), safe=False)
        return Folds(clone(self.estimator).set_params(**params), self.steps, self.labels)

    def example(self, batch: Batch) -> tuple[Any, ...]:
        return batch["x"], batch["y"], batch["split"]

    @property
    def framework(self) -> FoldsFramework:
        return FoldsFramework(self, own_metrics=True)
