"""Recipes: how raw rows become the rows of a data set. A recipe travels with the data set that it made.

A recipe that needs statistics has a ``fit``; its statistics are those of the training rows alone. They are stored as
JSON and arrays, and the recipe's code as text to read and as a pickle to run.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pyarrow as pa

from hopfleet.data.convert import row_columns
from hopfleet.data.dataset import Dataset
from hopfleet.data.etl.chunks import ColumnTypes
from hopfleet.data.etl.labels import Outcome
from hopfleet.data.etl.statistics import from_json, to_json
from hopfleet.data.folders import RemoteFolder, open_folder
from hopfleet.errors import DataError, describe
from hopfleet.support.code_digests import digests
from hopfleet.support.files import (
    check_private,
    copy_file,
    digest,
    json_text,
    read_json,
    write_atomically,
    write_bytes,
    write_text,
)

RECIPE, ARRAYS, PICKLE = "recipe.json", "recipe.safetensors", "recipe.pickle"
"""The files of a recipe in the folder of a data set."""

Batch = Mapping[str, Any]

SPLIT = "hopfleet.split"
"""The column with the name of each row's split, for recipes that ask for it."""


ORIGIN = "hopfleet.origin"
"""A column with the place in its batch of the row that each row was made of, where there is not one for each."""


class WrongColumns(DataError):
    """Raw rows lack columns that a recipe needs: no row is at fault, so none can be left out."""


class Recipe:
    """How raw rows become the rows of a data set. Derive from it and override ``apply`` and, for statistics, ``fit``.

    A batch maps the names of columns to numpy arrays, or to lists for text, bytes and lists. A missing number is NaN,
    any other missing value None.
    """

    #: Whether batches are Arrow tables instead: fast for text, and a missing value is a null.
    arrow: ClassVar[bool] = False

    #: Whether Arrow or numpy do the work, which let other threads run. Then threads share it, otherwise processes.
    threads: bool = False

    #: Whether tables have a column ``SPLIT``: the split of each row, "test" for new rows, none if there are no splits.
    by_split: ClassVar[bool] = False

    #: Columns that only training needs; raw data to predict may lack them.
    labels: Sequence[str] = ()

    @property
    def inputs(self) -> Sequence[str] | None:
        """The columns of raw rows that the recipe needs; by default all. Others are not read where that saves time."""
        return None

    @property
    def texts(self) -> Sequence[str]:
        """Columns of CSV files that are text even if they look like numbers."""
        return ()

    def fit(self, batch: Any) -> Mapping[str, Any]:
        """Return statistics of one batch of training rows, which are merged with those of all others."""
        return {}

    def apply(self, batch: Any, fitted: Mapping[str, Any]) -> Batch:
        """Return the columns to store for a batch of raw rows; ``fitted`` holds the merged statistics."""
        raise NotImplementedError(f"{type(self).__name__} must implement apply(batch, fitted)")

    def outcomes(self, fitted: Mapping[str, Any]) -> Mapping[str, Outcome]:
        """Return what the prepared labels stand for, by which predictions are given back in the terms of raw rows."""
        return {}

    @property
    def fits(self) -> bool:
        """Whether the recipe needs statistics."""
        return type(self).fit is not Recipe.fit


class AsStored(Recipe):
    """The recipe that changes nothing."""

    arrow = threads = True

    def apply(self, batch: Any, fitted: Mapping[str, Any]) -> Batch:
        return {name: batch.column(name) for name in batch.column_names}


class RowFunction(Recipe):
    """A function of one row: a dict of plain values in, a row out, as ``hop.partition`` takes rows.

    A list of dicts, or what a generator yields, is any number of rows.
    """

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self.function = function

    arrow = True

    def apply(self, batch: Any, fitted: Mapping[str, Any]) -> Batch:
        tensors = {name: tensors_of(batch.column(name)) for name in batch.column_names if _is_tensor(batch, name)}
        rows = batch.drop_columns([*tensors]).to_pylist() if tensors else batch.to_pylist()
        each = [self._made(row | {name: one[place] for name, one in tensors.items()}) for place, row in enumerate(rows)]
        made = [row for some in each for row in some]
        for row in made:
            if row.keys() != made[0].keys():
                raise DataError(f"{_name(self)}() returned the columns {list(row)}, and before {list(made[0])}")
        columns = {name: [row[name] for row in made] for name in (made[0] if made else ())}
        counts = [len(some) for some in each]
        return columns if set(counts) == {1} else {**columns, ORIGIN: np.repeat(np.arange(len(each)), counts)}

    def _made(self, row: dict[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the rows that the function makes of one: itself, several of them, or none."""
        made = self.function(row)
        if made is None:
            raise DataError(f"{_name(self)}() returned None; return a row, as in {{'x': 1.0}}, or [] to leave it out")
        if inspect.isgenerator(made):
            made = list(made)
            return [row_columns(each) for each in made]
        if isinstance(made, list) and all(isinstance(each, Mapping) for each in made):
            return made
        return [row_columns(made)]


class BatchFunction(Recipe):
    """A function of a batch."""

    def __init__(self, function: Callable[[Batch], Batch]) -> None:
        self.function = function

    def apply(self, batch: Any, fitted: Mapping[str, Any]) -> Batch:
        return self.function(batch)


def plain_batch(table: pa.Table, layout: ColumnTypes) -> dict[str, Any]:
    """Return a table as arrays and lists. The dtype of a column is the same in every batch."""
    batch: dict[str, Any] = {}
    for name, kind in layout.types.items():
        column = table.column(name)
        if pa.types.is_floating(kind) or pa.types.is_integer(kind):
            wanted = np.float64 if name in layout.nulls and pa.types.is_integer(kind) else kind.to_pandas_dtype()
            filled = column.cast(pa.float64()).fill_null(float("nan")) if name in layout.nulls else column
            batch[name] = np.asarray(filled.combine_chunks(), wanted)
        elif pa.types.is_boolean(kind) and name not in layout.nulls:
            batch[name] = np.asarray(column.to_pylist(), bool)
        elif isinstance(kind, pa.FixedShapeTensorType):
            batch[name] = tensors_of(column)
        elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            stamps = column.cast(pa.timestamp("us")).cast(pa.int64()).fill_null(np.iinfo(np.int64).min)
            batch[name] = np.asarray(stamps.combine_chunks(), np.int64).view("datetime64[us]")
        else:
            batch[name] = column.to_pylist()
    return batch


def tensors_of(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Return a column of arrays of one shape as one array."""
    whole = column.combine_chunks()
    (array,) = whole.chunks if isinstance(whole, pa.ChunkedArray) else (whole,)
    return np.asarray(array.to_numpy_ndarray())


def _is_tensor(table: pa.Table, name: str) -> bool:
    return isinstance(table.schema.field(name).type, pa.FixedShapeTensorType)


class Prepared:
    """A recipe with its statistics and the columns of the raw rows, as it travels with a data set."""

    def __init__(self, recipe: Recipe, layout: ColumnTypes, fitted: Mapping[str, Any]) -> None:
        self.recipe = recipe
        self.layout = layout
        self.fitted = fitted

    @functools.cached_property
    def fingerprint(self) -> str:
        """A SHA-256 of the recipe's code and settings, its statistics, and the columns that it takes."""
        arrays: dict[str, Any] = {}
        content = [fingerprint(self.recipe), self.layout.to_json(), to_json(self.fitted, arrays)]
        found = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode())
        for name in sorted(arrays):
            found.update(arrays[name].tobytes())
        return found.hexdigest()

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """What the prepared labels stand for: ``names``, ``counts`` and ``weights`` of classes."""
        return self.recipe.outcomes(self.fitted)

    def given(self, table: pa.Table, *, labelled: bool = True) -> tuple[pa.Table, ColumnTypes]:
        """Return raw rows with the columns and types of the training rows; columns of labels may be absent."""
        absent = [name for name in self.layout.types if name not in table.column_names]
        needed = [name for name in absent if labelled or name not in self.recipe.labels]
        if needed:
            extra = [name for name in table.column_names if name not in self.layout.types]
            besides = f", and has {', '.join(map(repr, extra))} instead" if extra else ""
            lacking = "" if labelled else "; columns that rows to predict lack are the labels= of a recipe"
            raise WrongColumns(
                f"the rows lack the columns {', '.join(map(repr, needed))} of the rows that the recipe was made with"
                f"{besides}; name the columns as in training{lacking}"
            )
        layout = ColumnTypes({n: k for n, k in self.layout.types.items() if n not in absent}, self.layout.nulls)
        for name, kind in layout.types.items():
            try:
                table.column(name).cast(kind)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                seen = table.schema.field(name).type
                raise DataError(
                    f"column {name!r}: is {seen}, but was {kind} in training, and cannot be converted "
                    f"({describe(error)}); give values of the same type, or prepare the training data anew with "
                    f"hop.Files(source, types={{{name!r}: {str(seen)!r}}})"
                ) from None
        given = layout.cast(table)
        if self.recipe.by_split:
            given = given.append_column(SPLIT, pa.array(["test"] * given.num_rows, pa.string()))
        return given, layout

    def apply(self, table: pa.Table, layout: ColumnTypes | None = None) -> Batch:
        """Return the prepared columns of raw rows."""
        batch = table if self.recipe.arrow else plain_batch(table, layout or self.layout)
        made = self.recipe.apply(batch, self.fitted)
        if not isinstance(made, Mapping):
            made = row_columns(made)
        return made

    def save(self, folder: Path) -> None:
        """Write the recipe into the folder of a data set."""
        from safetensors.numpy import save_file

        arrays: dict[str, Any] = {}
        content = {
            "format": "hopfleet-recipe",
            "version": 1,
            "name": _name(self.recipe),
            "fingerprint": self.fingerprint,
            "columns": self.layout.to_json(),
            "fitted": to_json(self.fitted, arrays),
            "code": source_code(self.recipe),
        }
        if arrays:
            write_atomically(folder / ARRAYS, lambda path: save_file(arrays, path), durable=True)
        pickled = pickled_alike((self.recipe, self.layout))
        write_bytes(folder / PICKLE, pickled, durable=True)
        files = {name: digest(folder / name) for name in (PICKLE, *([ARRAYS] if arrays else []))}
        write_text(folder / RECIPE, json_text({**content, "files": files}), durable=True)


def pickled_alike(value: Any) -> bytes:
    """Return a pickle that is the same, byte for byte, in every process that pickles the same.

    cloudpickle gives a class of a script a random number, by which it knows the class again. Here the number follows
    from what is pickled.
    """
    made: bytes = cloudpickle.dumps(value)
    known = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})
    numbers = [number.encode() for number in set(known.values())]
    found = sorted((number for number in numbers if number in made), key=made.index)
    blank = made
    for number in found:
        blank = blank.replace(number, bytes(len(number)))
    for place, number in enumerate(found):
        made = made.replace(number, hashlib.sha256(blank + bytes([place])).hexdigest()[: len(number)].encode())
    return made


def load_recipe(data: Dataset | str | os.PathLike[str], *, trust: bool = False) -> Prepared:
    """Return the recipe of a data set, with its statistics.

    This runs code that is stored with the data set, so the folder must be one that you trust, and unless ``trust`` is
    True only this user may be able to write to it.
    """
    from safetensors.numpy import load_file

    folder = Path(data.url if isinstance(data, Dataset) else data).expanduser()
    if not (folder / RECIPE).is_file():
        raise DataError(f"{folder}: has no {RECIPE}; only data sets that hop.prepare made have a recipe")
    if (folder / PICKLE).is_file() and not trust:
        check_private(folder, folder / PICKLE)
    try:
        content = _recorded(folder)
        arrays = load_file(folder / ARRAYS) if (folder / ARRAYS).is_file() else {}
        recipe, layout = cloudpickle.loads((folder / PICKLE).read_bytes())
        return Prepared(recipe, layout, from_json(content["fitted"], arrays))
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{folder}: its recipe cannot be loaded ({describe(error)}); prepare the data again") from error


def _recorded(folder: Path) -> dict[str, Any]:
    """Return what is written down about a recipe. Raise DataError if a file is another one than was written."""
    try:
        content = read_json(folder / RECIPE)
    except ValueError as error:
        raise DataError(f"{folder / RECIPE}: is damaged ({error}); prepare the data again") from error
    for name, wanted in content.get("files", {}).items():  # release 0.1 wrote none
        if name not in (ARRAYS, PICKLE) or digest(folder / name) != wanted:
            raise DataError(f"{folder / name}: differs from what was written; prepare the data again")
    return dict(content)


def stored_recipe(data: Any) -> dict[str, Any]:
    """Return what is written down about the recipe of a data set, without its code; empty if there is no recipe."""
    path = Path(data.url) / RECIPE if isinstance(data, Dataset) else None
    return _recorded(path.parent) if path is not None and path.is_file() else {}


def copy_recipe(data: Dataset, folder: Path) -> None:
    """Give another data set the recipe of a data set, if it has one."""
    for name in (RECIPE, ARRAYS, PICKLE):
        if (source := Path(data.url) / name).is_file():
            copy_file(source, folder / name)


def has_statistics(stored: Mapping[str, Any]) -> bool:
    """Whether a recipe that ``stored_recipe`` returned has statistics of rows."""
    return bool(stored and stored["fitted"] != to_json({}, {}))


def check_statistics(train: Any, valid: Any) -> None:
    """Raise DataError if a recipe prepared two data sets with different statistics."""
    one, other = stored_recipe(train), stored_recipe(valid)
    same = has_statistics(one) and all(one[key] == other.get(key) for key in ("name", "code"))
    if same and one["fingerprint"] != other["fingerprint"]:
        raise DataError(
            f"{valid.url}: was prepared with other statistics than {train.url}, so equal rows differ in them; prepare "
            "both in one call: hop.prepare(source, folder, recipe, split={'train': 0.8, 'valid': 0.2})"
        )


def shared_statistics(train: Dataset) -> str:
    """Return the name of the recipe whose statistics all folds of a data set share; empty if there is none.

    Classes of images are no statistics.
    """
    folder, stored = open_folder(train.url), stored_recipe(train)
    if isinstance(folder, RemoteFolder):
        files, path = folder.filesystem()
        stored = json.loads(files.cat_file(f"{path}/{RECIPE}")) if files.exists(f"{path}/{RECIPE}") else {}
    shared = not train.manifest.folds and has_statistics(stored) and stored["name"] != "Images"
    return str(stored["name"]) if shared else ""


def _name(recipe: Recipe) -> str:
    function = _plain_function(getattr(recipe, "function", None))
    return str(getattr(function, "__qualname__", None) or type(recipe).__qualname__)


def fingerprint(recipe: Recipe) -> str:
    """Return a SHA-256 of a recipe's code and settings; comments and layout do not count."""
    function = getattr(recipe, "function", None)
    pieces = digests(recipe if function is None else _plain_function(function))
    for name, value in vars(recipe).items() if function is None else ():  # objects of the user's, such as an ETLSpec
        pieces |= {f"{name}: {piece}": digest for piece, digest in digests(value).items()}
    text = json.dumps([_name(recipe), pieces, _settings(recipe)], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain_function(function: Any) -> Any:
    """Return the function that a method or a ``functools.partial`` calls."""
    while inner := getattr(function, "func", None) or getattr(function, "__func__", None):
        function = inner
    return function


def _settings(recipe: Recipe) -> dict[str, str]:
    function = getattr(recipe, "function", None)
    if isinstance(function, functools.partial):
        return {"arguments": repr((function.args, function.keywords))}
    return {name: repr(value) for name, value in sorted(vars(recipe).items()) if " at 0x" not in repr(value)}


def source_code(recipe: Recipe) -> str:
    """Return the text of a recipe's code; empty if there is none."""
    try:
        return textwrap.dedent(inspect.getsource(getattr(recipe, "function", None) or type(recipe)))
    except (OSError, TypeError):
        return ""
