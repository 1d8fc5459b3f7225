"""HopSearchCV: the search of scikit-learn users. It takes the place of GridSearchCV and RandomizedSearchCV.

All splits of all candidates train on one copy of the data, partition by partition, and with ``halving`` most candidates
stop early.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from hopfleet.errors import MissingExtra, UsageError

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise MissingExtra("scikit-learn", "sklearn") from error

from joblib import effective_n_jobs
from sklearn.base import clone, is_classifier
from sklearn.metrics import check_scoring
from sklearn.model_selection import ParameterGrid, ParameterSampler, check_cv
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, check_array, check_random_state, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples, check_is_fitted, column_or_1d

from hopfleet.data import partition
from hopfleet.domain.placement import CPU
from hopfleet.domain.signatures import signposted
from hopfleet.domain.space import grid_search
from hopfleet.domain.space.dimension import Dimension
from hopfleet.experiment.experiment import Experiment
from hopfleet.experiment.options import RunOptions
from hopfleet.frameworks.sklearn.folds import TEST, TRAIN, FoldsTask, Table, single
from hopfleet.phrases import did_you_mean, listed
from hopfleet.runs.results import Results
from hopfleet.runs.trial_result import TrialResult
from hopfleet.search.base import Search, at_least_one
from hopfleet.search.grid import Grid
from hopfleet.search.halving import SuccessiveHalving
from hopfleet.support.files import temporary_folder

Estimator = Any

PARTITIONS = 4
"""Partitions of the data for worker processes, if each has a whole batch: they train on different ones at a time."""

TURN = threading.Lock()
"""Held by the search at work in this process: output and random streams belong to the process."""

START_SECONDS = 2.0
"""Seconds that a search with two worker processes takes longer than one without, as measured on two slow cores."""


@signposted
class HopSearchCV(BaseSearchCV):  # type: ignore[misc]
    """A cross-validated search over parameters of an estimator with ``partial_fit``, or of a pipeline that ends in one.

    ``params`` is the grid of GridSearchCV or, with ``n_iter``, the distributions of RandomizedSearchCV. Each candidate
    trains for ``epochs`` epochs; with ``halving``, all train for ``min_epochs`` epochs and a third of them goes on to
    three times as many, again and again; ``min_epochs=1/9`` begins with a ninth of the rows. ``n_jobs`` is the number
    of worker processes, -1 for one on each core: 1 trains in this process, and so does a search so short that processes
    would take longer to start than they save. The steps of a pipeline before the last one are fitted once for each
    split, so their parameters are not searched. After ``fit``, everything is as with GridSearchCV; ``results_`` has
    learning curves and more in ``folder``.
    """

    # Options of scikit-learn's searches that this one does without.
    return_train_score = False
    pre_dispatch = 1

    def __init__(
        self,
        estimator: Estimator,
        params: Any,
        *,
        n_iter: int | None = None,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        error_score: Any = np.nan,
        epochs: int = 10,
        halving: bool = False,
        min_epochs: float = 1,
        batch_size: int = 1000,
        random_state: Any = None,
        folder: str | None = None,
    ) -> None:
        self.estimator = estimator
        self.params = params
        self.n_iter = n_iter
        self.scoring = scoring
        self.n_jobs = n_jobs
        self.refit = refit
        self.cv = cv
        self.verbose = verbose
        self.error_score = error_score
        self.epochs = epochs
        self.halving = halving
        self.min_epochs = min_epochs
        self.batch_size = batch_size
        self.random_state = random_state
        self.folder = folder

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:  # noqa: N803
        """Try all candidates and, with ``refit``, train the best one on all rows."""
        last = self.estimator.steps[-1][1] if isinstance(self.estimator, Pipeline) else self.estimator
        if isinstance(last, type):
            raise UsageError(f"estimator={last.__name__}: is a class; pass an estimator, {last.__name__}()")
        if not hasattr(last, "partial_fit"):
            raise UsageError(
                f"estimator={type(last).__name__}: has no partial_fit; use an estimator that has, such as "
                "SGDClassifier, or GridSearchCV"
            )
        candidates, shares = self._candidates(), self._shares()
        scorer, metric = self._scorer()
        X, y = indexable(X, y)  # noqa: N806
        if not self._has_steps():  # which may take anything
            finite = "allow-nan" if self.estimator.__sklearn_tags__().input_tags.allow_nan else True
            check_array(
                X, accept_sparse=True, dtype="numeric", ensure_all_finite=finite, estimator=last, input_name="X"
            )
        if y is None and self._estimator_type_needs_y():
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        labels = self._labels(y)
        table = Table(X, None if y is None else np.asarray(y))
        cv = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        splits = list(cv.split(X, y, groups))
        self.n_splits_, self.scorer_ = len(splits), scorer
        self.multimetric_ = isinstance(metric, str) and metric != "score"
        steps = [self._fitted_steps(table, train) for train, _ in splits]
        task = FoldsTask(last, [self._of_last(each) for each in candidates], steps, labels, scorer, shares, table)
        with TURN:
            self._search(task, _parts(_num_samples(X), splits), metric)
        self.cv_results_ = self._format_results(
            candidates, self.n_splits_, self._outcomes(candidates, splits, metric), {"n_epochs": self._epochs(shares)}
        )
        return self._conclude(X, y, labels, metric)

    # --------------------------------------------------------------------------------------------- what to search

    def _candidates(self) -> list[Mapping[str, Any]]:
        at_least_one("epochs", self.epochs)
        at_least_one("batch_size", self.batch_size)
        known = self.estimator.get_params()
        for name, values in _items(self.params):
            if name not in known:
                raise UsageError(
                    f"params: {name!r} is not a parameter of {type(self.estimator).__name__}: "
                    f"{did_you_mean(name, known)}known are {listed(name, known)}"
                )
            if name.rpartition("__")[2] == "max_iter":
                raise UsageError(f"params: {name!r} has no effect on partial_fit; leave it out, and set epochs")
            if isinstance(values, Dimension):
                raise UsageError(
                    f"params: {name!r} is {values!r}, a dimension of hop.Experiment; give a list of values or, with "
                    "n_iter, a distribution such as scipy.stats.loguniform(1e-4, 1e-1)"
                )
            if self.n_iter is None and hasattr(values, "rvs"):
                raise UsageError(f"params: {name!r} is a distribution; set n_iter, the number of candidates to draw")
        if self.n_iter is None:
            return list(ParameterGrid(self.params))
        sampler = ParameterSampler(self.params, at_least_one("n_iter", self.n_iter), random_state=self.random_state)
        return list(sampler)

    def _shares(self) -> int:
        """Return into how many shares the rows of an epoch are divided, which are trained on one after another."""
        if self.min_epochs >= 1 and self.min_epochs % 1 == 0:
            return 1
        shares = round(1 / self.min_epochs) if self.min_epochs > 0 else 0
        if shares < 2 or not math.isclose(self.min_epochs * shares, 1):
            raise UsageError(f"min_epochs={self.min_epochs!r}: must be a whole number, or a share such as 1/3 or 1/9")
        if not self.halving:
            raise UsageError(f"min_epochs={self.min_epochs!r}: needs halving=True")
        return shares

    def _of_last(self, candidate: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parameters of a candidate as the last step of the pipeline has them."""
        if not isinstance(self.estimator, Pipeline):
            return candidate
        prefix = f"{self.estimator.steps[-1][0]}__"
        for name in candidate:
            if not name.startswith(prefix):
                raise UsageError(
                    f"params: {name!r} is not a parameter of the last step, which is trained; its parameters begin "
                    f"with {prefix!r}; set parameters of other steps in the pipeline, or search with GridSearchCV"
                )
        return {name.removeprefix(prefix): value for name, value in candidate.items()}

    def _scorer(self) -> tuple[Any, str]:
        """Return the scorer and the name of the score that decides."""
        scorer = check_scoring(self.estimator, self.scoring)
        several = not (self.scoring is None or isinstance(self.scoring, str) or callable(self.scoring))
        if not several:
            return scorer, "score"
        names = list(self.scoring)
        if self.refit in names:
            return scorer, self.refit
        if self.refit is True or isinstance(self.refit, str):
            raise ValueError(
                f"For multi-metric scoring, the parameter refit must be one of {names}; got {self.refit!r}"
            )
        return scorer, names[0]

    def _estimator_type_needs_y(self) -> bool:
        return bool(self.estimator.__sklearn_tags__().target_tags.required)

    def _labels(self, y: Any) -> Any:
        """Return the classes of a classifier."""
        if y is None or not is_classifier(self.estimator):
            return None
        check_classification_targets(y)
        return np.unique(column_or_1d(y, warn=True))

    def _fitted_steps(self, table: Table, rows: Any) -> Pipeline | None:
        """Return the steps of the pipeline before the last, fitted to some rows; None if there are none."""
        return clone(self.estimator[:-1]).fit(*table.take(rows)) if self._has_steps() else None

    def _has_steps(self) -> bool:
        """Whether the estimator is a pipeline with steps before the last."""
        return isinstance(self.estimator, Pipeline) and len(self.estimator.steps) > 1

    # -------------------------------------------------------------------------------------------------- the search

    def _search(self, task: FoldsTask, parts: np.ndarray[Any, np.dtype[np.uint8]], metric: str) -> None:
        count, rows = len(task.candidates), len(parts)
        search: Search = Grid(self.epochs)
        if self.halving:
            search = SuccessiveHalving(count, self.epochs * task.shares, min_epochs=max(1, int(self.min_epochs)))
        columns: dict[str, Any] = {"row": np.arange(rows), "split": parts}
        tested = (parts == TEST).any(axis=1)
        workers = effective_n_jobs(self.n_jobs)
        epochs = (search.planned(count).epochs or 0) / task.shares
        if workers > 1 and self._seconds(task, parts, epochs) * (1 - 1 / workers) < START_SECONDS:
            workers = 1
        partitions = 1 if workers == 1 else max(1, min(PARTITIONS, rows // self.batch_size))
        seed = int(check_random_state(self.random_state).randint(1 << 31))
        with contextlib.ExitStack() as stack:
            place = Path(self.folder or stack.enter_context(temporary_folder("hopfleet-")))
            held = {name: values[tested] for name, values in columns.items()}
            train = partition(columns, place / "train", partitions=partitions, seed=seed, overwrite=True)
            valid = partition(held, place / "valid", partitions=1, overwrite=True)
            if workers > 1:
                task.table.share(place / "inputs.npy")
            self.results_: Results = Experiment(
                task,
                train=train,
                valid=valid,
                space={"candidate": grid_search(list(range(count)))},
                search=search,
                metric=metric,
                mode="max",
                seed=seed,
                name="search",
                workers=workers,
                backend="inline" if workers == 1 else "local",
                batch_size=max(1, min(self.batch_size, rows // partitions // task.shares)),
                run_options=RunOptions(folder=str(place / "run"), all_failed="return", fail_fast=False),
            ).fit(quiet=not self.verbose, overwrite=True)
            task.table = Table(None)  # the results keep the task
            self._trials: dict[int, TrialResult] = {trial.config["candidate"]: trial for trial in self.results_.trials}

    def _seconds(self, task: FoldsTask, parts: np.ndarray[Any, np.dtype[np.uint8]], epochs: float) -> float:
        """Return how long one process takes for some epochs, judging by one batch of up to three candidates."""
        rows = np.arange(min(self.batch_size, len(parts)))
        x, y = task.table.take(rows)
        spent = []
        for number in {0, len(task.candidates) // 2, len(task.candidates) - 1}:
            # A candidate that fails is reported by the search.
            with contextlib.suppress(Exception):
                session = task.framework.open({"candidate": number}, seed=0, placement=CPU, threads=1)
                with session.environment():
                    began = time.thread_time()  # other processes may be busy now
                    session.model.partial_fit(x, y, parts[rows])
                    spent.append(time.thread_time() - began)
        return epochs * len(parts) / len(rows) * sum(spent) / max(1, len(spent))

    def _epochs(self, shares: int) -> list[float]:
        epochs = (len(trial.history) for _, trial in sorted(self._trials.items()))
        return [count if shares == 1 else count / shares for count in epochs]

    def _outcomes(self, candidates: Sequence[Any], splits: Sequence[Any], metric: str) -> list[dict[str, Any]]:
        """Return the scores of each split of each candidate as scikit-learn's own searches collect them."""
        errors = [trial.error for trial in self._trials.values() if trial.error]
        if errors and (len(errors) == len(candidates) or self.error_score == "raise"):
            which = (
                f"All the {len(errors)} candidates failed" if len(errors) == len(candidates) else "A candidate failed"
            )
            raise ValueError(f"{which}: {errors[0]}")
        names = list(self.scoring) if self.multimetric_ else ["score"]
        spent: dict[str, list[float]] = {}
        for span in self.results_.history.spans:
            times = spent.setdefault(span.trial, [0.0, 0.0])
            times[span.work.value != "train"] += span.ended - span.started
        outcomes = []
        for number in range(len(candidates)):
            trial = self._trials[number]
            metrics = trial.history[-1] if trial.history and not trial.error else {}
            fit_time, score_time = spent.get(trial.id, (0.0, 0.0))
            for split, (_, test) in enumerate(splits):
                values = {name: metrics.get(single(name, split), self.error_score) for name in names}
                outcomes.append(
                    {
                        "test_scores": values if self.multimetric_ else values["score"],
                        "n_test_samples": len(test),
                        "fit_time": fit_time / len(splits),
                        "score_time": score_time / len(splits),
                        "fit_error": trial.error,
                    }
                )
        return outcomes

    # ----------------------------------------------------------------------------------------------- the best one

    def _conclude(self, X: Any, y: Any, labels: Any, metric: str) -> Self:  # noqa: N803
        results = self.cv_results_
        if callable(self.refit):
            self.best_index_ = self.refit(results)
        else:
            # Candidates that were stopped early are not compared with those that were trained on.
            scores = np.where(np.isnan(results[f"mean_test_{metric}"]), -np.inf, results[f"mean_test_{metric}"])
            longest = results["n_epochs"] == results["n_epochs"].max() if self.halving else np.full(len(scores), True)
            self.best_index_ = int(np.where(longest, scores, -np.inf).argmax())
            self.best_score_ = results[f"mean_test_{metric}"][self.best_index_]
        self.best_params_ = results["params"][self.best_index_]
        if self.refit:
            began = time.perf_counter()
            self.best_estimator_ = self._refitted(X, y, labels)
            self.refit_time_ = time.perf_counter() - began
            if hasattr(self.best_estimator_, "feature_names_in_"):
                self.feature_names_in_ = self.best_estimator_.feature_names_in_
        return self

    def _refitted(self, X: Any, y: Any, labels: Any) -> Estimator:  # noqa: N803
        """Return the best candidate, trained on all rows for as many epochs as in the search."""
        model = clone(self.estimator).set_params(**clone(self.best_params_, safe=False))
        last, options = model, {} if labels is None else {"classes": labels}
        if isinstance(model, Pipeline):
            last = model.steps[-1][1]
            X = model[:-1].fit_transform(X, y) if self._has_steps() else X  # noqa: N806
        rng = np.random.default_rng(check_random_state(self.random_state).randint(1 << 31))
        rows = _num_samples(X)
        for _ in range(math.ceil(self.cv_results_["n_epochs"][self.best_index_])):
            order = rng.permutation(rows)
            for start in range(0, rows, self.batch_size):
                some = order[start : start + self.batch_size]
                last.partial_fit(_safe_indexing(X, some), None if y is None else _safe_indexing(y, some), **options)
        check_is_fitted(last)
        return model


def _items(params: Any) -> list[tuple[str, Any]]:
    """Return the names and values of a grid or of a list of grids; scikit-learn reports what is neither."""
    grids = [params] if isinstance(params, Mapping) else params if isinstance(params, list | tuple) else []
    return [item for grid in grids if isinstance(grid, Mapping) for item in grid.items()]


def _parts(rows: int, splits: Sequence[tuple[Any, Any]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return in which part of each split each row is."""
    parts = np.zeros((rows, len(splits)), np.uint8)
    for number, (train, test) in enumerate(splits):
        parts[train, number] = TRAIN
        parts[test, number] = TEST
    return parts
