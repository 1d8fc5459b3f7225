"""A plugin for pytest that puts HopSearchCV in the place of scikit-learn's searches, in scikit-learn's own tests.

With ``HOPFLEET_BATCHES``, estimators without ``partial_fit`` get one that fits all rows of a batch, so that the tests
go through trials instead of whole fits. Outcomes are written to the file ``HOPFLEET_OUTCOMES``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
from pathlib import Path
from typing import Any

import sklearn.model_selection as searches
from sklearn.base import BaseEstimator
from sklearn.experimental import enable_halving_search_cv  # noqa: F401

import hopfleet as hop


def variant(name: str, argument: str, **defaults: Any) -> type[hop.HopSearchCV]:
    """Return HopSearchCV with other defaults, and one batch for all rows, as a whole fit has it."""
    defaults |= {"epochs": 1, "batch_size": 1_000_000}

    def __init__(self: Any, estimator: Any, grid: Any = None, **options: Any) -> None:  # noqa: N807
        spelled = {} if grid is None else {argument: grid}
        hop.HopSearchCV.__init__(self, estimator, **{**defaults, **spelled, **options})

    plain = inspect.signature(hop.HopSearchCV.__init__)
    __init__.__signature__ = plain.replace(  # type: ignore[attr-defined]
        parameters=[each.replace(default=defaults.get(each.name, each.default)) for each in plain.parameters.values()]
    )
    return type(name, (hop.HopSearchCV,), {"__init__": __init__, "__module__": __name__})


GridSearchCV = variant("GridSearchCV", "param_grid")
RandomizedSearchCV = variant("RandomizedSearchCV", "param_distributions", n_iter=10)
HalvingRandomSearchCV = variant("HalvingRandomSearchCV", "param_distributions", n_iter=10, halving=True)


def fit_batch(self: Any, X: Any, y: Any = None, classes: Any = None, **params: Any) -> Any:  # noqa: N803
    return self.fit(X, **params) if y is None else self.fit(X, y, **params)


def pytest_configure() -> None:
    if os.environ.get("HOPFLEET_BATCHES"):
        BaseEstimator.partial_fit = fit_batch
    setattr(searches, "GridSearchCV", GridSearchCV)  # noqa: B010
    setattr(searches, "RandomizedSearchCV", RandomizedSearchCV)  # noqa: B010
    importlib.import_module("sklearn.model_selection.tests.test_search")  # builds searches with halving of its own
    setattr(searches, "HalvingRandomSearchCV", HalvingRandomSearchCV)  # noqa: B010


def pytest_terminal_summary(terminalreporter: Any) -> None:
    outcomes = {
        report.nodeid.partition("::")[2]: outcome
        for outcome in ("passed", "failed", "error")
        for report in terminalreporter.stats.get(outcome, [])
    }
    Path(os.environ["HOPFLEET_OUTCOMES"]).write_text(json.dumps(outcomes), encoding="utf-8")
