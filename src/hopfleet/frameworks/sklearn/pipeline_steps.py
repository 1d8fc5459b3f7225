"""Pipelines in HopSearchCV: the last step is trained, and the steps before it are fitted once for each split."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from sklearn import get_config
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils.metadata_routing import process_routing

from hopfleet.errors import UsageError
from hopfleet.frameworks.sklearn.candidates import Candidate
from hopfleet.frameworks.sklearn.folds import Table

Estimator = Any
"""An estimator or a pipeline."""


def last_step(model: Estimator) -> Estimator:
    """Return the last step of a pipeline; any other estimator itself."""
    return model.steps[-1][1] if isinstance(model, Pipeline) else model


def has_steps(model: Estimator) -> bool:
    """Whether an estimator is a pipeline with steps before the last."""
    return isinstance(model, Pipeline) and len(model.steps) > 1


def divided(model: Estimator, params: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the arguments of ``fit`` for the steps of a pipeline before the last, and those for the last."""
    if not isinstance(model, Pipeline):
        return {}, params
    *others, last = [name for name, _ in model.steps]
    if get_config()["enable_metadata_routing"]:
        routed = process_routing(model, "fit", **params)
        asked = (routed.get(name, {}).get(method, {}) for name in others for method in ("fit", "fit_transform"))
        return {name: value for each in asked for name, value in each.items()}, routed[last].fit
    for name in params:
        if "__" not in name:
            raise UsageError(f"fit({name}=...): the step of the pipeline is missing; write {last}__{name}=...")
    prefix = f"{last}__"
    own = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
    return {name: value for name, value in params.items() if not name.startswith(prefix)}, own


def fitted_steps(
    estimator: Estimator,
    candidates: Sequence[Candidate],
    models: Sequence[Estimator],
    table: Table,
    trains: Sequence[Any],
    params: Mapping[str, Any],
    *,
    raises: bool,
) -> list[Sequence[Any] | str]:
    """Return the steps before each candidate, fitted to the rows of each split, or why they could not be fitted."""
    if not has_steps(estimator):
        return [[None] * len(trains)] * len(models)
    last = estimator.steps[-1][0]
    fitted: dict[Any, Sequence[Any] | str] = {}
    found = []
    for candidate, model in zip(candidates, models, strict=True):
        # Candidates that differ in the last step alone share the others.
        key = tuple((name, id(value)) for name, value in candidate.items() if name.partition("__")[0] != last)
        if key not in fitted:
            try:
                fitted[key] = [_fitted(model[:-1], table, rows, params) for rows in trains]
            except Exception:
                if raises:
                    raise
                fitted[key] = traceback.format_exc()
        found.append(fitted[key])
    return found


def _fitted(steps: Pipeline, table: Table, rows: Any, params: Mapping[str, Any]) -> Pipeline:
    """Return a copy of the steps of a pipeline that is fitted to some rows."""
    part = Table(table.x, table.y, params).take(rows)
    return clone(steps).fit(part.x, part.y, **part.fit_params)
