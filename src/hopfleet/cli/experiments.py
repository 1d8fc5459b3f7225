"""The commands that show experiments, running or finished: ls, show, best and export."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopfleet.cli import completing
from hopfleet.cli.render import command, console, echo, facts, moment, print_json, size
from hopfleet.cli.runs import (
    RunState,
    bytes_on_disk,
    checkpoint_path,
    find_trial,
    loading_code,
    state_of,
    trial_counts,
)
from hopfleet.domain.trial import TrialState
from hopfleet.errors import HopfleetError, UsageError
from hopfleet.store.folder import find_run, home, runs
from hopfleet.support.files import write_atomically
from hopfleet.support.plain import named

if TYPE_CHECKING:
    from rich.console import Console

    from hopfleet.runs.results import Results
    from hopfleet.runs.trial_result import TrialResult

LEADERS = 20
LOG_LINES, LOG_WIDTH = 20, 1000
COMPRESSIONS: Mapping[str, Any] = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zip": "zip", ".zst": "zstd"}
STATE_STYLES = {RunState.RUNNING: "cyan", RunState.FINISHED: "green", RunState.INTERRUPTED: "yellow"}

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The experiment's name, or its run folder.", autocompletion=completing.experiments
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _load(name: str) -> Results:
    from hopfleet.runs.results import Results

    return Results(find_run(name))


# --------------------------------------------------------------------------------------------------------------- ls


def ls(json: Json = False) -> None:
    """List all experiments in the home folder.

    The home folder is HOPFLEET_HOME, or ~/.hopfleet if that is not set.

    Example: hopfleet ls --json
    """
    from hopfleet.runs.results import Results

    found: list[dict[str, Any]] = []
    for folder in runs():
        try:
            found.append(_summary(Results(folder)))
        except HopfleetError as error:
            echo(f"hopfleet: skipped {folder.name}: {error}", err=True)
    if json:
        print_json(found)
    elif not found:
        echo(f"No experiments in {home()}; to create one, run: hopfleet demo")
    else:
        _print_summaries(found)


def _summary(results: Results) -> dict[str, Any]:
    leader = results.history.best()
    return {
        "name": results.name,
        "state": state_of(results.folder, results.history).value,
        "trials": trial_counts(results),
        "metric": results.history.metric,
        "best": results.history.value(leader) if leader else None,
        "best_trial": leader.id if leader else None,
        "created": results.definition["created"],
        "bytes": bytes_on_disk(results.folder),
        "folder": results.folder.path,
    }


def _print_summaries(found: list[dict[str, Any]]) -> None:
    from hopfleet.monitor.terminal.tables import NOTHING, Column, FittedTable
    from hopfleet.monitor.wording import number

    states = [row["state"] for row in found]
    trials = [", ".join(f"{count} {state}" for state, count in row["trials"].items()) or NOTHING for row in found]
    bests = [NOTHING if row["best"] is None else f"{row['metric']}={number(row['best'])}" for row in found]
    columns = [
        Column("name", [row["name"] for row in found], 0),
        Column("state", states, 1, styles=[STATE_STYLES[RunState(state)] for state in states]),
        Column("trials", trials, 3),
        Column("best", bests, 2, styles=["bold"] * len(found)),
        Column("created", [moment(row["created"]) for row in found], 4),
        Column("size", [size(row["bytes"]) for row in found], 5, "right"),
    ]
    console().print(FittedTable(columns))


# ------------------------------------------------------------------------------------------------------------- show


def show(
    name: Name,
    trial: Annotated[
        str | None,
        typer.Option(
            metavar="TRIAL",
            help="Show one trial in full, e.g. t0003 or 3.",
            show_default=False,
            autocompletion=completing.trials,
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help=f"Show all trials, not only the best {LEADERS}.")] = False,
    json: Json = False,
) -> None:
    """Show an experiment or one of its trials.

    The experiment may be running, finished or interrupted.

    Example: hopfleet show demo --trial t0003
    """
    results = _load(name)
    if trial is not None:
        found = find_trial(results, trial)
        if json:
            print_json(_trial_json(results, found))
        else:
            _print_trial(results, found)
    elif json:
        print_json({**_summary(results), **_experiment_json(results)})
    else:
        _print_experiment(results, all_)


def _experiment_json(results: Results) -> dict[str, Any]:
    history = results.history
    busy, progress = history.busy_fraction(), history.progress()
    return {
        "definition": results.definition,
        "runs": history.runs,
        "hops": history.hops,
        "elapsed": history.elapsed,
        "progress": {"done": progress.done, "planned": progress.planned, "bound": progress.bound},
        "eta": progress.eta,
        "paused": history.held,
        "waits_for": history.waits_for,
        "missing_partitions": list(history.missing),
        "missing_validation_partitions": list(history.missing_valid),
        "pareto": [trial.id for trial in history.pareto()],
        "leaderboard": [_trial_json(results, results[trial.id], brief=True) for trial in history.leaderboard()],
        "workers": [
            {
                "name": worker.name,
                "device": worker.device,
                "units": worker.units,
                "busy": busy[worker.name],
                "lost": worker.lost is not None,
            }
            for worker in history.workers.values()
        ],
    }


def _trial_json(results: Results, trial: TrialResult, *, brief: bool = False) -> dict[str, Any]:
    facts = {
        "trial": trial.id,
        "state": trial.state.value,
        "config": named(trial.config),
        "chosen": named(trial.chosen),
        "origin": trial.origin,
        "parent": trial.parent,
        "epochs_done": results.history.trials[trial.id].epochs_trained,
        "best_epoch": trial.best_epoch,
        "metrics": trial.metrics,
        "error": results.history.trials[trial.id].error,
    }
    if brief:
        return facts
    return {
        **facts,
        "traceback": results.history.trials[trial.id].traceback or None,
        "reason": results.history.trials[trial.id].reason or None,
        "seed": trial.seed,
        "history": trial.history,
        "logged": trial.logged,
        "visits": trial.visits,
        "checkpoint": checkpoint_path(trial),
        "log": trial.log(),
    }


def _print_experiment(results: Results, every: bool) -> None:
    from rich.text import Text

    from hopfleet.monitor.terminal.tables import header, leaderboard_table, workers_table
    from hopfleet.monitor.wording import plural

    screen, history = console(), results.history
    state = state_of(results.folder, results.history)
    screen.print(header(history))
    created = f"  created {moment(results.definition['created'])}"
    screen.print(Text.assemble((state.value, STATE_STYLES[state]), created))
    screen.print()
    if not history.trials:
        screen.print("No trial has started yet.")
    else:
        limit = len(history.trials) if every else LEADERS
        screen.print(leaderboard_table(history, limit))
        if limit < len(history.trials):
            screen.print(f"{plural(len(history.trials) - limit, 'more trial')}; --all shows all of them", style="dim")
        screen.print()
    if history.workers:
        screen.print(workers_table(history))
        screen.print()
    _print_failures(screen, results)
    rows: list[tuple[str, object]] = [("run folder", results.folder.path)]
    if state is RunState.INTERRUPTED:
        rows.append(("continue", command("resume", results.folder.handle)))
    facts(rows)


def _print_failures(screen: Console, results: Results) -> None:
    from rich.text import Text

    failed = [trial for trial in results.history.trials.values() if trial.state is TrialState.FAILED]
    if not failed:
        return
    for trial in failed:
        line = Text.assemble((f"{trial.id} failed  ", "red"), trial.reason.splitlines()[0] if trial.reason else "")
        screen.print(line, no_wrap=True, overflow="ellipsis")
    screen.print(f"{command('show', results.folder.handle, '--trial', failed[0].id)} shows the traceback", style="dim")
    screen.print()


def _print_trial(results: Results, trial: TrialResult) -> None:
    from rich.text import Text

    from hopfleet.monitor.terminal.tables import STATE_STYLES as TRIAL_STYLES
    from hopfleet.monitor.wording import flatten

    screen, record = console(), results.history.trials[trial.id]
    screen.print(
        Text.assemble(
            (trial.id, "bold"),
            f" of {results.name}  ",
            (trial.state.value, TRIAL_STYLES[trial.state]),
            f"  {record.epochs_trained}/{record.epochs} epochs",
        )
    )
    screen.print()
    facts(
        [
            *((key, value) for key, value in flatten(trial.chosen).items()),
            *([("config", trial.config)] if record.chosen else []),
            ("seed", trial.seed),
            *([("from", f"{record.parent}, {_how(trial)}")] if record.parent else []),
            ("checkpoint", checkpoint_path(trial) or "none"),
            *((f"{name} by step", _last(points)) for name, points in trial.logged.items()),
            *([("why it ended", record.reason)] if record.reason else []),
        ]
    )
    if trial.history:
        screen.print()
        screen.print(_epochs_table(trial))
    if record.traceback:
        screen.print()
        echo(record.traceback.rstrip())
    log = trial.log().splitlines()
    if log:
        screen.print()
        left_out = f" (the last {LOG_LINES} lines of {len(log)})" if len(log) > LOG_LINES else ""
        screen.print(Text.assemble(("log", "bold"), left_out))
        echo("\n".join(_shortened(line) for line in log[-LOG_LINES:]))


def _shortened(line: str) -> str:
    return line if len(line) <= LOG_WIDTH else f"{line[:LOG_WIDTH]}... ({len(line):,} characters)"


def _last(points: list[tuple[int, float]]) -> str:
    from hopfleet.monitor.wording import number, plural

    return f"{number(points[-1][1])} in step {points[-1][0]:,}, {plural(len(points), 'value')} logged"


def _how(trial: TrialResult) -> str:
    return f"warm, from epoch {trial.begins}" if trial.begins else "from scratch"


def _epochs_table(trial: TrialResult) -> Any:
    """Return a table with the metrics of each epoch and the partitions in the order visited."""
    from hopfleet.monitor.terminal.tables import NOTHING, Column, FittedTable
    from hopfleet.monitor.wording import number

    epochs = trial.history
    names = list(dict.fromkeys(name for row in epochs for name in row if name != "epoch"))
    styles = ["bold green" if row["epoch"] == trial.best_epoch else "" for row in epochs]
    visits = [" ".join(map(str, order)) for order in trial.visits[: len(epochs)]]
    visits += [NOTHING] * (len(epochs) - len(visits))
    return FittedTable(
        [
            Column("epoch", [str(row["epoch"]) for row in epochs], 0, "right", styles),
            *(
                Column(name, [number(row[name]) if name in row else NOTHING for row in epochs], 1 + i, "right", styles)
                for i, name in enumerate(names)
            ),
            Column("partitions visited", visits, 100),
        ]
    )


# ------------------------------------------------------------------------------------------------------------- best


def best(name: Name, json: Json = False) -> None:
    """Show the best model and how to load it.

    Example: hopfleet best demo
    """
    from hopfleet.monitor.wording import flatten, number

    results = _load(name)
    trial, code = results.best, loading_code(results)
    if json:
        print_json({**_trial_json(results, trial), "python": code})
        return
    metrics = "  ".join(f"{key}={number(value)}" for key, value in trial.metrics.items())
    values = "\n".join(f"{key}={value}" for key, value in flatten(trial.chosen).items())
    function = bool(results.history.trials[trial.id].chosen)
    facts(
        [
            ("trial", f"{trial.id} of {results.name}"),
            ("metrics", f"{metrics}  at epoch {trial.best_epoch}"),
            *([("chosen", values), ("config", trial.config)] if function else [("config", values)]),
            ("checkpoint", checkpoint_path(trial) or "none"),
            ("python", code),
        ]
    )


# ----------------------------------------------------------------------------------------------------------- export


def export(
    name: Name,
    csv: Annotated[str | None, typer.Option(metavar="FILE", help="Write CSV; - means standard output.")] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write Parquet.")] = None,
    epochs: Annotated[bool, typer.Option("--epochs", help="Write one row per trial and epoch.")] = False,
    steps: Annotated[bool, typer.Option("--steps", help="Write one row per value that a step logged.")] = False,
) -> None:
    """Write the table of trials to a file.

    Each row has a trial's state, its metrics at its best epoch, and its configuration. Files and pipes get every
    text as it is; a terminal gets control characters as visible escapes. Needs pandas: pip install 'hopfleet[pandas]'

    Example: hopfleet export demo --csv trials.csv
    """
    if csv is None and parquet is None:
        raise UsageError("no file given; use --csv FILE (- means standard output) or --parquet FILE")
    if epochs and steps:
        raise UsageError("--epochs --steps: give one of them")
    from hopfleet.monitor.frame import dataframe, epochs_frame, steps_frame

    results = _load(name)
    frame = (epochs_frame if epochs else steps_frame if steps else dataframe)(results.history)
    if csv == "-" and sys.stdout.isatty():
        echo(frame.to_csv(index=False).rstrip("\n"))
    elif csv == "-":
        frame.to_csv(sys.stdout, index=False)
    elif csv is not None:
        compression = COMPRESSIONS.get(Path(csv).suffix)
        write_atomically(
            Path(csv), lambda place: frame.to_csv(place, index=False, compression=compression), durable=False
        )
    if parquet is not None:
        write_atomically(parquet, lambda place: _uniform(frame).to_parquet(place, index=False), durable=False)
    for path in (csv, parquet):
        if path not in (None, "-"):
            echo(f"{len(frame)} rows written to {path}", err=True)


def _uniform(frame: Any) -> Any:
    """Convert columns of mixed types to text, because a Parquet column has one type."""
    frame = frame.copy()
    for column in frame.columns:
        kinds = {type(value) for value in frame[column] if value is not None and value == value}
        if len(kinds) > 1 and kinds != {int, float}:
            frame[column] = [None if value is None else str(value) for value in frame[column]]
    return frame
