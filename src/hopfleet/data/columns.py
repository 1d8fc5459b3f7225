"""Columns of a data set: kind, dtype, shape of a row, and the Arrow fields that store them.

The manifest, the files and the readers share these types. Nothing here handles rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopfleet.errors import DataError

Array = npt.NDArray[Any]


class NoRows(DataError):
    """A source has no rows but ``failures``, which is nothing wrong for rows to predict."""

    def __init__(self, text: str, failures: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.failures = list(failures)


class Kind(Enum):
    """The form of a column's rows in a batch."""

    FIXED = "fixed"  #: rows of one shape: one array of shape (batch, *shape)
    VARIABLE = "variable"  #: rows of one dtype and differing shapes: a list of arrays
    STRING = "string"  #: a list of str
    BYTES = "bytes"  #: a list of bytes


@dataclass(frozen=True, slots=True)
class Element:
    """The storage of one number: ``count`` values of the Arrow type ``arrow``, shown as ``numpy`` in batches."""

    numpy: np.dtype[Any]
    arrow: Any
    count: int = 1


#: The dtypes of numeric columns. bool is stored as bytes because Arrow's bits cannot be viewed as an array. numpy has
#: no bfloat16, so batches hold its bits as uint16.
ELEMENTS: dict[str, Element] = {
    **{
        name: Element(np.dtype(name), getattr(pa, name)())
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
    **{name: Element(np.dtype(name), getattr(pa, name)()) for name in ("float16", "float32", "float64")},
    "complex64": Element(np.dtype("complex64"), pa.float32(), 2),
    "complex128": Element(np.dtype("complex128"), pa.float64(), 2),
    "bool": Element(np.dtype("bool"), pa.uint8()),
    "bfloat16": Element(np.dtype("uint16"), pa.uint16()),
}


DIMENSIONS = 32
"""The most dimensions of a row."""

LIST_SIZE = 2**31 - 1
"""The most values of a row, as Arrow counts them."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``shape`` is the shape of a row, with -1 for dimensions in which the rows differ."""

    name: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def element(self) -> Element:
        """The storage of the column's numbers. Only for FIXED and VARIABLE columns."""
        return ELEMENTS[self.dtype]

    @property
    def fields(self) -> list[pa.Field]:
        """The Arrow fields that store the column: one, plus a second for shapes of several dimensions that differ."""
        if self.kind is Kind.STRING:
            return [pa.field(self.name, pa.large_string())]
        if self.kind is Kind.BYTES:
            return [pa.field(self.name, pa.large_binary())]
        element = self.element
        if self.kind is Kind.FIXED:
            if not self.shape and element.count == 1:
                return [pa.field(self.name, element.arrow)]
            return [pa.field(self.name, pa.list_(element.arrow, math.prod(self.shape) * element.count))]
        fields = [pa.field(self.name, pa.large_list(element.arrow))]
        if len(self.shape) > 1:
            fields.append(pa.field(f"{self.name}.shape", pa.list_(pa.int64(), len(self.shape))))
        return fields

    @property
    def row_bytes(self) -> int:
        """The fewest bytes of a file that a row takes: its values, or its offset."""
        return math.prod(self.shape) * self.element.numpy.itemsize if self.kind is Kind.FIXED else 8

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind.value, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, text: dict[str, Any]) -> Column:
        """Return the column of a manifest's entry; raise KeyError, TypeError or ValueError if it cannot be right."""
        name, kind, dtype, shape = text["name"], Kind(text["kind"]), text["dtype"], text["shape"]
        (checked,) = check_names([name])
        checked.encode()  # refuses lone surrogates, which no file can hold
        if not isinstance(shape, list) or len(shape) > DIMENSIONS:
            raise ValueError(f"shape: {shortened(shape)} must be a list of at most {DIMENSIONS} numbers")
        least = -1 if kind is Kind.VARIABLE else 0
        column = cls(name, kind, dtype, tuple(whole("shape", size, least=least) for size in shape))
        if kind in (Kind.STRING, Kind.BYTES):
            if shape or dtype != ("str" if kind is Kind.STRING else "bytes"):
                raise ValueError(f"column {name!r}: {kind.value} cannot have dtype {shortened(dtype)} or a shape")
        elif not isinstance(dtype, str) or dtype not in ELEMENTS:
            raise ValueError(f"column {shortened(name)} has the unknown dtype {shortened(dtype)}")
        elif kind is Kind.VARIABLE and not shape:
            raise ValueError(f"column {shortened(name)}: rows of differing shapes must have at least one dimension")
        elif kind is Kind.FIXED and math.prod(shape) * column.element.count > LIST_SIZE:
            raise ValueError(f"column {shortened(name)}: a row must have at most {LIST_SIZE} values")
        return column

    def __str__(self) -> str:
        if self.kind in (Kind.STRING, Kind.BYTES):
            return self.dtype
        return self.dtype + (str(list(self.shape)).replace("-1", "*") if self.shape else "")


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the schema of a partition file. Read fields by position: a shape's field may share a column's name."""
    return pa.schema([field for column in columns for field in column.fields])


def whole(name: str, value: Any, *, least: int) -> int:
    """Return a whole number of a manifest; raise ValueError for any other value."""
    if type(value) is not int or not least <= value < 2**63:
        raise ValueError(f"{name}: {shortened(value)} must be a whole number of at least {least}")
    return value


def shortened(value: object, limit: int = 60) -> str:
    """Return a value as text for a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."


def check_names(names: Iterable[Any]) -> list[str]:
    """Return the names as a list. Raise DataError for a name that is invalid or used twice."""
    checked: list[str] = []
    for name in names:
        if not isinstance(name, str) or not name:
            raise DataError(f"column name {name!r}: must be a non-empty str; rename the column")
        if name in checked:
            raise DataError(f"column name {name!r}: used twice; rename one of the two columns")
        checked.append(name)
    if not checked:
        raise DataError("the source has no columns; give at least one")
    return checked
