"""The data pre-processing abstraction of the Cerebro platform (thesis, Figure 3.2), as a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hopfleet.data.etl.objects import fetch_all, fetched, object_folder
from hopfleet.data.etl.recipe import SPLIT, Batch, Recipe
from hopfleet.errors import DataError


class ETLSpec:
    """The pre-processing of one row of a table of metadata. Derive from it, and pass an instance as a recipe.

    ``is_feature_download`` lists the columns that name objects to fetch, or a bool for each column. Before
    ``row_preprocessor(row, mode, object_dir)`` runs, these objects are in the folder ``object_dir``, and the row has
    their file names there; files of this machine keep their paths. The mode is the name of the row's split, "test" for
    new rows, and "train" without a split. The result is the input and the output of the model, which become the columns
    x and y.

    ``labels`` lists the columns that only the output needs. In rows to predict they are None, and the output may be.
    """

    is_feature_download: Sequence[Any] = ()
    labels: Sequence[str] = ()

    def initialize_worker(self) -> None:
        """Prepare a process, before its first row."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: str, object_dir: str) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must implement row_preprocessor(row, mode, object_dir)")

    def recipe(self, mode: str = "train") -> Recipe:
        """Return the recipe whose rows have this mode, e.g. "train", "valid" or "test"."""
        return ThesisRecipe(self, mode)


class ThesisRecipe(Recipe):
    """The recipe of an ``ETLSpec``."""

    arrow = True
    by_split = True

    def __init__(self, spec: Any, mode: str = "train") -> None:
        self.spec = spec
        self.mode = mode
        self._ready = False

    @property
    def labels(self) -> Sequence[str]:  # type: ignore[override]
        return list(getattr(self.spec, "labels", ()))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_ready": False}  # each process is initialized anew

    def apply(self, batch: pa.Table, fitted: Mapping[str, Any]) -> Batch:
        if not self._ready:
            self.spec.initialize_worker()
            self._ready = True
        modes = [self.mode] * batch.num_rows
        if SPLIT in batch.column_names:
            modes, batch = batch.column(SPLIT).to_pylist(), batch.drop_columns(SPLIT)
        columns = self._downloads(batch.column_names)
        rows = [{**dict.fromkeys(self.labels), **row} for row in batch.to_pylist()]
        files = fetch_all(row[name] for row in rows for name in columns if row[name] is not None)
        made = [self._row(row, columns, files, mode) for row, mode in zip(rows, modes, strict=True)]
        outputs = {"y": [y for _, y in made]} if any(y is not None for _, y in made) else {}
        return {"x": [x for x, _ in made], **outputs}

    def _downloads(self, names: Sequence[str]) -> list[str]:
        marked = list(getattr(self.spec, "is_feature_download", ()))
        if marked and all(isinstance(mark, bool) for mark in marked):
            return [name for name, mark in zip(names, marked, strict=False) if mark]
        for name in marked:
            if name not in names:
                raise DataError(f"is_feature_download: {name!r} is not a column; there are {', '.join(names)}")
        return marked

    def _row(
        self, row: dict[str, Any], columns: Sequence[str], files: Mapping[str, Path | DataError], mode: str
    ) -> tuple[Any, Any]:
        folder = object_folder()
        for name in columns:
            if row[name] is None:
                raise DataError(f"column {name!r}: a value is missing; give the path or the URL of an object")
            path = fetched(files[row[name]])
            row[name] = path.name if path.parent == folder else str(path.absolute())
        made = self.spec.row_preprocessor(row, mode, str(folder))
        if not isinstance(made, tuple) or len(made) != 2:
            raise DataError("row_preprocessor must return a pair, the input and the output of the model")
        return made
