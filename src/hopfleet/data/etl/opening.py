"""What a user gives to a preparation: its recipe, and its source with the identity by which it is known again.

A source is files, a data set, or tables in memory.
"""

from __future__ import annotations

import codecs
import hashlib
import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hopfleet.data import manifest
from hopfleet.data.dataset import Dataset, open_dataset
from hopfleet.data.etl.chunks import ColumnTypes
from hopfleet.data.etl.listing import Files, find_files
from hopfleet.data.etl.reading import header_of
from hopfleet.data.etl.recipe import AsStored, BatchFunction, Recipe, RowFunction, WrongColumns
from hopfleet.data.etl.tables import as_tables
from hopfleet.data.etl.tabular import Tabular
from hopfleet.data.etl.thesis import ThesisRecipe
from hopfleet.errors import DataError
from hopfleet.phrases import shown


class Opened:
    """A source, as far as it is known before it is read."""

    def __init__(self, source: Any) -> None:
        self.files: Files | None = None
        self.dataset = source if isinstance(source, Dataset) else None
        self.size = self.dataset.size if self.dataset is not None else 0
        if isinstance(source, str | os.PathLike):
            if isinstance(source, str) and "\n" in source:
                raise DataError(f"source={shown(source)}: is not a path; pass a file, a folder, a glob or a URL")
            path = Path(source).expanduser()
            if "://" not in os.fspath(source) and (path / manifest.FILE).is_file():
                self.dataset = open_dataset(source)
            else:
                self.files = Files(source)
        elif isinstance(source, Files):
            self.files = source
        elif (
            isinstance(source, list | tuple) and source and all(isinstance(each, str | os.PathLike) for each in source)
        ):
            self.files = Files(source)
        self.found = [] if self.files is None else find_files(self.files)
        self.tables: list[pa.Table] = []
        self.identity: Any
        if self.files is not None:
            self.size = sum(file.size for file in self.found)
            options = [self.files.format, self.files.delimiter, dict(self.files.types), list(self.files.missing)]
            if self.files.encoding:
                options.append({"encoding": codecs.lookup(self.files.encoding).name})
            if self.files.decimal != ".":
                options.append({"decimal": self.files.decimal})
            if self.files.thousands:
                options.append({"thousands": self.files.thousands})
            if self.files.header is not None:
                options.append({"header": self.files.header is True or list(self.files.header)})
            self.identity = {"files": [[f.path, f.size, f.version] for f in self.found], "options": options}
        elif self.dataset is not None:
            self.identity = {"dataset": self.dataset.fingerprint}
        else:
            self.tables = list(as_tables(source))
            self.size = sum(table.nbytes for table in self.tables)
            self.identity = {"rows": _content(self.tables)}


def _content(tables: Sequence[pa.Table]) -> str:
    """Return a SHA-256 of the rows of tables."""
    found = hashlib.sha256()
    for table in tables:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        found.update(sink.getvalue())
    return found.hexdigest()


def check_columns(recipe: Recipe, opened: Opened, layout: ColumnTypes) -> None:
    """Raise WrongColumns if rows that were read lack a column that a recipe for tables names."""
    if not isinstance(recipe, Tabular) or all(name in layout.types for name in recipe.inputs or recipe.labels):
        return
    file, names = opened.found[0] if opened.found else None, list(layout.types)
    if opened.files is not None and file is not None and file.format in ("csv", "tsv"):
        names = [*header_of(opened.files, file).names]  # of these, only those that the recipe names were read
    try:
        recipe.check(names)
    except WrongColumns as error:
        raise WrongColumns(f"{'the source' if file is None else file.path}: {error}") from None


def as_recipe(recipe: Any) -> Recipe:
    """Return a user's recipe as a Recipe. A function whose parameter is called ``batch`` gets batches, others rows."""
    if recipe is None:
        return AsStored()
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, type) and issubclass(recipe, Recipe):
        raise DataError(f"recipe={recipe.__name__}: must be an instance, {recipe.__name__}()")
    if hasattr(recipe, "row_preprocessor"):
        return ThesisRecipe(recipe)
    if not callable(recipe):
        raise DataError(f"recipe={shown(recipe)}: must be a function of a row or a batch, or a hop.Recipe")
    try:
        names = list(inspect.signature(recipe).parameters)
    except (TypeError, ValueError):
        names = []
    return BatchFunction(recipe) if names[:1] == ["batch"] else RowFunction(recipe)
