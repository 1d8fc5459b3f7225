"""The command that tries strategies on the devices at hand: profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hopfleet.cli.render import console, echo, json_alone, print_json, size
from hopfleet.errors import UsageError

if TYPE_CHECKING:
    from hopfleet.forecast.trial_runs import Choice, TrialRun

WIDTH = 60
"""Columns for a configuration."""


def profile(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py[:VARIABLE]", help="The file, and the variable if there are several.")
    ],
    parallelism: Annotated[
        list[str] | None,
        typer.Option(metavar="STRATEGY:N", help="A strategy and its devices; may be repeated (default: ddp:2)."),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(metavar="N", help="Devices to choose for; by default those of this machine.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(metavar="N", help="Trials to choose for; by default those of the search.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Try strategies for teams of devices on a few mini-batches.

    Trains one configuration of each class (those that differ in more than numbers) on one device and with each
    strategy, and tells which strategy to take: the time of a batch, rows per second, memory, and why. Rates on more
    devices than were tried are extrapolated. Nothing is left behind.

    Example: hopfleet profile digits.py --parallelism ddp:2 --parallelism fsdp:2
    """
    from hopfleet.cli.scripts import load_for_preview, split_target
    from hopfleet.domain.placement import SINGLE
    from hopfleet.experiment.arguments import parallelism as shapes_of
    from hopfleet.experiment.previewing import scratch_folder
    from hopfleet.experiment.trial_runs import device_count, run_trials
    from hopfleet.forecast.preview import slow
    from hopfleet.forecast.trial_runs import choose

    for name, given in (("--devices", devices), ("--trials", trials)):
        if given is not None and given < 1:
            raise UsageError(f"{name}={given}: must be at least 1")
    with json_alone(json):
        definition = load_for_preview(*split_target(target)).definition
        shapes = dict.fromkeys([SINGLE, *shapes_of(parallelism or ["ddp:2"], definition.task)])
        with scratch_folder(definition) as place, slow(quiet=json, what="profile") as tell:
            runs = list(run_trials(definition, place, list(shapes), tell))
    found = choose(runs, trials=trials or definition.trials, devices=devices or device_count(definition))
    if json:
        print_json({"runs": [run.as_json() for run in runs], "choices": [_choice_json(choice) for choice in found]})
    else:
        _report(runs, found)
    return 0 if all(choice.shape is not None for choice in found) else 1


def _report(runs: Sequence[TrialRun], choices: Sequence[Choice]) -> None:
    from rich.table import Table

    from hopfleet.monitor.wording import describe, milliseconds

    columns = ("configuration", "strategy", "a batch", "rows/s", "memory")
    rows = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for run in runs:
        figures = [milliseconds(run.seconds_per_batch), f"{run.rows_per_second:,.0f}", size(run.memory)]
        told = figures if run.rows_per_second else [run.failure]
        rows.add_row(describe(run.config, list(run.config), WIDTH), str(run.shape), *told)
    console().print(rows)
    for choice in choices:
        echo()
        name = describe(choice.config, list(choice.config), WIDTH)
        echo(f"{name}: {choice.shape or 'none'} ({choice.why})")


def _choice_json(choice: Choice) -> dict[str, object]:
    return {
        "config": dict(choice.config),
        "parallelism": None if choice.shape is None else str(choice.shape),
        "rows_per_second": choice.rows_per_second,
        "why": choice.why,
    }
