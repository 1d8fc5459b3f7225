"""The candidates of HopSearchCV: what a user gave as a grid or as distributions, checked and listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.base import clone
from sklearn.model_selection import ParameterGrid, ParameterSampler

from hopfleet.domain.space.dimension import Dimension
from hopfleet.errors import UsageError
from hopfleet.phrases import did_you_mean, listed
from hopfleet.search.base import at_least_one

Candidate = Mapping[str, Any]
"""Parameters of an estimator by name."""

DRAWN = 10
"""Candidates that are drawn from ``param_distributions`` without ``n_iter``, as RandomizedSearchCV has it."""


def listed_candidates(given: Mapping[str, Any], n_iter: int | None, seed: Any) -> list[Candidate]:
    """Return all candidates of a grid, or ``n_iter`` of some distributions, whichever of the arguments is given."""
    grids = {name: value for name, value in given.items() if value is not None}
    if len(grids) != 1:
        raise UsageError(
            f"{' and '.join(grids) or 'params'}: one of params, param_grid and param_distributions must be given, got "
            f"{len(grids)}; pass e.g. params={{'alpha': [1e-4, 1e-2]}}"
        )
    ((argument, grid),) = grids.items()
    if argument == "param_distributions" and n_iter is None:
        n_iter = DRAWN
    _check(argument, grid, drawn=n_iter is not None)
    if n_iter is None:
        return list(ParameterGrid(grid))
    return list(ParameterSampler(grid, at_least_one("n_iter", n_iter), random_state=seed))


def with_parameters(estimator: Any, candidate: Candidate) -> Any:
    """Return a copy of an estimator with the parameters of a candidate. Raise UsageError for one that it lacks."""
    try:
        return clone(estimator).set_params(**clone(candidate, safe=False))
    except ValueError:
        known = estimator.get_params()
        name = next((name for name in candidate if name not in known), None)
        if name is None:
            raise
        raise UsageError(
            f"params: {name!r} is not a parameter of {type(estimator).__name__}: "
            f"{did_you_mean(name, known)}known are {listed(name, known)}"
        ) from None


def _check(argument: str, grid: Any, *, drawn: bool) -> None:
    # scikit-learn reports what is neither a grid nor a list of grids.
    grids = [grid] if isinstance(grid, Mapping) else grid if isinstance(grid, list | tuple) else []
    for name, values in (item for each in grids if isinstance(each, Mapping) for item in each.items()):
        if isinstance(values, Dimension):
            raise UsageError(
                f"{argument}: {name!r} is {values!r}, a dimension of hop.Experiment; give a list of values or, with "
                "n_iter, a distribution such as scipy.stats.loguniform(1e-4, 1e-1)"
            )
        if not drawn and hasattr(values, "rvs"):
            raise UsageError(f"{argument}: {name!r} is a distribution; set n_iter, the number of candidates to draw")
