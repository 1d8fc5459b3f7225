"""Chunks of rows in memory, for tests of the pieces of a preparation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from hopfleet.data.etl.chunks import Chunk


def chunk_of(rows: dict[str, list[Any]] | pa.Table, **options: Any) -> Chunk:
    table = rows if isinstance(rows, pa.Table) else pa.table(rows)
    nulls = tuple(name for name in table.column_names if table.column(name).null_count)
    made = Chunk("arrow", "", 0, table.num_rows, table.schema, nulls, "rows.csv", 2, table=table)
    return replace(made, **options)
