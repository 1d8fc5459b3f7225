"""The calls that prepare data: what they are given is checked before any work starts."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Mapping
from typing import Any, Literal, get_args, overload

from hopfleet.data.dataset import Dataset
from hopfleet.data.etl.blocks import BLOCK_BYTES
from hopfleet.data.etl.csv_rows import Expected
from hopfleet.data.etl.folds import check_folds
from hopfleet.data.etl.images import Images
from hopfleet.data.etl.opening import Opened, as_recipe
from hopfleet.data.etl.pool import POOLS, Pool, sensible_workers
from hopfleet.data.etl.preparation import Preparation
from hopfleet.data.etl.progress import ProgressLine
from hopfleet.data.etl.recipe import (
    fingerprint,
    has_statistics,
    stored_recipe,
)
from hopfleet.data.etl.splitting import Split, as_split, training
from hopfleet.data.etl.target import find_existing, is_touched, keep_same, open_prepared, put_in_place
from hopfleet.data.etl.work import TooManyFailures
from hopfleet.data.etl.workspace import workspace_for
from hopfleet.data.folders import open_folder
from hopfleet.domain import bounds
from hopfleet.domain.choices import Auto
from hopfleet.domain.signatures import checked
from hopfleet.errors import DataError, UsageError
from hopfleet.phrases import did_you_mean, shown
from hopfleet.safe_text import masked_parts

OnError = Literal["raise", "skip", "keep"]
Backend = Literal["local", "inline", "ray"]
ON_ERROR, BACKENDS = get_args(OnError), get_args(Backend)


@overload
def prepare(
    source: Any,
    folder: str | os.PathLike[str],
    recipe: Any = None,
    *,
    partitions: int = 8,
    seed: int = 0,
    workers: int | Auto = "auto",
    backend: Backend = "local",
    split: None = None,
    folds: int = 0,
    on_error: OnError = "raise",
    error_limit: int = 1000,
    overwrite: bool = False,
    quiet: bool = False,
) -> Dataset: ...
@overload
def prepare(
    source: Any,
    folder: str | os.PathLike[str],
    recipe: Any = None,
    *,
    partitions: int = 8,
    seed: int = 0,
    workers: int | Auto = "auto",
    backend: Backend = "local",
    split: Mapping[str, float] | Split,
    folds: int = 0,
    on_error: OnError = "raise",
    error_limit: int = 1000,
    overwrite: bool = False,
    quiet: bool = False,
) -> dict[str, Dataset]: ...
@checked
def prepare(
    source: Any,
    folder: str | os.PathLike[str],
    recipe: Any = None,
    *,
    partitions: int = 8,
    seed: int = 0,
    workers: int | str = "auto",
    backend: str = "local",
    split: Mapping[str, float] | Split | None = None,
    folds: int = 0,
    on_error: str = "raise",
    error_limit: int = 1000,
    overwrite: bool = False,
    quiet: bool = False,
) -> Any:
    """Prepare raw data for training: read ``source``, apply ``recipe``, and write a data set to ``folder``.

    ``source`` is the path, glob or fsspec URL of CSV, TSV, JSON Lines, Parquet, Arrow or text files, WebDataset tars, a
    folder of images or of a saved Hugging Face data set; ``hop.Files`` or ``hop.Query``; a data set; or a table in
    memory. ``recipe`` is a function of a row, a function whose parameter is called ``batch``, or a ``hop.Recipe`` such
    as ``hop.Tabular``. The recipe and its statistics travel with the data set: see ``hop.load_recipe``.

    With ``split``, such as ``{"train": 0.8, "valid": 0.1, "test": 0.1}`` or ``hop.Split(...)``, return a dict of data
    sets, in folders of these names. Statistics are those of the first split alone, and a warning counts the rows that
    occur in several splits. With ``folds``, the training rows are also prepared for each fold of
    ``Experiment(valid="kfold(5)")``, with the statistics of the rows of the other folds alone.

    ``workers`` threads or processes share the work, or, with ``backend="ray"``, that many tasks on the nodes of a Ray
    cluster; the data set does not depend on their number, and "inline" is for a single thread. A row that fails raises
    an error that names file and line; with ``on_error="skip"`` it is left out, and with "keep" also written to
    failed.jsonl with its file, line and traceback, up to ``error_limit`` rows. A call that is killed goes on where it
    was when it is made again. If ``folder`` holds the result of the same call, it is returned at once, or when it was
    made again if files were touched since; if it holds any other, DataChanged says how they differ, and
    ``overwrite=True`` replaces it.
    """
    how: dict[str, Any] = {"partitions": partitions, "seed": seed, "workers": workers, "backend": backend}
    how |= {
        "split": split,
        "folds": folds,
        "on_error": on_error,
        "error_limit": error_limit,
        "overwrite": overwrite,
        "quiet": quiet,
    }
    try:
        return prepared(source, folder, recipe, **how)
    except TooManyFailures as error:
        limit = 0 if on_error == "raise" else error_limit
        raise DataError(error.explained(limit)) from None


def prepared(
    source: Any,
    folder: str | os.PathLike[str],
    recipe: Any,
    *,
    partitions: int = 8,
    seed: int = 0,
    workers: int | str = "auto",
    backend: str = "local",
    split: Mapping[str, float] | Split | None = None,
    folds: int = 0,
    on_error: str = "raise",
    error_limit: int = 1000,
    overwrite: bool = False,
    quiet: bool = False,
    expected: Expected | None = None,
) -> Any:
    """Do what ``prepare`` does; ``expected`` is what is known of the rows. Raise TooManyFailures for rows that fail."""
    if on_error not in ON_ERROR:
        raise DataError(
            f"on_error={on_error!r}: unknown; {did_you_mean(on_error, ON_ERROR)}there are {', '.join(ON_ERROR)}"
        )
    if not 1 <= partitions <= bounds.MOST:
        raise DataError(
            f"partitions={shown(partitions)}: must be an integer of at least 1, and at most {bounds.MOST:,}"
        )
    if error_limit < 0:
        raise DataError(f"error_limit={error_limit!r}: must be a number of rows, at least 0")
    if backend not in BACKENDS:
        near = did_you_mean(backend, BACKENDS)
        raise DataError(f"backend={backend!r}: unknown; {near}there are {', '.join(BACKENDS)}")
    folds = check_folds(folds, partitions, backend)
    opened, divide, target = Opened(source), as_split(split), open_folder(folder)
    if recipe is None and opened.found and opened.found[0].format == "images":
        recipe = Images()
    made = as_recipe(recipe)
    if opened.dataset is not None:
        _check_prepared(opened.dataset, recipe, divide)
    job = {
        "version": 1,
        "source": masked_parts(opened.identity),
        "recipe": fingerprint(made),
        "partitions": operator.index(partitions),
        "seed": operator.index(seed),
        "split": None if divide is None else divide.describe(),
        # Where "train" is not the first split, statistics were those of another one before.
        **({"fitted": "train"} if divide is not None and training(list(divide.fractions)) else {}),
        **({"folds": folds} if folds else {}),
        "on_error": on_error,
    }
    touched = not overwrite and is_touched(target, job)
    if not touched and (existing := find_existing(target, job, overwrite)) is not None:
        return existing
    count = 1 if backend == "inline" else sensible_workers(workers, opened.size)
    with (
        workspace_for(target, {**job, "block": BLOCK_BYTES, "work": 2}) as space,
        ProgressLine(quiet) as progress,
        contextlib.ExitStack() as stack,
    ):
        asked = None if workers == "auto" else count
        pool: Pool = POOLS[backend](asked, target, space.path) if backend in POOLS else Pool(count)
        opened.found = pool.shared(opened.found)
        stack.enter_context(pool)
        limit = 0 if on_error == "raise" else error_limit
        memory = pool.memory(opened.size) if made.threads else None
        known = expected or Expected(texts=frozenset(made.texts))
        built = Preparation(space, pool, progress, made, divide, job, limit, memory, known, folds).run(opened)
        if touched:
            keep_same(built, target)
        else:
            put_in_place(built, target, overwrite)
    return open_prepared(target)


def _check_prepared(data: Dataset, recipe: Any, divide: Split | None) -> None:
    """Raise DataError for what cannot be done to the rows of a data set."""
    if recipe is not None:
        raise DataError(f"recipe={shown(recipe)}: {data.url} is a data set, prepared already; give raw files or tables")
    if divide is not None and has_statistics(stored_recipe(data)):
        raise DataError(
            f"{data.url}: was prepared with statistics of all its rows, which would leak from each split into the "
            "others; split raw rows: hop.prepare(source, folder, recipe, split=...)"
        )


@checked
def split(
    source: Any,
    folder: str | os.PathLike[str] | None = None,
    fractions: Mapping[str, float] | None = None,
    *,
    stratify: str = "",
    group: str = "",
    time: str = "",
    column: str = "",
    time_format: str = "",
    partitions: int = 8,
    seed: int = 0,
    overwrite: bool = False,
    quiet: bool = False,
) -> dict[str, Dataset]:
    """Divide a data set, or any source of ``hop.prepare``, into data sets in folders named after ``fractions``.

    By default, rows are dealt at random. The values of the column ``stratify`` get the same shares in every split; rows
    with equal values of ``group`` stay together; by ``time``, earlier rows come into earlier splits, see ``hop.Split``;
    and ``column`` holds the names of the splits itself. Rows that occur in several splits are counted in a warning.
    """
    usage = "e.g. data = hop.split(source, 'data', {'train': 0.8, 'valid': 0.2}), then train=data['train']"
    if not isinstance(folder, str | os.PathLike):
        raise UsageError(f"folder={shown(folder)}: must be the folder for the data sets of all splits, {usage}")
    if not fractions and not column:
        raise UsageError(f"fractions={shown(fractions)}: must be the share of the rows for each split, {usage}")
    divide = Split(fractions or {}, stratify, group, time, column, time_format)
    options: dict[str, Any] = {"partitions": partitions, "seed": seed, "overwrite": overwrite, "quiet": quiet}
    made: dict[str, Dataset] = prepare(source, folder, split=divide, **options)
    return made
