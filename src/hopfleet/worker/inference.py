"""Trained models at work: units that write the predictions for a partition, or measure an ensemble on it.

To a worker, this is the evaluation of a version by the session of another framework. A unit of predictions leaves a
file for its partition, which is complete or absent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from hopfleet.data.etl.labels import Outcome
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum, add
from hopfleet.domain.secrets import references, revealed
from hopfleet.domain.trial import Config
from hopfleet.errors import DataError, HopfleetError, TaskError
from hopfleet.frameworks.base import Batch, Batches, EngineCache, Framework, Session, Task
from hopfleet.frameworks.folds import checkpoints
from hopfleet.frameworks.wrapped import WrappedFramework, WrappedTask
from hopfleet.support.files import write_atomically
from hopfleet.support.user_code import describe_with_place
from hopfleet.worker.secrets import read

COLUMN = "prediction"
"""The column of predictions that are one array."""

SCORES = "scores"
"""What the name of a column with the scores of classes ends in."""

GROUP_ROWS = 1 << 16
"""Rows of a row group in a Parquet file."""


@dataclass(frozen=True)
class EnsembleMember:
    """A model of an ensemble: its configuration, the file of its version, and its weight."""

    config: Config
    checkpoint: Path
    weight: float


@dataclass(frozen=True)
class Output:
    """Files with predictions, one for each partition."""

    folder: Path
    ending: str

    def file(self, partition: int) -> Path:
        return self.folder / f"part-{partition:05d}{self.ending}"


class InferenceTask(WrappedTask):
    """A task whose units write predictions to ``output``, in the terms of ``outcomes``; without one, they measure.

    The model is that of the unit's version, or that of several ``members``. Each of them may be several, one for each
    of ``folds``. With ``unseen``, the fold of each partition, only those count that have not been trained on its rows.
    ``outcomes`` may be those of each fold.
    """

    def __init__(
        self,
        task: Task,
        output: Output | None,
        members: Sequence[EnsembleMember] = (),
        *,
        logits: bool,
        outcomes: Sequence[Mapping[str, Outcome]] = ({},),
        folds: int = 0,
        unseen: Sequence[int] = (),
    ) -> None:
        super().__init__(task)
        self.folds = folds
        self.unseen = unseen
        self.output = output
        self.outcomes = [dict(each) for each in outcomes]
        self.members = members
        self.logits = logits

    @property
    def framework(self) -> Framework:
        return InferenceFramework(self)


class InferenceFramework(WrappedFramework):
    """The adapter of an inference task."""

    def __init__(self, task: InferenceTask) -> None:
        super().__init__(task.inner.framework)
        self._task = task

    def open(
        self, config: Config, *, seed: int, placement: Placement, threads: int, cache: EngineCache | None = None
    ) -> Session:
        return InferenceSession(self._task, self.inner, config)

    def model(self, config: Config, checkpoint: Path) -> NoReturn:
        raise NotImplementedError("units that work with trained models take models()")

    def models(self, config: Config, checkpoint: Path) -> list[Any]:
        """Return the model for all rows, or that for the rows of each fold."""
        task = self._task
        members = [(_whole(each.config), each.checkpoint, each.weight) for each in task.members]
        found: list[list[Any]] = []
        for own, path, _ in members if len(members) > 1 else [(config, checkpoint, 1.0)]:
            with checkpoints(path, task.folds) as files:
                found.append([self.inner.model(own, file) for file in files])
        weights = [weight for _, _, weight in members] if len(members) > 1 else [1.0]
        if task.unseen:
            return [self._together(models, weights) for models in zip(*found, strict=True)]
        shares = [weight / len(models) for weight, models in zip(weights, found, strict=True) for _ in models]
        return [self._together([model for models in found for model in models], shares)]

    def _together(self, models: Sequence[Any], shares: Sequence[float]) -> Any:
        return models[0] if len(models) == 1 else self.inner.ensemble(models, shares, logits=self._task.logits)

    def spare_memory(self, placement: Placement) -> int:
        return 0  # models predict on the CPU


def _whole(config: Config) -> Config:
    """Return a configuration with the values of its secrets."""
    found: Config = revealed(config, {reference: read(reference) for reference in references(config)})
    return found


class InferenceSession(Session):
    """A trained model over one partition at a time."""

    builds_on_load = True

    def __init__(self, task: InferenceTask, framework: Framework, config: Config) -> None:
        self.config = config
        self._task = task
        self._framework = framework
        self._partition = 0
        self._dtypes: Mapping[str, str] = {}
        self._models: list[Any] = []

    @property
    def size(self) -> int:
        return 0

    def visit(self, partition: int) -> None:
        self._partition = partition

    def prepare(self, batch: Batch, dtypes: Mapping[str, str]) -> Batch:
        self._dtypes = dtypes
        return batch

    def load(self, path: Path) -> None:
        self._models = InferenceFramework(self._task).models(self.config, path)

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        output, task, unseen = self._task.output, self._task.inner, self._task.unseen
        fold = unseen[self._partition] if unseen else 0
        model = self._models[fold]
        if output is not None:
            outcomes = self._task.outcomes[fold if len(self._task.outcomes) > 1 else 0]
            made = (predicted(task, model, batch, transformed=True, outcomes=outcomes) for batch in batches)
            write(made, output.file(self._partition))
            return {}
        found: list[dict[str, RowSum]] = []
        measure = None
        for batch in batches:
            measure = measure or self._framework.measuring(self.config, self._dtypes)
            found.append(measure(model, batch))
        return add(found)

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        raise NotImplementedError("a trained model is not trained here")

    def save(self, path: Path) -> None:
        raise NotImplementedError("a trained model is not saved again")

    def unused(self) -> tuple[str, ...]:
        return ()


def predicted(
    task: Task,
    model: Any,
    batch: Batch,
    *,
    transformed: bool = False,
    outcomes: Mapping[str, Outcome] = MappingProxyType({}),
) -> pa.RecordBatch:
    """Return the predictions for one batch, to which the task's transform is applied unless it was.

    Predictions of labels are given in the terms of ``outcomes``, see ``_in_terms``.
    """
    rows = len(next(iter(batch.values())))
    given = batch if transformed or task.transform is None else task.transform(batch, None)
    try:
        made = task.predict(model, given)
    except HopfleetError:
        raise
    except Exception as error:
        raise TaskError(f"predict() failed: {describe_with_place(error)}") from error
    named = made if isinstance(made, Mapping) else {COLUMN: made}
    columns: dict[str, Any] = {}
    for name, value in named.items():
        array = _rows(str(name), value, rows)
        outcome = outcomes.get(str(name))
        if outcome is None and len(outcomes) == 1 and not isinstance(made, Mapping):
            (outcome,) = outcomes.values()
        columns |= _in_terms(str(name), array, outcome)
    return pa.RecordBatch.from_pydict(columns)


def _rows(name: str, value: Any, rows: int) -> Any:
    """Return a column of predictions as an array with a row for each, or as a list."""
    detached = value.detach().cpu().numpy() if hasattr(value, "detach") else value
    array = detached if isinstance(detached, list) else np.asarray(detached)
    if np.ndim(array) == 0 or len(array) != rows:
        raise TaskError(
            f"predict() returned {np.shape(array)} as {name!r} for {rows} rows; return a value for each row"
        )
    return array


def _in_terms(name: str, array: Any, outcome: Outcome | None) -> dict[str, Any]:
    """Return a column of predictions; if it is that of a label, in the terms of its raw column.

    Scores of classes become the name of the best one, and are kept in a column of their own, as they were returned.
    """
    if outcome is None or isinstance(array, list):
        return {name: _column(array)}
    try:
        if outcome.scored(array):
            if not np.isfinite(array).all():
                raise TaskError(f"predict() returned scores of classes that are not finite as {name!r}")
            return {name: outcome.restored(array.argmax(axis=1)), f"{name}_{SCORES}": _column(array)}
        restored = outcome.restored(array)
    except DataError as error:
        raise TaskError(f"{name!r}: {error}") from None
    return {name: _column(array) if restored is None else restored}


def _column(array: Any) -> Any:
    if isinstance(array, list) or array.ndim == 1:
        return pa.array(array)
    flat = np.ascontiguousarray(array).reshape(len(array), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])


def write(batches: Iterable[pa.RecordBatch], path: Path) -> int:
    """Write predictions to a file, which is complete or absent; return the number of rows."""
    from pyarrow import csv, parquet

    def opened(place: str, schema: pa.Schema) -> Any:
        if path.suffix != ".parquet":
            return (csv.CSVWriter if path.suffix == ".csv" else pa.ipc.new_file)(place, schema)
        # Dictionaries of numbers take time and save no room.
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        return parquet.ParquetWriter(place, schema, use_dictionary=texts or False)

    written = 0

    def fill(beside: Path) -> None:
        nonlocal written
        tables = _grouped(map(_flat, batches) if path.suffix == ".csv" else batches)
        first = next(tables)
        with opened(str(beside), first.schema) as writer:
            for table in itertools.chain([first], tables):
                if table.schema != first.schema:
                    raise TaskError(
                        f"predict() returned {_types(table)} for some rows and {_types(first)} for others; return the "
                        "same columns and types for each batch"
                    )
                writer.write_table(table)
                written += table.num_rows

    write_atomically(path, fill, durable=False)
    return written


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches as tables that are large enough for a row group."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        if group and (batch.schema != group[0].schema or sum(one.num_rows for one in group) >= GROUP_ROWS):
            yield pa.Table.from_batches(group)
            group = []
        group.append(batch)
    yield pa.Table.from_batches(group)


def _types(table: pa.Table) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in table.schema)


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


def stored(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the predictions in an Arrow file."""
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
