"""Tests of trained models: their metrics on new data, computed by workers, one partition each.

Sums over rows are exact, so metrics do not depend on the number of workers or on partitions.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from hopfleet.data import Dataset, open_dataset, partition
from hopfleet.data.etl.chunks import is_text
from hopfleet.data.etl.csv_rows import Expected
from hopfleet.data.etl.labels import Outcome
from hopfleet.data.etl.preparing import prepared
from hopfleet.data.etl.recipe import ORIGIN, RECIPE, Batch, Prepared, Recipe, load_recipe
from hopfleet.data.etl.work import TooManyFailures
from hopfleet.data.kept import Kept, packed
from hopfleet.data.manifest import FILE
from hopfleet.domain.rowsum import means
from hopfleet.errors import DataChanged, DataError, TaskError
from hopfleet.frameworks.base import Task
from hopfleet.runs.inference import candidate, job, key, members, pieces, run_units, space_for, validation
from hopfleet.runs.opened_run import OpenedRun, check_ensembles
from hopfleet.runs.place import Place
from hopfleet.runs.verify import find_data
from hopfleet.support import clock
from hopfleet.support.files import json_text, write_text
from hopfleet.worker.inference import InferenceTask

REMEDY = "rename the columns, or make them as those of the training data were made"
"""What to do about rows with other columns than the training data."""

LEAVE_OUT = "on_error='skip' leaves out such rows, and 'null' has missing predictions for them"
CORRECT = "no row is left out of a test"

ENSEMBLE = "ensemble"
"""The name under which the metrics of an ensemble are recorded."""


def measure_trials(
    results: OpenedRun[Any], data: Any, trials: Sequence[str], top: int, task: Task, place: Place
) -> dict[str, dict[str, float]]:
    """Return the metrics of the ``top`` best trials, or of the ``trials`` given, on new data, the best first."""
    names = list(trials) or [trial.id for trial in results.history.leaderboard() if trial.best is not None][:top]
    if not names:
        results.best  # noqa: B018, raises NotFound
    for name in names:
        results[name].checkpoint  # noqa: B018, raises NotFound or CheckpointError
    folds, work = results.definition.get("folds", 0), job(results, dict.fromkeys(names, 1.0), data, task)
    if folds:
        results.check_shared_folds()
        check_ensembles(task, folds)
    working = InferenceTask(task, None, logits=False, folds=folds) if folds else task
    return _measured(results, data, names, work, working, place)


def measure_ensemble(
    results: OpenedRun[Any], data: Any, weights: Mapping[str, float], logits: bool, task: Task, place: Place
) -> dict[str, float]:
    """Return the metrics of an ensemble on new data, by default on the validation rows. Every row is read once."""
    unseen: list[int] = []
    if data is None:
        data, unseen = validation(results)
    else:
        results.check_shared_folds()
    folds = results.definition.get("folds", 0)
    work = job(results, weights, data, task, logits=logits, **({"unseen": folds} if unseen else {}))
    joined = InferenceTask(task, None, members(results, weights), logits=logits, folds=folds, unseen=unseen)
    return _measured(results, data, [next(iter(weights))], work, joined, place, name=ENSEMBLE)[ENSEMBLE]


def _measured(
    results: OpenedRun[Any],
    data: Any,
    trials: Sequence[str],
    work: dict[str, Any],
    task: Task,
    place: Place,
    name: str = "",
) -> dict[str, dict[str, float]]:
    """Measure models, and record what was found in the run folder."""
    candidates = [candidate(results, trial, number) for number, trial in enumerate(trials, 1)]
    train, tests = find_data(results.folder, "train"), results.folder.tests
    writable = os.access(results.folder.path, os.W_OK)
    with space_for(tests / key(work) if writable else None, work) as space:
        opened = open_data(data, train.columns, recipe_of(train), space / "data")
        with naming_differences(opened, train.columns):
            sums = run_units(
                candidates,
                pieces(opened),
                space,
                folder=results.folder,
                task=task,
                definition=results.definition,
                place=place,
            )
        found = {name or trial: means(each) for trial, each in sums.items()}
        if writable:
            record = {"time": clock.now(), "data": work["data"], "fingerprint": opened.fingerprint}
            record |= {"rows": opened.rows, "models": work["models"], "weights": work["weights"], "metrics": found}
            write_text(tests / f"{key(work)}.json", json_text(record), durable=True)
    return found


# ---------------------------------------------------------------------------------------------------------------- data


class Again(Recipe):
    """The recipe of an earlier preparation, with its statistics."""

    arrow = True

    def __init__(self, prepared: Prepared, labelled: bool, keep: Sequence[str]) -> None:
        self.prepared = prepared
        self.labelled = labelled
        self.keep = list(keep)

    @property
    def inputs(self) -> Sequence[str] | None:
        return list(dict.fromkeys([*self._known, *self.keep]))

    @property
    def _known(self) -> dict[str, pa.DataType]:
        """The columns of training; unless they are labelled, whatever stands in the place of labels plays no part."""
        kinds = self.prepared.layout.types.items()
        return {name: kind for name, kind in kinds if self.labelled or name not in self.prepared.recipe.labels}

    @property
    def expected(self) -> Expected:
        """What is known of the rows: a text in a column of numbers fails its row, and each line has a prediction."""
        primitive = {name: kind for name, kind in self._known.items() if pa.types.is_primitive(kind)}
        # A whole number may have become a fraction, which is for the recipe to judge.
        types = {name: pa.float64() if pa.types.is_integer(kind) else kind for name, kind in primitive.items()}
        texts = frozenset(name for name, kind in self._known.items() if is_text(kind))
        return Expected(texts=texts, types=types, blanks=not self.labelled)

    def apply(self, batch: pa.Table, fitted: Mapping[str, Any]) -> Batch:
        kept = packed(batch, self.keep) if self.keep else {}
        if not self.labelled:
            batch = batch.drop_columns([name for name in self.prepared.recipe.labels if name in batch.column_names])
        made = self.prepared.apply(*self.prepared.given(batch, labelled=self.labelled))
        if ORIGIN in made and not self.labelled:
            raise DataError(
                f"the recipe makes {len(made[ORIGIN])} rows of {batch.num_rows}; rows to predict need one for each"
            )
        return {**made, **kept}


def open_data(
    data: Any,
    columns: Iterable[str],
    recipe: Callable[[], Prepared] | None,
    folder: Path,
    *,
    labelled: bool = True,
    keep: Sequence[str] = (),
    skip: bool = False,
) -> Dataset:
    """Return data as a data set with the columns of the training data; unless ``labelled``, without their labels.

    Raw files pass through the recipe that prepared the training data, with the columns to ``keep`` packed beside what
    it makes; other sources are partitioned as they are. Both keep the order of their rows, and are written to
    ``folder``. With ``skip``, rows that fail are left out, see ``FailedRows``.
    """
    found = _opened(data, recipe, folder, labelled, keep, skip)
    wanted = list(columns)
    missing = [name for name in wanted if name not in found.columns]
    if missing and (labelled or missing == wanted):
        where = found.url if isinstance(data, str | os.PathLike | Dataset) else "data"
        lacks = "lacks the columns" if labelled else "has none of the columns"
        raise DataError(
            f"{where}: {lacks} {', '.join(missing)} of the training data; it has {', '.join(found.columns)}; "
            f"{REMEDY}{'' if labelled else '; labels may be absent'}"
        )
    return found


@contextlib.contextmanager
def naming_differences(data: Dataset, columns: Mapping[str, object], *, labelled: bool = True) -> Iterator[None]:
    """Let an error of the task name the columns whose types are not those of the training data.

    Other types are not refused: a model may take rows of several shapes. Unless rows are ``labelled``, columns may be
    missing, and only those that the error is about are named.
    """
    try:
        yield
    except TaskError as error:
        found = {name: str(kind) for name, kind in data.columns.items()}
        other = [
            f"{name} is {found[name]}, not {kind}" if name in found else f"{name} is missing"
            for name, kind in columns.items()
            if found.get(name) != str(kind) and (labelled or name in found or f"KeyError: {name!r}" in str(error))
        ]
        if not other:
            raise
        raise TaskError(f"the rows differ from those of training: {'; '.join(other)}; {REMEDY}\n\n{error}") from error


def recipe_of(train: Dataset) -> Callable[[], Prepared] | None:
    """Return a function that loads the recipe of training data; None if it has no recipe."""
    return partial(load_recipe, train) if (Path(train.url) / RECIPE).is_file() else None


def outcomes_of(recipe: Callable[[], Prepared] | None) -> Mapping[str, Outcome]:
    """Return what the labels that a recipe prepared stand for."""
    return {} if recipe is None else recipe().outcomes


def beside_rows(data: Dataset, keep: Sequence[str], outcomes: Mapping[str, Outcome]) -> Kept:
    """Return the columns of a data set to keep, with labels in the terms of the raw rows, as predictions are."""
    return Kept(data, keep, {name: outcome.raw for name, outcome in outcomes.items()})


def _opened(
    data: Any, recipe: Callable[[], Prepared] | None, folder: Path, labelled: bool, keep: Sequence[str], skip: bool
) -> Dataset:
    if isinstance(data, Dataset):
        return data
    named = isinstance(data, str | os.PathLike)
    if named and ((Path(data) / FILE).is_file() or ("://" in os.fspath(data) and not Path(data).suffix)):
        return open_dataset(data)
    if recipe is None:
        return partition(data, folder, partitions=1, overwrite=True)
    again, made = Again(recipe(), labelled, keep), None
    how: Any = {"partitions": 1, "quiet": True, "expected": again.expected}
    how |= {"on_error": "keep", "error_limit": sys.maxsize} if skip else {}
    try:
        with contextlib.suppress(DataChanged):
            made = prepared(data, folder, again, **how)
        opened: Dataset = made or prepared(data, folder, again, **how, overwrite=True)
    except TooManyFailures as error:
        raise DataError(error.explained(0, CORRECT if labelled else LEAVE_OUT)) from None
    return opened
