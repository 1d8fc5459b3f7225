"""The command that looks into a data set: data show, check, head and diff."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopfleet.cli.experiments import Json
from hopfleet.cli.render import echo, facts, print_json, size
from hopfleet.errors import UsageError

if TYPE_CHECKING:
    from hopfleet.data import Dataset
    from hopfleet.data.summary import ColumnSummary

ACTIONS = ("show", "check", "head", "diff")
BARS = " ▁▂▃▄▅▆▇█"
ACROSS = 3
"""Histograms beside each other in a picture."""
SAMPLES, MOST_PARTITIONS = 3, 16
"""Rows and partitions that are shown."""


def data(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="show, check, head or diff.")],
    folder: Annotated[
        str,
        typer.Argument(metavar="FOLDER", help="The folder or URL of a data set; for show and head, also raw files."),
    ],
    other: Annotated[
        str | None, typer.Argument(metavar="[OTHER]", help="For diff: the data set to compare.", show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", help="For head: number of rows.")] = 5,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For show: draw the histograms as .png, .svg or .pdf.")
    ] = None,
    json: Json = False,
) -> int:
    """Look into a data set: show its columns, check its files, print its first rows, or compare two.

    Of raw files, show and head print the format, the columns and their types, and the first rows. The exit code of diff
    is 1 if the data sets differ.

    Example: hopfleet data show data/train --plot columns.png
    """
    from hopfleet.data import open_dataset

    if action not in ACTIONS:
        raise UsageError(f"{action}: must be one of {', '.join(ACTIONS)}, as in hopfleet data show {folder}")
    if (action == "diff") != (other is not None):
        raise UsageError("hopfleet data diff compares two data sets, as in hopfleet data diff data/old data/new")
    if action in ("show", "head") and _is_raw(folder):
        return _first_rows(folder, rows, json)
    opened = open_dataset(folder)
    if action == "show":
        _show(opened, plot, json)
    elif action == "check":
        opened.check(checksums=True)
        text = f"{opened.rows:,} rows in {len(opened)} partitions: every file is complete and as recorded"
        print_json({"ok": True, "rows": opened.rows}) if json else echo(text)
    elif action == "head":
        _head(opened, rows, json)
    else:
        from hopfleet.data.summary import differences

        found = differences(opened, open_dataset(str(other)))
        print_json(found) if json else echo("\n".join(found) or "the same rows in the same partitions")
        return 1 if found else 0
    return 0


def _is_raw(source: str) -> bool:
    """Whether a source is files of raw rows, not a data set."""
    from hopfleet.data.etl.listing import is_known
    from hopfleet.data.manifest import FILE

    path = Path(source).expanduser()
    if path.is_dir():
        return not (path / FILE).exists() and any(is_known(each.name) for each in path.rglob("*"))
    return is_known(source) and (path.is_file() or any(mark in source for mark in "*?{"))


def _first_rows(source: str, rows: int, json: bool) -> int:
    from hopfleet.data.etl.first_rows import first_rows

    found = first_rows(source, rows)
    content = {"format": found.format, "delimiter": found.delimiter, "columns": dict(found.columns)}
    print_json({**content, "rows": [{n: _plain(v) for n, v in row.items()} for row in found.rows]}) if json else echo(
        f"{source}: {found!r}"
    )
    return 0


def _show(opened: Dataset, plot: Path | None, json: bool) -> None:
    from hopfleet.data.summary import ranged, summarize

    found = summarize(opened)
    if plot is not None:
        _draw(opened, found, plot)
    if json:
        columns = [dataclasses.asdict(each) for each in found]
        sizes = [part.size for part in opened.manifest.partitions]
        print_json({"url": opened.url, "rows": opened.rows, "size": opened.size, "columns": columns,
                    "partition_rows": list(opened.partition_rows), "partition_sizes": sizes,
                    "fingerprint": opened.fingerprint})  # fmt: skip
        return
    few, many = min(opened.partition_rows), max(opened.partition_rows)
    facts(
        [
            ("data set", opened.url),
            ("rows", f"{opened.rows:,} in {len(opened)} partitions of {few:,} to {many:,} rows"),
            ("size", size(opened.size)),
            ("fingerprint", opened.fingerprint),
        ]
    )
    echo()
    wide = max(len(each.name) for each in found)
    kinds = max(len(each.type) for each in found)
    for each in found:
        echo(f"{each.name:{wide}}  {each.type:{kinds}}  {bars(each.counts)}  {ranged(each)}")
    echo("\nsamples")
    facts([(name, _short(", ".join(map(_digits, values)))) for name, values in _listed(opened, SAMPLES).items()])
    echo("\npartitions")
    parts = opened.manifest.partitions
    facts([(part.name, f"{part.rows:,} rows, {size(part.size)}") for part in parts[:MOST_PARTITIONS]])
    if len(parts) > MOST_PARTITIONS:
        echo(f"and {len(parts) - MOST_PARTITIONS:,} more")


def bars(counts: tuple[int, ...]) -> str:
    """Return a histogram as one character per bar; a bar that is not empty is visible."""
    highest = max(counts) or 1
    return "".join(BARS[-(-count * (len(BARS) - 1) // highest)] for count in counts)


def _head(opened: Dataset, rows: int, json: bool) -> None:
    if rows < 1:
        raise UsageError(f"--rows {rows}: must be at least 1")
    listed = _listed(opened, rows)
    if json:
        print_json(listed)
        return
    for number in range(min(rows, opened.rows)):
        facts([(name, _short(str(values[number]))) for name, values in listed.items()])
        echo()


def _listed(opened: Dataset, rows: int) -> dict[str, list[Any]]:
    """Return the first rows as plain values."""
    return {name: [_plain(value) for value in values] for name, values in opened.head(rows).items()}


def _digits(value: Any) -> str:
    """Return a plain value as text, its numbers with few digits."""
    if isinstance(value, list):
        return f"[{', '.join(map(_digits, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return repr(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


def _draw(opened: Dataset, found: list[ColumnSummary], path: Path) -> None:
    from hopfleet.monitor.charts.canvas import dress, paper, save

    lines = -(-len(found) // ACROSS)
    height = 1.0 + 2.1 * lines
    figure = paper(10, height, Path(opened.url).name, [f"{opened.rows:,} rows", f"{len(opened)} partitions"], 0.5)
    for number, each in enumerate(found):
        line, place = divmod(number, ACROSS)
        axes = figure.add_axes(
            ((0.5 + 3.2 * place) / 10, 1 - (1.35 + 2.1 * line + 1.15) / height, 2.7 / 10, 1.15 / height)
        )
        filled = max((bar for bar, count in enumerate(each.counts, 1) if count), default=0)
        if filled:
            edges = [each.least + each.width * bar for bar in range(filled)]
            axes.bar(edges, each.counts[:filled], each.width, align="edge")
        axes.set_title(each.name if each.of == "values" else f"{each.name} (lengths)", fontsize=9, loc="left")
        dress(axes, "y")
    save(figure, path)
