"""The command that draws experiments: plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hopfleet.cli import completing
from hopfleet.cli.experiments import Json, Name
from hopfleet.cli.render import facts, print_json
from hopfleet.errors import UsageError
from hopfleet.store.folder import find_run

KINDS = "curves (the default), steps, gantt, parallel, importance, rungs, lineage or pareto."


def plot(
    name: Name,
    chart: Annotated[
        str | None,
        typer.Argument(metavar="[KIND]", help=KINDS, autocompletion=completing.kinds, show_default=False),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="The same as KIND.", autocompletion=completing.kinds)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            dir_okay=False,
            help="A .png, .svg or .pdf file (default: run folder).",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:MODE]",
            help="The metric, or for steps the name; for pareto two or three, e.g. latency:min.",
        ),
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="For importance: compare all trials after epoch N.")
    ] = None,
    json: Json = False,
) -> None:
    """Draw a chart of an experiment.

    The experiment may be running. With --json, print the chart's data instead of drawing it.

    Example: hopfleet plot demo parallel -o parallel.svg
    """
    from hopfleet.runs.results import Results

    if chart and kind:
        raise UsageError(f"plot {name} {chart} --kind {kind}: give one kind of chart")
    which: Any = chart or kind or "curves"
    results = Results(find_run(name))
    options = {**_metrics(which, metric or []), **({} if epoch is None else {"epoch": epoch})}
    if json:
        print_json(results.plot_data(which, **options))
        return
    results.plot(which, output, **options)
    facts([(which, output or results.folder.plots / f"{which}.png")])


def _metrics(kind: str, given: list[str]) -> dict[str, Any]:
    """Translate --metric into options of the chart."""
    if not given:
        return {}
    names, _, modes = zip(*(text.partition(":") for text in given), strict=True)
    if kind == "pareto":
        return {"metrics": list(names), **({"modes": list(modes)} if any(modes) else {})}
    if len(given) > 1 or any(modes):
        raise UsageError(
            f"--metric {' '.join(given)}: kind={kind!r} takes one name without a mode; pareto takes several"
        )
    return {"metric": names[0]}
