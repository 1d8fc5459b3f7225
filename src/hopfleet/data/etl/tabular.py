"""The recipe for tables: a step for each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopfleet.data.columns import Array
from hopfleet.data.etl.chunks import is_text
from hopfleet.data.etl.labels import REMEDY, Label, Outcome
from hopfleet.data.etl.recipe import Batch, Recipe, WrongColumns
from hopfleet.data.etl.steps import Category, Date, Number, Own, Step, Text
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError
from hopfleet.phrases import did_you_mean, listed, shown

FAULTS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, DataError)
"""What steps raise for values that they cannot take."""


@explained
class Tabular(Recipe):
    """The recipe for tables: a step for each column.

    ``columns`` maps names to ``hop.Number``, ``hop.Category``, ``hop.Date``, ``hop.Text``, a step of your own, or None
    to store a column as it is; other columns are left out. Without it, all columns are taken, each by its type. With
    ``stack="x"``, numbers, dates and one-hot categories are stored as one float32 array of that name. The parts of
    dates have mean 0 and deviation 1 there.

    A step of your own is a function of a column's values, or an object with ``apply(values, fitted)`` and, for
    statistics, ``fit(values)``.

    ``labels`` names the columns that models will predict, by default each with ``hop.Label()``. They are never stacked,
    a row without its label fails, rows to predict may lack them, and predictions are given back in their terms.
    """

    arrow = True
    threads = True

    def __init__(
        self, columns: Mapping[str, Step | None] | None = None, *, stack: str = "", labels: str | Sequence[str] = ()
    ) -> None:
        self.columns = None if columns is None else {name: _as_step(name, step) for name, step in columns.items()}
        self.stack = stack
        named = [name for name, step in (self.columns or {}).items() if isinstance(step, Label)]
        self.labels = list(dict.fromkeys([*([labels] if isinstance(labels, str) else labels), *named]))
        for name, step in (self.columns or {}).items():
            if name in self.labels:
                _check_label(name, step)
        if any(isinstance(step, Text | Own) for step in (self.columns or {}).values()):
            self.threads = False  # a tokenizer is Python code, as are steps of the user's

    @property
    def inputs(self) -> Sequence[str] | None:
        return None if self.columns is None else list(dict.fromkeys([*self.columns, *self.labels]))

    def fit(self, batch: pa.Table) -> Mapping[str, Any]:
        fitted = {}
        for name, step in self._steps(batch, labels=()).items():  # rows to train with have their labels
            if step is not None:
                try:
                    column, stacked = batch.column(name), bool(self.stack) and name not in self.labels
                    fitted[name] = step.fit_stacked(column) if stacked and isinstance(step, Date) else step.fit(column)
                except FAULTS as error:
                    raise _of_column(name, error) from None
        return fitted

    def apply(self, batch: pa.Table, fitted: Mapping[str, Any]) -> Batch:
        made: dict[str, Any] = {}
        stacked: list[Array] = []
        for name, step in self._steps(batch, self.labels).items():
            column = batch.column(name)
            try:
                if name in self.labels and pc.any(pc.is_null(column, nan_is_null=True)).as_py():
                    raise DataError(REMEDY)
                values = column if step is None else _applied(step, column, fitted[name])
            except FAULTS as error:
                raise _of_column(name, error) from None
            wide = isinstance(step, Number | Date) or (isinstance(step, Category) and step.one_hot)
            if self.stack and wide and name not in self.labels:
                stacked.append(values if values.ndim == 2 else values[:, None])
            else:
                made[name] = values
        return {self.stack: np.concatenate(stacked, axis=1), **made} if stacked else made

    def _steps(self, table: pa.Table, labels: Sequence[str]) -> dict[str, Step | None]:
        """Return the steps of a table's columns; those of ``labels`` may be absent."""
        given = self.columns
        if given is None:
            others = [name for name in table.column_names if name not in self.labels]
            given = {name: _by_type(table.schema.field(name).type) for name in others}
        steps = {**given, **{name: Label() for name in self.labels if name not in given}}
        self.check(table.column_names, besides=labels)
        return {name: step for name, step in steps.items() if name in table.column_names}

    def check(self, names: Sequence[str], besides: Sequence[str] = ()) -> None:
        """Raise WrongColumns unless rows with these columns, and those ``besides``, have all that the recipe needs."""
        for name in [*(self.columns or {}), *self.labels]:
            if name not in names and name not in besides:
                asked = f"labels={name!r}" if name in self.labels else f"columns={{{name!r}: ...}}"
                near = did_you_mean(name, names)
                raise WrongColumns(f"has no column {name!r} for {asked}; {near}it has {listed(name, names)}")

    def outcomes(self, fitted: Mapping[str, Any]) -> Mapping[str, Outcome]:
        found = {name: (self.columns or {}).get(name, Label()) for name in self.labels if name in fitted}
        steps = {name: step for name, step in found.items() if isinstance(step, Number | Category | Label)}
        return {name: step.outcome(fitted[name]) for name, step in steps.items()}


def _of_column(name: str, error: Exception) -> DataError:
    return DataError(f"column {name!r}: {str(error).splitlines()[0]}")


def _applied(step: Step, column: pa.ChunkedArray, fitted: Any) -> Array:
    if isinstance(step, Date) and isinstance(fitted, Mapping) and "parts" in fitted:
        return step.apply_stacked(column, fitted)
    return step.apply(column, fitted)  # it was fitted without a stack, or before stacked dates were scaled


def _as_step(name: str, step: Any) -> Step | None:
    if step is None or isinstance(step, Step):
        return step
    if not isinstance(step, type) and (callable(step) or hasattr(step, "apply")):
        return Own(step)
    raise DataError(
        f"columns={{{name!r}: {shown(step)}}}: must be hop.Number(), hop.Category(), hop.Date(), hop.Text(), "
        "hop.Label(), a function of the values, an object with apply(values, fitted), or None"
    )


def _check_label(name: str, step: Step | None) -> None:
    """Raise DataError for a step that would make up labels."""
    if isinstance(step, Number) and step.missing != "raise":
        raise DataError(
            f"columns={{{name!r}: hop.Number(missing={step.missing!r})}}: is among labels=, and labels are never made "
            "up; leave missing= out, and rows without a label with hop.prepare(on_error='skip')"
        )
    if isinstance(step, Category) and step.unseen != "raise":
        raise DataError(
            f"columns={{{name!r}: hop.Category()}}: is among labels=, and a missing or new one would become class 0; "
            "leave it out of columns=, or use hop.Category(unseen='raise')"
        )
    if (isinstance(step, Category) and step.one_hot) or (isinstance(step, Number) and step.scale == "quantile"):
        raise DataError(
            f"columns={{{name!r}: {step!r}}}: is among labels=, and predictions could not be given back in its terms; "
            "leave it out of columns="
        )


def coded(table: pa.Table, recipe: Recipe | None) -> pa.Table:
    """Return a table with the categories of a ``Tabular`` as dictionaries, so that fit and apply need not both hash.

    Other recipes get their text as it is.
    """
    steps: dict[str, Step | None] = {}
    if type(recipe) is Tabular:
        steps = {**dict.fromkeys(recipe.labels, Label()), **(recipe.columns or {})}
    for name, step in steps.items():
        place = table.schema.get_field_index(name)
        if isinstance(step, Category | Label) and place >= 0 and pa.types.is_string(table.schema.field(place).type):
            table = table.set_column(place, name, table.column(place).dictionary_encode())
    return table


def _by_type(kind: pa.DataType) -> Step | None:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Number(missing="mean")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return Date()
    if is_text(kind) or pa.types.is_boolean(kind):
        return Category()
    return None
