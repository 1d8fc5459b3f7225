"""Cross-validation in one trial: an estimator for each split, trained side by side on one stream of batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.pipeline import Pipeline

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


def single(name: str, split: int) -> str:
    """Return the name of a score in one split."""
    return f"{name}.{split}"


class Folds(BaseEstimator):  # type: ignore[misc]
    """One estimator for each split. ``steps`` has the fitted steps of a pipeline before it, for each split."""

    def __init__(self, template: Estimator, steps: Sequence[Any], classes: Array | None) -> None:
        self.template, self.steps, self.classes = template, steps, classes

    def partial_fit(self, x: Array, y: Array | None = None, sample_weight: Array | None = None) -> Folds:
        """Train each estimator on the rows that are in the training part of its split; weights say which."""
        assert sample_weight is not None, "the column split takes the place of weights"
        if not hasattr(self, "estimators_"):
            self.estimators_ = [clone(self.template) for _ in self.steps]
        options = {} if self.classes is None else {"classes": self.classes}
        for split, (estimator, steps) in enumerate(zip(self.estimators_, self.steps, strict=True)):
            rows = sample_weight[:, split] == TRAIN
            if rows.any():
                # Copies: an estimator may work in place, and other candidates train on the same batch.
                some = x.copy() if rows.all() else x[rows]
                some = some if steps is None else steps.transform(some)
                estimator.partial_fit(some, None if y is None else y[rows], **options)
        return self

    def models(self) -> list[Estimator]:
        """Return the estimator of each split, with the steps before it."""
        pairs = zip(self.steps, self.estimators_, strict=True)
        return [last if steps is None else Pipeline([*steps.steps, ("last", last)]) for steps, last in pairs]


class Share:
    """The first batches of a unit, which are a random share of its rows."""

    def __init__(self, batches: Batches, shares: int) -> None:
        self._batches, self._count = batches, -(-len(batches) // shares)
        self.rows = batches.rows // shares

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        return islice(self._batches, self._count)


class FoldsSession(SklearnSession):
    """A trial that is scored split by split, each on all of its test rows at once."""

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        # A flotilla has taken the share already.
        return super().train(batches if isinstance(batches, Kept) else self.share(batches), last=last)

    def share(self, batches: Batches) -> Batches:
        """Return the batches of a unit that are trained on."""
        shares = getattr(self._hooks, "shares")  # noqa: B009 (the task is a FoldsTask)
        return batches if shares == 1 else Share(batches, shares)

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        some = list(batches)
        with self.environment(seed):
            model = self.model if self.counters["units"] else self._tried(some)
            columns = zip(*map(self._hooks.example, some), strict=True)
            whole: list[Any] = [None if each[0] is None else np.concatenate(each) for each in columns]
            x, y, split = whole
            found: dict[str, RowSum] = {}
            for number, member in enumerate(model.models()):
                rows = split[:, number] == TEST
                scores = self._scores(member, x[rows], None if y is None else y[rows]) if rows.any() else {}
                found |= {single(name, number): RowSum.of(float(value), len(x)) for name, value in scores.items()}
            return found | _means(found, len(x))

    def _scores(self, model: Estimator, x: Array, y: Array | None) -> Mapping[str, float]:
        scorer = getattr(self._hooks, "scorer")  # noqa: B009 (the task is a FoldsTask)
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
        self._share = sessions[0].share

    def train(self, batches: Batches, *, last: Sequence[bool]) -> list[Result]:
        return super().train(self._share(batches), last=last)


class FoldsFramework(SklearnFramework):
    """scikit-learn with trials that are cross-validated."""

    session = FoldsSession

    def flotilla(self, sessions: Sequence[SklearnSession], *, fast: bool = False) -> Flotilla:
        return FoldsFlotilla(cast("Sequence[FoldsSession]", sessions))


class FoldsTask(SklearnTask):
    """A task whose configurations are numbers of ``candidates``: parameters of one estimator.

    An epoch of the experiment has a random share of the rows, one in ``shares``.
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
    ) -> None:
        self.estimator, self.candidates, self.steps = estimator, candidates, steps
        self.labels, self.scorer, self.shares = classes, scorer, shares

    def build(self, config: Config) -> Folds:
        params = clone(dict(self.candidates[config["candidate"]]), safe=False)
        return Folds(clone(self.estimator).set_params(**params), self.steps, self.labels)

    def example(self, batch: Batch) -> tuple[Any, ...]:
        y = batch.get("y")
        return batch["x"], y if y is None or self.labels is None else self.labels[y], batch["split"]

    @property
    def framework(self) -> FoldsFramework:
        return FoldsFramework(self, own_metrics=True)
