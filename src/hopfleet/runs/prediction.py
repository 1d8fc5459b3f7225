"""Predictions of a trained model for new rows, in the order of the rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data import Dataset
from hopfleet.errors import HopfleetError, TaskError, UsageError
from hopfleet.frameworks.base import Batch, Task
from hopfleet.runs.evaluation import opened_data, recipe_of
from hopfleet.runs.verify import find_data
from hopfleet.store.folder import RunFolder
from hopfleet.support.files import write_atomically
from hopfleet.support.user_code import describe_with_place

COLUMN = "prediction"
"""The column of predictions that are one array."""

ENDINGS = (".parquet", ".csv", ".arrow")


def check_target(to: str | os.PathLike[str] | None) -> Path | None:
    """Return the file to write, or None. Raise UsageError for a name whose ending tells no format."""
    if to is None:
        return None
    path = Path(to).expanduser()
    if path.suffix not in ENDINGS:
        raise UsageError(f"to={os.fspath(to)!r}: must end in {', '.join(ENDINGS)}, which tells the format")
    return path


def predict(
    task: Task,
    model: Callable[[], Any],
    data: Any,
    folder: RunFolder,
    *,
    to: str | os.PathLike[str] | None,
    batch_size: int,
) -> Any:
    """Return the predictions of a run's model for new rows as a table, or write them and return their number."""
    path, train = check_target(to), find_data(folder, "train")
    found = model()
    with opened_data(data, train.columns, recipe_of(train), labelled=False) as opened:
        return collected(predictions(task, found, opened, batch_size), path)


def collected(made: Iterator[pa.RecordBatch], path: Path | None) -> Any:
    """Return predictions as a table, or write them to a file and return their number."""
    return pa.Table.from_batches(made) if path is None else write(made, path)


def predictions(task: Task, model: Any, data: Dataset, batch_size: int) -> Iterator[pa.RecordBatch]:
    """Yield the predictions for all rows of a data set, partition after partition."""
    for part in range(len(data)):
        for batch in data.batches(part, batch_size=batch_size):
            yield predicted(task, model, batch)


def predicted(task: Task, model: Any, batch: Batch) -> pa.RecordBatch:
    """Return the predictions for one batch."""
    rows = len(next(iter(batch.values())))
    given = batch if task.transform is None else task.transform(batch, None)
    try:
        made = task.predict(model, given)
    except HopfleetError:
        raise
    except Exception as error:
        raise TaskError(f"predict() failed: {describe_with_place(error)}") from error
    named = made if isinstance(made, Mapping) else {COLUMN: made}
    return pa.RecordBatch.from_pydict({str(name): _column(name, value, rows) for name, value in named.items()})


def _column(name: str, value: Any, rows: int) -> Any:
    detached = value.detach().cpu().numpy() if hasattr(value, "detach") else value
    array = detached if isinstance(detached, list) else np.asarray(detached)
    if np.ndim(array) == 0 or len(array) != rows:
        raise TaskError(
            f"predict() returned {np.shape(array)} as {name!r} for {rows} rows; return a value for each row"
        )
    if isinstance(array, list):
        return pa.array(array)
    if array.ndim == 1:
        return pa.array(array)
    flat = np.ascontiguousarray(array).reshape(rows, -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])


def write(batches: Iterator[pa.RecordBatch], path: Path) -> int:
    """Write predictions to a file, which is complete or absent; return the number of rows."""
    from pyarrow import csv, parquet

    written = 0

    def fill(beside: Path) -> None:
        nonlocal written
        first = next(batches)
        if path.suffix == ".csv":
            first = _flat(first)
            opened: Any = csv.CSVWriter(str(beside), first.schema)
        elif path.suffix == ".parquet":
            opened = parquet.ParquetWriter(str(beside), first.schema)
        else:
            opened = pa.ipc.new_file(str(beside), first.schema)
        with opened as writer:
            while True:
                writer.write_batch(first)
                written += first.num_rows
                following = next(batches, None)
                if following is None:
                    return
                first = _flat(following) if path.suffix == ".csv" else following

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, fill, durable=False)
    return written


def _flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch in which each column of lists is one column per item, as CSV needs."""
    columns: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not pa.types.is_fixed_size_list(column.type):
            columns[name] = column
            continue
        width = column.type.list_size
        items = np.asarray(column.flatten()).reshape(-1, width)
        columns |= {f"{name}_{number}": pa.array(items[:, number]) for number in range(width)}
    return pa.RecordBatch.from_pydict(columns)
