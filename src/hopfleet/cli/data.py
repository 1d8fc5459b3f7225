"""The command that creates a data set: partition."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopfleet.cli.render import facts, print_json
from hopfleet.errors import UsageError


def partition(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A Parquet file, or a folder of Parquet files.")],
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Where to write the data set: a folder or an fsspec URL.")
    ],
    partitions: Annotated[int | None, typer.Option(metavar="P", help="Number of partitions (8).")] = None,
    capacities: Annotated[
        str | None,
        typer.Option(metavar="C,C,...", help="One number per partition; its share of the rows."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the shuffle.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing data set.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object that describes the data set.")] = False,
) -> int:
    """Shuffle rows into the partitions of a new data set.

    Example: hopfleet partition rows.parquet data/rows --partitions 4
    """
    from hopfleet.data import partition as partitioned

    made = partitioned(
        source,
        folder,
        partitions=partitions,
        capacities=None if capacities is None else _numbers(capacities),
        seed=seed,
        overwrite=overwrite,
    )
    if json:
        print_json(
            {
                "url": made.url,
                "rows": made.rows,
                "partition_rows": list(made.partition_rows),
                "columns": list(made.columns),
                "size": made.size,
                "seed": made.seed,
                "fingerprint": made.fingerprint,
            }
        )
    else:
        rows = ", ".join(f"{count:,}" for count in made.partition_rows)
        facts(
            [
                ("data set", made.url),
                ("columns", ", ".join(made.columns)),
                ("rows", f"{made.rows:,} in {len(made)} partitions: {rows}"),
                ("fingerprint", made.fingerprint),
            ]
        )
    return 0


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--capacities {text}: must be numbers separated by commas, e.g. 1,2,1") from None
