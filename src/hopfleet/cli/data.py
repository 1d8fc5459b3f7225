"""The commands that create a data set: partition and prepare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopfleet.cli.render import facts, json_alone, print_json
from hopfleet.errors import UsageError

if TYPE_CHECKING:
    from hopfleet.data import Dataset


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
        print_json(_described(made))
    else:
        _show(made)
    return 0


def prepare(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A file, a folder, a quoted glob such as 'raw/*.csv', or a URL.")
    ],
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Where to write the data set: a folder or an fsspec URL.")
    ],
    recipe: Annotated[
        str | None, typer.Option(metavar="FILE:NAME", help="A Python file, and the recipe's name in it.")
    ] = None,
    tabular: Annotated[
        bool, typer.Option("--tabular", help="Scale numbers and encode categories and dates, each column by its type.")
    ] = False,
    labels: Annotated[
        str, typer.Option(metavar="NAME,...", help="With --tabular: the columns to predict, which new rows may lack.")
    ] = "",
    delimiter: Annotated[
        str, typer.Option(metavar="C", help="The character between the values of CSV files; 'tab' for a tab.")
    ] = "",
    types: Annotated[
        str,
        typer.Option(metavar="NAME=TYPE,...", help="Types of columns of CSV files, as in zip=string,price=float64."),
    ] = "",
    partitions: Annotated[int, typer.Option(metavar="P", help="Number of partitions.")] = 8,
    split: Annotated[
        str | None, typer.Option(metavar="NAME=F,...", help="Fractions of the rows, as in train=0.8,valid=0.2.")
    ] = None,
    stratify: Annotated[
        str, typer.Option(metavar="NAME", help="With --split: a column whose values have the same shares everywhere.")
    ] = "",
    group: Annotated[
        str, typer.Option(metavar="NAME", help="With --split: a column whose equal values stay together.")
    ] = "",
    time: Annotated[
        str, typer.Option(metavar="NAME", help="With --split: a column; earlier rows come into earlier splits.")
    ] = "",
    time_format: Annotated[
        str, typer.Option(metavar="FORMAT", help="How to read text in the column of --time, as in '%m/%d/%Y'.")
    ] = "",
    folds: Annotated[
        int, typer.Option(metavar="K", help="Prepare the training rows for each fold, with statistics of all others.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="The seed of the split and of the shuffle.")] = 0,
    workers: Annotated[str, typer.Option(metavar="N", help="Number of threads or processes, or auto.")] = "auto",
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="Where the work is done: local, inline (one thread), or ray.")
    ] = "local",
    on_error: Annotated[
        str, typer.Option(metavar="HOW", help="Rows that fail: raise, skip, or keep (in failed.jsonl).")
    ] = "raise",
    error_limit: Annotated[int, typer.Option(metavar="N", help="Rows that may fail.")] = 1000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing data set.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object that describes the data set.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> int:
    """Prepare raw data for training: read files, apply a recipe, write partitions.

    Example: hopfleet prepare 'raw/*.csv' data/flights --tabular --labels late --split train=0.8,valid=0.2
    """
    from hopfleet.cli.scripts import load_object
    from hopfleet.data.etl import Files, Split, Tabular
    from hopfleet.data.etl import prepare as prepared

    if recipe is not None and tabular:
        raise UsageError("--recipe and --tabular: give one of them")
    if labels and not tabular:
        raise UsageError(f"--labels {labels}: goes with --tabular; a recipe of your own names its labels itself")
    by = {"stratify": stratify, "group": group, "time": time, "time_format": time_format}
    given = {name: value for name, value in by.items() if value}
    if given and split is None:
        name, value = next(iter(given.items()))
        raise UsageError(f"--{name.replace('_', '-')} {value}: goes with --split, as in --split train=0.8,valid=0.2")
    unchecked: Any = {
        "workers": int(workers) if workers.isdecimal() else workers,
        "backend": backend,
        "split": None if split is None else Split(_fractions(split), **given) if given else _fractions(split),
        "on_error": on_error,
    }
    raw = bool(delimiter or types)
    made_by = None if recipe is None else load_object(recipe)
    if tabular:
        made_by = Tabular(labels=[name.strip() for name in labels.split(",") if name.strip()])
    with json_alone(json):
        made = prepared(
            Files(source, delimiter="\t" if delimiter == "tab" else delimiter, types=_types(types)) if raw else source,
            folder,
            made_by,
            partitions=partitions,
            folds=folds,
            seed=seed,
            error_limit=error_limit,
            overwrite=overwrite,
            quiet=quiet or json,
            **unchecked,
        )
    several = made if isinstance(made, dict) else {"": made}
    labelled = _labels(next(iter(several.values()))) if tabular else []
    if json:
        described = {name: _described(each) for name, each in several.items()}
        print_json(described if isinstance(made, dict) else described[""])
    else:
        for each in several.values():
            _show(each, labelled)
    return 0


def _labels(made: Dataset) -> list[tuple[str, str]]:
    """Return what was found of the labels, for people to check."""
    from hopfleet.data.etl import load_recipe

    return [(f"label {name}", outcome.kind) for name, outcome in load_recipe(made).outcomes.items()]


def _types(text: str) -> dict[str, str]:
    """Return the types of columns that text such as ``zip=string,price=float64`` gives."""
    pairs = [each.rpartition("=") for each in text.split(",") if text]
    if any(not name or not kind for name, _, kind in pairs):
        raise UsageError(f"--types {text}: must be names and types of columns, as in zip=string,price=float64")
    return {name.strip(): kind.strip() for name, _, kind in pairs}


def _described(made: Dataset) -> dict[str, Any]:
    return {
        "url": made.url,
        "rows": made.rows,
        "partition_rows": list(made.partition_rows),
        "columns": list(made.columns),
        "size": made.size,
        "seed": made.seed,
        "fingerprint": made.fingerprint,
    }


def _show(made: Dataset, more: Sequence[tuple[str, str]] = ()) -> None:
    rows = ", ".join(f"{count:,}" for count in made.partition_rows)
    facts(
        [
            ("data set", made.url),
            ("columns", ", ".join(made.columns)),
            *more,
            ("rows", f"{made.rows:,} in {len(made)} partitions: {rows}"),
            ("fingerprint", made.fingerprint),
        ]
    )


def _fractions(text: str) -> dict[str, float]:
    try:
        return {name: float(share) for name, share in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise UsageError(f"--split {text}: must be names and fractions, e.g. train=0.8,valid=0.1,test=0.1") from None


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--capacities {text}: must be numbers separated by commas, e.g. 1,2,1") from None
