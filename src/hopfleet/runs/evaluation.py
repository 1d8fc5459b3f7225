"""Tests of trained models: their metrics on new data, computed by workers, one partition each.

Sums over rows are exact, so metrics do not depend on the number of workers or on partitions.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from hopfleet.data import Dataset, open_dataset, partition
from hopfleet.data.etl.labels import Outcome
from hopfleet.data.etl.preparation import prepare
from hopfleet.data.etl.recipe import RECIPE, Batch, Prepared, Recipe, load_recipe
from hopfleet.data.kept import packed
from hopfleet.data.manifest import FILE
from hopfleet.domain.rowsum import means
from hopfleet.errors import DataChanged, DataError, TaskError
from hopfleet.frameworks.base import Task
from hopfleet.runs.inference import candidate, job, key, members, pieces, run_units, space_for
from hopfleet.runs.opened_run import OpenedRun
from hopfleet.runs.place import Place
from hopfleet.runs.verify import find_data
from hopfleet.support import clock
from hopfleet.support.files import json_text, write_text
from hopfleet.worker.inference import InferenceTask

REMEDY = "rename the columns, or make them as those of the training data were made"
"""What to do about rows with other columns than the training data."""

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
    return _measured(results, data, names, job(results, dict.fromkeys(names, 1.0), data, task), task, place)


def measure_ensemble(
    results: OpenedRun[Any], data: Any, weights: Mapping[str, float], logits: bool, task: Task, place: Place
) -> dict[str, float]:
    """Return the metrics of an ensemble on new data. Every row is read once."""
    work = job(results, weights, data, task, logits=logits)
    joined = InferenceTask(task, None, members(results, weights), logits=logits)
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
        return list(dict.fromkeys([*self.prepared.layout.types, *self.keep]))

    @property
    def texts(self) -> Sequence[str]:
        kinds = self.prepared.layout.types.items()
        return [name for name, kind in kinds if pa.types.is_string(kind) or pa.types.is_large_string(kind)]

    def apply(self, batch: pa.Table, fitted: Mapping[str, Any]) -> Batch:
        kept = packed(batch, self.keep) if self.keep else {}
        if not self.labelled:  # whether they are there, are missing or new, plays no part
            batch = batch.drop_columns([name for name in self.prepared.recipe.labels if name in batch.column_names])
        return {**self.prepared.apply(*self.prepared.given(batch, labelled=self.labelled)), **kept}


def open_data(
    data: Any,
    columns: Iterable[str],
    recipe: Callable[[], Prepared] | None,
    folder: Path,
    *,
    labelled: bool = True,
    keep: Sequence[str] = (),
) -> Dataset:
    """Return data as a data set with the columns of the training data; unless ``labelled``, without their labels.

    Raw files pass through the recipe that prepared the training data, with the columns to ``keep`` packed beside what
    it makes; other sources are partitioned as they are. Both keep the order of their rows, and are written to
    ``folder``.
    """
    found = _opened(data, recipe, folder, labelled, keep)
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


def _opened(
    data: Any, recipe: Callable[[], Prepared] | None, folder: Path, labelled: bool, keep: Sequence[str]
) -> Dataset:
    if isinstance(data, Dataset):
        return data
    named = isinstance(data, str | os.PathLike)
    if named and ((Path(data) / FILE).is_file() or ("://" in os.fspath(data) and not Path(data).suffix)):
        return open_dataset(data)
    if recipe is None:
        return partition(data, folder, partitions=1, overwrite=True)
    again, made = Again(recipe(), labelled, keep), None
    with contextlib.suppress(DataChanged):
        made = prepare(data, folder, again, partitions=1, quiet=True)
    opened: Dataset = made or prepare(data, folder, again, partitions=1, quiet=True, overwrite=True)
    return opened
