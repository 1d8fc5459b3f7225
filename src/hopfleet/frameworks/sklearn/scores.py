"""Scores of fitted estimators: a loss for every kind of estimator, and scikit-learn's scorers by name."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.metrics import check_scoring, get_scorer, get_scorer_names

from hopfleet.domain.rowsum import RowSum, add
from hopfleet.errors import TaskError
from hopfleet.frameworks.example import Example
from hopfleet.frameworks.whole_set import WholeSet, collected
from hopfleet.phrases import did_you_mean

BY_ROWS = frozenset(
    (
        *("accuracy", "top_k_accuracy", "neg_mean_squared_error", "neg_mean_absolute_error"),
        *("neg_mean_squared_log_error", "neg_mean_absolute_percentage_error"),
        *("neg_mean_poisson_deviance", "neg_mean_gamma_deviance"),
    )
)
"""Scorers that are means over rows. All others, such as ``roc_auc`` and ``r2``, need all rows at once."""

Estimator = Any
"""An estimator or a pipeline."""


def names_of(scoring: object) -> tuple[str, ...]:
    """Return the names in a task's ``scoring``. Raise TaskError for a name that scikit-learn does not know."""
    names = (scoring,) if isinstance(scoring, str) else tuple(scoring) if isinstance(scoring, Iterable) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise TaskError(
            f"scoring={scoring!r}: must be the name of a scorer, or a list of names, e.g. ['roc_auc', 'f1']"
        )
    known = get_scorer_names()
    for name in names:
        if name not in known:
            raise TaskError(
                f"scoring={name!r}: no such scorer; {did_you_mean(name, known)}"
                "sklearn.metrics.get_scorer_names() lists them; compute other metrics in metrics(self, model, batch)"
            )
    return names


def has_loss(estimator: Estimator) -> bool:
    """Whether ``loss`` knows a loss of the estimator."""
    known = is_classifier(estimator) or is_regressor(estimator)
    return known or hasattr(estimator, "score") or hasattr(estimator, "inverse_transform")


def loss(estimator: Estimator, example: Example) -> float:
    """Return the loss of some rows.

    It is the share of wrong classes for a classifier and the mean squared error for a regressor. For others it is the
    negative score per row if there is a score, else the mean squared error of the rows after ``transform`` and back.
    """
    x, y, weight = example
    if is_classifier(estimator):
        return float(np.average(np.asarray(estimator.predict(x)) != np.asarray(y), weights=weight))
    if is_regressor(estimator):
        return float(np.average((np.asarray(estimator.predict(x), float) - np.asarray(y, float)) ** 2, weights=weight))
    if hasattr(estimator, "score"):
        return -float(estimator.score(x)) / len(x)
    if hasattr(estimator, "inverse_transform"):
        return float(np.mean((np.asarray(estimator.inverse_transform(estimator.transform(x))) - np.asarray(x)) ** 2))
    raise TaskError(
        f"{type(estimator).__name__} has no score: override metrics(self, model, batch) and return e.g. {{'loss': 0.3}}"
    )


def measured(estimator: Estimator, examples: Iterable[Example], scoring: Sequence[str]) -> dict[str, RowSum]:
    """Return the loss and the scores of an estimator over some rows."""
    by_rows, whole = [s for s in scoring if s in BY_ROWS], [s for s in scoring if s not in BY_ROWS]
    sums: list[Mapping[str, RowSum]] = []
    for example in examples:
        rows = len(example.x)
        sums.append({"loss": RowSum.of(loss(estimator, example), rows)})
        sums += ({name: RowSum.of(value, rows)} for name, value in _scored(estimator, example, by_rows))
        sums.append(collected({name: _outputs(estimator, example, name) for name in whole}))
    return add(sums)


def _scored(estimator: Estimator, example: Example, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    if names:
        x, y, weight = example
        options = {} if weight is None else {"sample_weight": weight}
        scores = check_scoring(estimator, scoring=list(names))(estimator, x, y, **options)
        yield from ((name, float(value)) for name, value in scores.items())


def _outputs(estimator: Estimator, example: Example, name: str) -> WholeSet:
    """Return what a scorer sees of some rows: the predictions of the method that it asks for, and the targets."""
    x, y, weight = example
    seen: list[Any] = []

    def see(targets: Any, outputs: Any, **options: Any) -> float:
        seen.append(outputs)
        return 0.0

    scorer = copy.copy(get_scorer(name))
    scorer._score_func = see
    scorer(estimator, x, y)
    return WholeSet(name, seen[0], y, **({} if weight is None else {"sample_weight": weight}))
