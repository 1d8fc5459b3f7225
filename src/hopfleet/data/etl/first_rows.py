"""The first rows of a source: which format, delimiter, columns and types are read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hopfleet.data.etl.csv_rows import Expected
from hopfleet.data.etl.images import image_tables
from hopfleet.data.etl.opening import Opened
from hopfleet.data.etl.reading import cut_pieces, first_table, header_of, stored_chunks
from hopfleet.data.etl.whole_files import WHOLE, file_tables
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError
from hopfleet.phrases import cut

SHOWN, LETTERS = 4, 20
"""Values of a column that are printed, and the most letters of each."""


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a source."""

    format: str  #: that of its files; "dataset" or "memory" otherwise
    delimiter: str  #: the character between values of CSV files, which was told or found
    columns: Mapping[str, str]  #: the types of columns, as far as the first rows tell
    rows: list[dict[str, Any]]

    def __repr__(self) -> str:
        about = self.format + (f", values divided by {self.delimiter!r}" if self.delimiter else "")
        wide, kinds = (max(map(len, each), default=0) for each in (self.columns, self.columns.values()))
        lines = [
            f"{name:{wide}}  {kind:{kinds}}  "
            + "  ".join(cut(" ".join(str(row[name]).split()), LETTERS) for row in self.rows[:SHOWN])
            for name, kind in self.columns.items()
        ]
        return "\n".join([about, *lines])


@explained
def first_rows(source: Any, rows: int = 5) -> FirstRows:
    """Return the first rows of any source of ``hop.prepare``, as they are read, and what was found of their format."""
    if rows < 1:
        raise DataError(f"rows={rows!r}: must be at least 1")
    opened = Opened(source)
    if opened.dataset is not None:
        listed = opened.dataset.head(rows)
        found = [dict(zip(listed, row, strict=True)) for row in zip(*listed.values(), strict=True)]
        return FirstRows("dataset", "", {name: str(kind) for name, kind in opened.dataset.columns.items()}, found)
    table = _first(opened, rows)
    if table is None:
        raise DataError("the source has no rows")
    delimiter = ""
    if opened.files is not None and opened.found[0].format in ("csv", "tsv"):
        delimiter = header_of(opened.files, opened.found[0]).delimiter
    kinds = {field.name: str(field.type) for field in table.schema}
    return FirstRows(
        opened.found[0].format if opened.found else "memory", delimiter, kinds, table.slice(0, rows).to_pylist()
    )


def _first(opened: Opened, rows: int) -> pa.Table | None:
    if opened.files is None:
        return next(iter(opened.tables), None)
    kind = opened.found[0].format
    if kind == "images":
        return next(image_tables(opened.files, opened.found[:rows]), None)
    if kind in WHOLE:
        return next((table for table, _, _ in file_tables(opened.found[: rows if kind == "texts" else 1])), None)
    if kind in ("parquet", "arrow"):
        return next((chunk.read() for chunk in stored_chunks(opened.found[0])), None)
    return next((first_table(piece) for piece in cut_pieces(opened.files, opened.found[:1], Expected())), None)
