"""Predictions of trained models for new rows, in the order of the rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hopfleet.data import Dataset
from hopfleet.data.columns import NoRows
from hopfleet.data.etl.labels import Outcome
from hopfleet.data.kept import Kept
from hopfleet.data.pieces import Pieces
from hopfleet.domain.choices import RowsThatFail
from hopfleet.errors import UsageError
from hopfleet.frameworks.base import Task
from hopfleet.frameworks.views import lacks_predict
from hopfleet.phrases import shown
from hopfleet.runs.evaluation import beside_rows, naming_differences, open_data, outcomes_of, recipe_of
from hopfleet.runs.failed_rows import FailedRows, check_on_error
from hopfleet.runs.guest import Guest
from hopfleet.runs.inference import candidate, job, members, output_in, pieces, run_units, space_for, validation
from hopfleet.runs.joining import joined
from hopfleet.runs.opened_run import OpenedRun, check_ensembles
from hopfleet.runs.place import Place
from hopfleet.runs.replacing import check_predictions, put_predictions
from hopfleet.runs.verify import find_data
from hopfleet.support.files import beside, create_folder, make_folder, remove_file, temporary_folder
from hopfleet.worker.inference import InferenceTask, Output, predicted, stored, write

ENDINGS = (".parquet", ".csv", ".arrow")


def check_target(to: Any) -> Path | None:
    """Return the file or folder to write; None if predictions are returned. Raise UsageError for any other target."""
    if to is None or to is iter or _is_frame(to):
        return None
    if not isinstance(to, str | os.PathLike):
        raise UsageError(f"to={shown(to)}: must be a file, a folder, pandas.DataFrame, iter, or None for a table")
    path = Path(to).expanduser()
    if path.suffix and path.suffix not in ENDINGS:
        raise UsageError(
            f"to={os.fspath(to)!r}: must end in {', '.join(ENDINGS)}, which tells the format, or be a folder, whose "
            "name has no ending"
        )
    if not path.suffix:
        check_predictions(path, f"to={os.fspath(to)!r}")
    return path


def _is_frame(to: Any) -> bool:
    """Whether predictions are wanted as a data frame of pandas."""
    return isinstance(to, type) and to.__name__ == "DataFrame" and to.__module__.partition(".")[0] == "pandas"


def check_hook(task: Task, model: Callable[[], Any]) -> None:
    """Raise UsageError unless the task, or else its model, can predict."""
    if type(task).predict is Task.predict and not hasattr(model(), "predict"):
        raise UsageError(lacks_predict(task))


def predict(
    results: OpenedRun[Any],
    weights: Mapping[str, float],
    data: Any,
    to: Any,
    task: Task,
    place: Place,
    batch_size: int,
    keep: str | Sequence[str],
    on_error: RowsThatFail,
    *,
    logits: bool = False,
) -> Any:
    """Return the predictions of a run's model, or of an ensemble, for new rows; or write them and return their number.

    By default the rows are those that validated it, each predicted by a model that has not been trained on it. Every
    row is read once, and workers share the partitions. The columns to ``keep`` stand before the predictions.
    """
    check_on_error(on_error)
    path, train, beside = check_target(to), find_data(results.folder, "train"), columns_to_keep(keep)
    unseen: list[int] = []
    if data is None:
        data, unseen = validation(results)
    else:
        results.check_shared_folds()
    name, own = next(iter(weights)), results.own_folds if unseen else ()

    def model() -> Any:
        return results[name].built(task)[0][0] if own else joined(results, weights, task, logits=logits)[0]

    check_hook(task, model)
    if results.definition.get("folds") and not unseen:
        check_ensembles(task, results.definition["folds"])
    if to is iter and not unseen:
        one, guest = joined(results, weights, task, logits=logits)
        return _iterated(task, one, guest, data, train, batch_size, beside, on_error)
    first = candidate(results, name)
    options: dict[str, Any] = {"keep": beside} if beside else {}
    options |= {"on_error": on_error} if on_error != "raise" else {}
    options |= {"unseen": results.definition["folds"]} if unseen else {}
    work = job(results, weights, data, task, logits=logits, batch_size=batch_size, **options)
    with space_for(path, work) as space:
        try:
            found = open_data(
                data, train.columns, recipe_of(train), space / "data",
                labelled=False, keep=beside, skip=on_error != "raise",
            )  # fmt: skip
        except NoRows as error:
            failed = FailedRows(error.failures, on_error)
            failed.warn(0)
            one, guest = joined(results, weights, task, logits=logits)
            return collected(failed.among(none(task, one, guest, train, beside), beside), path, to)
        failed = FailedRows.of(found, on_error)
        failed.warn(found.rows)
        outcomes = outcomes_of(recipe_of(train))
        shown = (found.of(train) if isinstance(found, Pieces) else train) if own else pieces(found)
        kept = beside_rows(shown, beside, outcomes)
        opened = found if own else kept.rows
        plain = path is not None and not path.suffix and not beside and on_error != "null"
        output = output_in(space, opened, ".parquet" if plain else ".arrow")
        working = InferenceTask(
            task, output, members(results, weights), logits=logits,
            outcomes=[outcomes_of(recipe_of(fold)) for fold in own] or [outcomes],
            folds=results.definition.get("folds", 0), unseen=unseen,
        )  # fmt: skip
        with naming_differences(opened, train.columns, labelled=False):
            run_units(
                [first],
                opened,
                space,
                folder=results.folder,
                task=working,
                definition=results.definition,
                place=place,
                batch_size=batch_size,
            )
        return _finished(output, kept, failed, path, to)


def _finished(output: Output, kept: Kept, failed: FailedRows, path: Path | None, to: Any) -> Any:
    """Put the predictions for all partitions together."""
    data = kept.rows
    rows = data.rows
    if path is not None and not path.suffix and output.ending != ".parquet":
        final = Output(output.folder, ".parquet")
        rows = sum(write(_part(output, kept, failed, part), final.file(part)) for part in range(len(data)))
        output = final
    made = (batch for part in range(len(data)) for batch in _part(output, kept, failed, part))
    if path is None:
        # The files are about to be removed: a table of their mapped pages would lose its rows.
        table = pa.Table.from_batches([pa.concat_batches([batch]) for batch in made])
        return iter(table.to_batches()) if to is iter else table.to_pandas() if _is_frame(to) else table
    if path.suffix:
        return write(made, path)
    wanted = {output.file(part) for part in range(len(data))}
    for other in set(output.folder.iterdir()) - wanted:  # of a worker that was killed while it wrote
        remove_file(other)
    put_predictions(output.folder, path, f"to={os.fspath(to)!r}")
    return rows


def _part(output: Output, kept: Kept, failed: FailedRows, part: int) -> Iterator[pa.RecordBatch]:
    """Yield the predictions for a partition, and for the rows around that failed."""
    rows = kept.rows.partition_rows
    start, last = sum(rows[:part]), part == len(rows) - 1
    stop = None if last else start + rows[part]
    return failed.among(kept.beside(part, stored(output.file(part))), kept.names, start, stop)


def _iterated(
    task: Task, model: Any, guest: Guest, data: Any, train: Dataset, batch_size: int, keep: Sequence[str],
    on_error: RowsThatFail,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    recipe, skip = recipe_of(train), on_error != "raise"
    with temporary_folder("hopfleet-") as folder:
        try:
            opened = open_data(data, train.columns, recipe, folder / "data", labelled=False, keep=keep, skip=skip)
        except NoRows as error:
            failed = FailedRows(error.failures, on_error)
            failed.warn(0)
            yield from failed.among(none(task, model, guest, train, keep), keep)
            return
        outcomes = outcomes_of(recipe)
        kept, failed = beside_rows(opened, keep, outcomes), FailedRows.of(opened, on_error)
        failed.warn(opened.rows)
        with naming_differences(kept.rows, train.columns, labelled=False):
            made = predictions(task, model, guest, kept, batch_size, outcomes)
            yield from failed.among(made, keep)


def columns_to_keep(keep: Any) -> list[str]:
    """Return the names of the columns that stand beside predictions."""
    names = [keep] if isinstance(keep, str) else keep
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"keep={shown(keep)}: must be names of columns of the rows, as in keep=['id']")
    return list(dict.fromkeys(names))


def none(task: Task, model: Any, guest: Guest, train: Dataset, keep: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the predictions for no rows: the columns of those for a row of the training data."""
    with guest.within():
        made = predicted(task, model, train.head(1), outcomes=outcomes_of(recipe_of(train)))
    columns = {**{name: pa.nulls(0) for name in keep}, **dict(zip(made.schema.names, made.columns, strict=True))}
    yield pa.RecordBatch.from_pydict({name: column.slice(0, 0) for name, column in columns.items()})


def collected(made: Iterator[pa.RecordBatch], path: Path | None, to: Any) -> Any:
    """Return predictions as ``to`` says, or write them to a file, or to one in a folder, and return their number."""
    if path is None:
        table = pa.Table.from_batches(made)
        return iter(table.to_batches()) if to is iter else table.to_pandas() if _is_frame(to) else table
    make_folder(path.parent)
    if path.suffix:
        return write(made, path)
    with beside(path) as space:
        output = Output(space / "output", ".parquet")
        create_folder(output.folder)
        rows = write(made, output.file(0))
        put_predictions(output.folder, path, f"to={os.fspath(to)!r}")
    return rows


def predictions(
    task: Task, model: Any, guest: Guest, kept: Kept, batch_size: int, outcomes: Mapping[str, Outcome]
) -> Iterator[pa.RecordBatch]:
    """Yield the predictions for all rows of a data set, partition after partition."""

    def made(part: int) -> Iterator[pa.RecordBatch]:
        for batch in kept.rows.batches(part, batch_size=batch_size):
            with guest.within():
                found = predicted(task, model, batch, outcomes=outcomes)
            yield found

    for part in range(len(kept.rows)):
        yield from kept.beside(part, made(part))
