"""Importances of hyper-parameters of known functions: the own forest, scikit-learn's, and two estimators of Optuna.

Each function has five parameters between 0 and 1. Their true importances are total Sobol indices, from many draws. All
estimators see the same trials. Importances are compared as parts of their sum, since some estimators know only that.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from statistics import fmean

import numpy as np

from benchmarks.row import Row, milliseconds
from hopfleet.monitor.charts.importance import importance_data
from tests.helpers.searched_runs import history_of

Function = Callable[[np.ndarray], np.ndarray]
NAMES = tuple("abcde")
DRAWS = 20_000

FUNCTIONS: Mapping[str, Function] = {
    "a sum": lambda x: 3 * x[:, 0] + 2 * x[:, 1] + x[:, 2],
    "a narrow valley": lambda x: -((x[:, 0] - 0.6) ** 2) * 8 - (x[:, 1] - x[:, 0]) ** 2 * 4 + 0.1 * x[:, 2],
    "a product": lambda x: np.sin(2 * math.pi * x[:, 0]) * x[:, 1] + 0.5 * (x[:, 2] > 0.7),
}


def truth(function: Function) -> np.ndarray:
    """Return the total Sobol indices (Jansen's estimator)."""
    rng = np.random.default_rng(0)
    one, other = rng.random((2, DRAWS, len(NAMES)))
    values = function(one)
    found = []
    for column in range(len(NAMES)):
        mixed = one.copy()
        mixed[:, column] = other[:, column]
        found.append(float(np.mean((values - function(mixed)) ** 2) / 2 / np.var(values)))
    return np.array(found)


def own(x: np.ndarray, y: np.ndarray, seed: int) -> list[float]:
    trials = [
        (dict(zip(NAMES, map(float, row), strict=True)), {"accuracy": float(v)}) for row, v in zip(x, y, strict=True)
    ]
    found = {entry.name: entry.importance for entry in importance_data(history_of(*trials), seed=seed).parameters}
    return [found[name] for name in NAMES]


def sklearn(x: np.ndarray, y: np.ndarray, seed: int) -> list[float]:
    """Do what the own code does, with a forest of scikit-learn of as many trees."""
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.inspection import permutation_importance

    rows = []
    for repetition in range(12):
        order = np.random.default_rng((seed, repetition)).permutation(len(x))
        test, train = np.split(order, [max(2, len(x) // 4)])
        forest = ExtraTreesRegressor(24, min_samples_leaf=3, random_state=repetition).fit(x[train], y[train])
        scoring = "neg_mean_squared_error"
        found = permutation_importance(forest, x[test], y[test], n_repeats=4, random_state=seed, scoring=scoring)
        rows.append(found.importances_mean / 2 / np.var(y))
    return [float(value) for value in np.mean(rows, axis=0)]


def optuna(kind: str) -> Callable[[np.ndarray, np.ndarray, int], list[float]]:
    def work(x: np.ndarray, y: np.ndarray, seed: int) -> list[float]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(direction="maximize")
        unit = optuna.distributions.FloatDistribution(0.0, 1.0)
        space: dict[str, optuna.distributions.BaseDistribution] = dict.fromkeys(NAMES, unit)
        for row, value in zip(x, y, strict=True):
            params = dict(zip(NAMES, map(float, row), strict=True))
            study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=float(value)))
        evaluator = (
            optuna.importance.PedAnovaImportanceEvaluator()
            if kind == "PED-ANOVA"
            else optuna.importance.FanovaImportanceEvaluator(seed=seed)
        )
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        return [found[name] for name in NAMES]

    return work


ESTIMATORS = {
    "own forest": own,
    "scikit-learn's forest": sklearn,
    "Optuna, PED-ANOVA": optuna("PED-ANOVA"),
    "Optuna, fANOVA": optuna("fANOVA"),
}


def measure(quick: bool) -> list[Row]:
    warnings.simplefilter("ignore")
    rows = []
    for trials in (30,) if quick else (30, 100, 250):
        errors: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
        seconds: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
        for function in FUNCTIONS.values():
            wanted = _parts(truth(function))
            for seed in range(1 if quick else 5):
                x = np.random.default_rng(seed).random((trials, len(NAMES)))
                y = function(x)
                for name, estimator in ESTIMATORS.items():
                    began = time.perf_counter()
                    found = _parts(estimator(x, y, seed))
                    seconds[name].append(time.perf_counter() - began)
                    errors[name].append(float(np.abs(found - wanted).sum() / 2))
        rows += [
            Row(
                "importance",
                f"importances of {trials} trials: share that is given to the wrong parameters, and time",
                f"{fmean(errors['own forest']):.1%} in {milliseconds(fmean(seconds['own forest']))}",
                f"{fmean(errors[name]):.1%} in {milliseconds(fmean(seconds[name]))}: {name}",
                fmean(errors["own forest"]) / fmean(errors[name]),
            )
            for name in list(ESTIMATORS)[1:]
        ]
    return rows


def _parts(found: list[float] | np.ndarray) -> np.ndarray:
    values = np.maximum(0.0, found)
    return np.asarray(values / (values.sum() or 1.0))
