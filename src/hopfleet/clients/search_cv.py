"""HopSearchCV: the search of scikit-learn users. It takes the place of GridSearchCV and RandomizedSearchCV.

All splits of all candidates train on one copy of the data, partition by partition, and with ``halving`` most candidates
stop early.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from hopfleet.errors import MissingExtra

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise MissingExtra("scikit-learn", "sklearn") from error

from joblib import effective_n_jobs
from sklearn.base import is_classifier
from sklearn.model_selection import check_cv
from sklearn.model_selection._search import BaseSearchCV
from sklearn.model_selection._validation import _insert_error_scores, _warn_or_raise_about_fit_failures
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils import check_array, check_random_state, indexable
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import _check_method_params, _num_samples, check_is_fitted, column_or_1d

from hopfleet.data import partition
from hopfleet.domain.bounds import integer
from hopfleet.domain.placement import CPU
from hopfleet.domain.signatures import signposted
from hopfleet.domain.space import grid_search
from hopfleet.errors import UsageError
from hopfleet.experiment.experiment import Experiment
from hopfleet.experiment.options import RunOptions
from hopfleet.frameworks.sklearn.candidates import listed_candidates, with_parameters
from hopfleet.frameworks.sklearn.folds import FoldsTask, Table, scores_of, train_on
from hopfleet.frameworks.sklearn.pipeline_steps import divided, fitted_steps, has_steps, last_step
from hopfleet.runs.results import Results
from hopfleet.runs.trial_result import TrialResult
from hopfleet.search.base import Search, at_least_one
from hopfleet.search.grid import Grid
from hopfleet.search.halving import SuccessiveHalving
from hopfleet.search.sampled import rungs
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

    ``params`` is the grid of GridSearchCV or, with ``n_iter``, the distributions of RandomizedSearchCV; it may be
    called ``param_grid`` or ``param_distributions``. Each candidate trains for ``epochs`` epochs; with ``halving``, all
    train for ``min_epochs`` epochs and one in ``factor`` goes on to ``factor`` times as many, again and again;
    ``min_epochs=1/9`` begins with a ninth of the rows. ``n_jobs`` is the number of worker processes, -1 for one on each
    core: 1 trains in this process, and so does a search so short that processes would take longer to start than they
    save. The steps of a pipeline before the last one are fitted once for each split and each choice of their
    parameters. After ``fit``, everything is as with GridSearchCV; ``results_`` has learning curves and more in
    ``folder``. Estimators without ``partial_fit`` are fitted to whole splits, exactly as GridSearchCV does it.
    """

    pre_dispatch = "2*n_jobs"

    def __init__(
        self,
        estimator: Estimator,
        params: Any = None,
        *,
        param_grid: Any = None,
        param_distributions: Any = None,
        n_iter: int | None = None,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        error_score: Any = np.nan,
        return_train_score: bool = False,
        epochs: int = 10,
        halving: bool = False,
        factor: int = 3,
        min_epochs: float = 1,
        batch_size: int = 10_000,
        random_state: Any = None,
        folder: str | None = None,
    ) -> None:
        self.estimator = estimator
        self.params = params
        self.param_grid = param_grid
        self.param_distributions = param_distributions
        self.n_iter = n_iter
        self.scoring = scoring
        self.n_jobs = n_jobs
        self.refit = refit
        self.cv = cv
        self.verbose = verbose
        self.error_score = error_score
        self.return_train_score = return_train_score
        self.epochs = epochs
        self.halving = halving
        self.factor = factor
        self.min_epochs = min_epochs
        self.batch_size = batch_size
        self.random_state = random_state
        self.folder = folder

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:  # noqa: N803
        """Try all candidates and, with ``refit``, train the best one on all rows.

        ``params`` are ``groups`` for the splits, ``sample_weight`` and other arguments of the estimator's methods.
        """
        if isinstance(last_step(self.estimator), type):
            name = last_step(self.estimator).__name__
            raise UsageError(f"estimator={name}: is a class; pass an estimator, {name}()")
        self._validate_params()
        self._get_scorers()  # which may refuse refit
        given = {name: getattr(self, name) for name in ("params", "param_grid", "param_distributions")}
        self._candidates = listed_candidates(given, self.n_iter, self.random_state)
        try:
            models = [with_parameters(self.estimator, each) for each in self._candidates]
            return self._fit_whole(X, y, params) if self._needs_whole(models, y) else self._fit(models, X, y, params)
        finally:
            del self._candidates

    def _needs_whole(self, models: Sequence[Estimator], y: Any) -> bool:
        """Whether some candidate cannot train batch by batch, or not with such rows or targets."""
        lasts = [last_step(model) for model in models]
        if not all(hasattr(last, "partial_fit") for last in lasts):
            return True
        several = is_classifier(self.estimator) and _outputs(y) > 1
        return self.estimator.__sklearn_tags__().input_tags.pairwise or (
            several and not all(map(_takes_several, lasts))
        )

    def _fit_whole(self, X: Any, y: Any, params: Mapping[str, Any]) -> Self:  # noqa: N803
        for name, default in (("halving", False), ("folder", None)):
            if (value := getattr(self, name)) != default:
                raise UsageError(
                    f"{name}={value!r}: {type(last_step(self.estimator)).__name__} has no partial_fit for these data, "
                    f"so it is fitted to whole splits; leave {name} out, or use an estimator such as SGDClassifier"
                )
        super().fit(X, y, **params)
        return self

    def _run_search(self, evaluate_candidates: Any) -> None:
        evaluate_candidates(self._candidates)

    def _fit(self, models: Sequence[Estimator], X: Any, y: Any, params: Mapping[str, Any]) -> Self:  # noqa: N803
        shares = self._shares()
        scorer, metric = self._get_scorers()
        X, y = indexable(X, y)  # noqa: N806
        self._check_rows(X, y)
        labels = self._labels(models, y)
        routed = self._get_routed_params_for_fit(_check_method_params(X, params))
        before, last = divided(self.estimator, routed.estimator.fit)
        table = Table(X, y, last, routed.scorer.score)
        cv = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        splits = list(cv.split(X, y, **routed.splitter.split))
        self.n_splits_ = cv.get_n_splits(X, y, **routed.splitter.split)
        if len(splits) != self.n_splits_:
            raise ValueError(
                f"cv={cv!r}: cv.split and cv.get_n_splits return inconsistent results. Expected {self.n_splits_} "
                f"splits, got {len(splits)}"
            )
        if not splits:
            raise ValueError(f"cv={cv!r}: No fits were performed. Was the CV iterator empty? Were there no candidates?")
        numbers = np.arange(_num_samples(X))  # splits may have masks, or count from the end
        trains, tests = ([numbers[np.asarray(rows)] for rows in part] for part in zip(*splits, strict=True))
        steps = fitted_steps(
            self.estimator, self._candidates, models, table, trains, before, raises=self.error_score == "raise"
        )
        task = FoldsTask(
            [last_step(model) for model in models],
            steps,
            labels,
            table,
            tests,
            name=self.estimator.steps[-1][0] if has_steps(self.estimator) else "",
            trains=trains if self.return_train_score else None,
            scorer=scorer,
            refit=self.refit,
            error_score=self.error_score,
            shares=shares,
        )
        with TURN:
            self._search(task, trains)
        out = self._outcomes(tests)
        _warn_or_raise_about_fit_failures(out, self.error_score)
        _insert_error_scores(out, self.error_score)
        self.cv_results_ = self._format_results(self._candidates, self.n_splits_, out, self._reached(shares))
        self.scorer_ = getattr(scorer, "_scorers", scorer)
        self.multimetric_ = isinstance(out[0]["test_scores"], dict)
        if callable(self.scoring) and self.multimetric_:
            self._check_refit_for_multimetric(out[0]["test_scores"])
            metric = self.refit
        return self._conclude(table, labels, metric, before)

    # --------------------------------------------------------------------------------------------- what to search

    def _shares(self) -> int:
        """Return into how many shares the rows of an epoch are divided, which are trained on one after another."""
        at_least_one("epochs", self.epochs)
        at_least_one("batch_size", self.batch_size)
        integer("factor", self.factor, 2, remedy="; 3 keeps the best third")
        for name in {name for candidate in self._candidates for name in candidate}:
            if name.rpartition("__")[2] == "max_iter":
                raise UsageError(f"params: {name!r} has no effect on partial_fit; leave it out, and set epochs")
        if self.min_epochs >= 1 and self.min_epochs % 1 == 0:
            return 1
        shares = round(1 / self.min_epochs) if self.min_epochs > 0 else 0
        if shares < 2 or not math.isclose(self.min_epochs * shares, 1):
            raise UsageError(f"min_epochs={self.min_epochs!r}: must be a whole number, or a share such as 1/3 or 1/9")
        if not self.halving:
            raise UsageError(f"min_epochs={self.min_epochs!r}: needs halving=True")
        return shares

    def _check_rows(self, X: Any, y: Any) -> None:  # noqa: N803
        tags = self.estimator.__sklearn_tags__()
        if not has_steps(self.estimator):  # which may take anything
            finite = "allow-nan" if tags.input_tags.allow_nan else True
            named = {"estimator": self.estimator, "input_name": "X"}
            check_array(X, accept_sparse=True, dtype="numeric", ensure_all_finite=finite, **named)
        if y is None and tags.target_tags.required:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")

    def _labels(self, models: Sequence[Estimator], y: Any) -> list[Any]:
        """Return the classes that each candidate is told: a list for each output if it has a classifier for each."""
        if y is None or not is_classifier(self.estimator):
            return [None] * len(models)
        check_classification_targets(y)
        single = [last_step(model).__sklearn_tags__().target_tags.single_output for model in models]
        labels: dict[bool, Any] = {}
        if False in single:
            labels[False] = [np.unique(column) for column in np.asarray(y).T]
        if True in single:
            labels[True] = unique_labels(y) if _outputs(y) > 1 else np.unique(column_or_1d(y, warn=True))
        return [labels[each] for each in single]

    # -------------------------------------------------------------------------------------------------- the search

    def _search(self, task: FoldsTask, trains: Sequence[Any]) -> None:
        count, rows = len(task.candidates), _num_samples(task.table.x)
        search: Search = Grid(self.epochs)
        if self.halving:
            most, least = self.epochs * task.shares, max(1, int(self.min_epochs))
            search = SuccessiveHalving(count, most, eta=self.factor, min_epochs=least)
        times = np.stack([_times(some, rows) for some in trains], axis=1)
        columns: dict[str, Any] = {"row": np.arange(rows), "split": times}
        tested = np.unique(np.concatenate(task.tests))
        workers = effective_n_jobs(self.n_jobs)
        epochs = (search.planned(count).epochs or 0) / task.shares
        whole = rows <= self.batch_size and task.shares == 1
        task.table.splits = trains if whole else None
        if workers > 1 and self._seconds(task, times, epochs) * (1 - 1 / workers) < START_SECONDS:
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
                metric="score",
                mode="max",
                seed=seed,
                name="search",
                workers=workers,
                backend="inline" if workers == 1 else "local",
                batch_size=max(1, min(self.batch_size, rows // partitions // task.shares)),
                run_options=RunOptions(folder=str(place / "run"), all_failed="return", fail_fast=False),
            ).fit(quiet=not self.verbose, overwrite=True)
            task.table, task.tests, task.trains = Table(None), (), None  # the results keep the task
            self._trials: dict[int, TrialResult] = {trial.config["candidate"]: trial for trial in self.results_.trials}

    def _seconds(self, task: FoldsTask, times: np.ndarray[Any, np.dtype[Any]], epochs: float) -> float:
        """Return how long one process takes for some epochs, judging by one batch of up to three candidates."""
        rows = np.arange(min(self.batch_size, len(times)))
        batch = task.table.take(rows) if task.table.splits is None else task.table
        spent = []
        for number in {0, len(task.candidates) // 2, len(task.candidates) - 1}:
            # A candidate that fails is reported by the search.
            with contextlib.suppress(Exception):
                session = task.framework.open({"candidate": number}, seed=0, placement=CPU, threads=1)
                with session.environment():
                    began = time.thread_time()  # other processes may be busy now
                    session.model.partial_fit(batch, None, times[rows])
                    spent.append(time.thread_time() - began)
        return epochs * len(times) / len(rows) * sum(spent) / max(1, len(spent))

    def _reached(self, shares: int) -> dict[str, Sequence[float]]:
        """Return how far each candidate was trained, and keep the counts of scikit-learn's halving searches."""
        lengths = [len(trial.history) for _, trial in sorted(self._trials.items())]
        epochs = [length if shares == 1 else length / shares for length in lengths]
        if not self.halving:
            return {"n_epochs": epochs}
        levels = rungs(self.epochs * shares, self.factor, max(1, int(self.min_epochs)))
        reached = [bisect.bisect_left(levels, length) for length in lengths]
        self.n_iterations_ = max(reached) + 1
        self.n_candidates_ = [sum(each >= rung for each in reached) for rung in range(self.n_iterations_)]
        self.n_resources_ = [each if shares == 1 else each / shares for each in levels[: self.n_iterations_]]
        self.n_remaining_candidates_ = -(-self.n_candidates_[-1] // self.factor)
        self.n_possible_iterations_ = len(levels)
        self.n_required_iterations_ = len(rungs(len(lengths), self.factor, 1))
        return {"n_epochs": epochs, "iter": reached}

    def _outcomes(self, tests: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the scores of each split of each candidate as scikit-learn's own searches collect them."""
        spent: dict[str, list[float]] = {}
        for span in self.results_.history.spans:
            times = spent.setdefault(span.trial, [0.0, 0.0])
            times[span.work.value != "train"] += span.ended - span.started
        outcomes = []
        for _, trial in sorted(self._trials.items()):
            if trial.error and self.error_score == "raise":
                raise ValueError(f"A candidate failed: {trial.error}")
            fit_time, score_time = spent.get(trial.id, (0.0, 0.0))
            for split, test in enumerate(tests):
                found = scores_of(trial.history[-1], split) if trial.history and not trial.error else {}
                outcome = {
                    "test_scores": self.error_score,
                    "n_test_samples": len(test),
                    "fit_time": fit_time / len(tests),
                    "score_time": score_time / len(tests),
                    "fit_error": trial.error or None,
                }
                if self.return_train_score:
                    outcome["train_scores"] = self.error_score
                outcomes.append(outcome | found)
        return outcomes

    # ----------------------------------------------------------------------------------------------- the best one

    def _conclude(self, table: Table, labels: Sequence[Any], metric: Any, params: Mapping[str, Any]) -> Self:
        results = self.cv_results_
        if self.refit or not self.multimetric_:
            self.best_index_ = self._select_best_index(self.refit, metric, results)
            if self.halving and not callable(self.refit):
                # Candidates that were stopped early are not compared with those that were trained on.
                furthest = np.flatnonzero(results["n_epochs"] == results["n_epochs"].max())
                self.best_index_ = furthest[results[f"rank_test_{metric}"][furthest].argmin()]
            if not callable(self.refit):
                self.best_score_ = results[f"mean_test_{metric}"][self.best_index_]
            self.best_params_ = results["params"][self.best_index_]
        if self.refit:
            began = time.perf_counter()
            self.best_estimator_ = self._refitted(table, labels, params)
            self.refit_time_ = time.perf_counter() - began
            if hasattr(self.best_estimator_, "feature_names_in_"):
                self.feature_names_in_ = self.best_estimator_.feature_names_in_
        return self

    def _refitted(self, table: Table, labels: Sequence[Any], params: Mapping[str, Any]) -> Estimator:
        """Return the best candidate, trained on all rows for as many epochs as in the search."""
        model = with_parameters(self.estimator, self.best_params_)
        x = model[:-1].fit_transform(table.x, table.y, **params) if has_steps(model) else table.x
        table = Table(x, table.y, table.fit_params)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(1 << 31))
        rows = _num_samples(x)
        for _ in range(math.ceil(self.cv_results_["n_epochs"][self.best_index_])):
            order = rng.permutation(rows) if rows > self.batch_size else np.arange(rows)
            for start in range(0, rows, self.batch_size):
                some = table.take(order[start : start + self.batch_size])
                train_on(last_step(model), some, labels[self.best_index_])
        check_is_fitted(last_step(model))
        return model


def _outputs(y: Any) -> int:
    """Return the number of targets that each row has."""
    return int(np.prod((getattr(y, "shape", None) or np.asarray(y).shape)[1:]))


def _takes_several(model: Estimator) -> bool:
    """Whether a classifier trains batch by batch on several targets."""
    if isinstance(model, OneVsRestClassifier):  # only its fit takes them
        return False
    tags = model.__sklearn_tags__()
    return bool(tags.target_tags.multi_output or (tags.classifier_tags and tags.classifier_tags.multi_label))


def _times(numbers: Any, rows: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Return how often each of some rows is among their numbers."""
    times = np.bincount(numbers, minlength=rows)
    return times.astype(np.min_scalar_type(times.max()))
