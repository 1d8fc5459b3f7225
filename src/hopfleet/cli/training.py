"""The commands that train: demo, run and resume."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopfleet.cli import completing
from hopfleet.cli.experiments import Name
from hopfleet.cli.render import command, console, echo, facts, json_alone, print_json
from hopfleet.cli.runs import checkpoint_path
from hopfleet.domain.trial import TrialState
from hopfleet.errors import ExperimentExists, MissingExtra, TaskError, UsageError
from hopfleet.store.folder import RunFolder, check_trusted, find_run

if TYPE_CHECKING:
    from hopfleet.experiment.experiment import Experiment
    from hopfleet.runs.results import Results

Workers = Annotated[
    str | None, typer.Option(metavar="N", help="Number of worker processes, or 'auto' to suit this machine.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show only the result, no progress.")]


def demo(
    workers: Workers = "2",
    name: Annotated[str, typer.Option(help="The experiment's name; replaces an earlier demo of that name.")] = "demo",
    folder: Annotated[
        Path | None, typer.Option(file_okay=False, help="The run folder; by default in the home folder.")
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Select a model that reads handwritten digits.

    Trains 16 trials of four networks on 2 workers in about half a minute, then shows a leaderboard, the best model
    and two charts. Needs PyTorch, scikit-learn and matplotlib: pip install 'hopfleet[demo]'

    Example: hopfleet demo --workers 2
    """
    experiment = _demo_experiment(name, folder, _workers(workers))
    place = experiment.folder
    if place.exists and place.definition().get("origin", {}).get("how") != "demo":
        raise ExperimentExists(f"--name {name}: is not a demo; choose another --name for the demo")
    if not quiet:
        echo(
            "16 trials: four networks, two learning rates, two batch sizes.\n"
            "They train on 1,437 images of handwritten digits in 4 partitions.\n"
            "Models hop from worker to worker, and each trains as if it were alone.\n"
        )
    return _report(experiment.fit(overwrite=True, quiet=quiet), quiet)


def run(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py[:VARIABLE]", help="The file, and the variable if there are several.")
    ],
    workers: Workers = None,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where workers run: local, inline (in this process), ...")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="How the next unit is chosen: auto, random, ...")
    ] = None,
    unit_timeout: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="When a unit counts as hung: seconds, 'auto' (by estimates) or 'none'."),
    ] = None,
    fuse: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="Train trials together: exact (same bits), fast (rounding differs), off."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an experiment of the same name and all its results.")
    ] = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Predict duration, disk and memory without training.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Try one configuration per architecture in this process, without a run.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="With --preview: print JSON.")] = False,
    gantt: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="With --preview: draw the predicted schedule (.png, .svg or .pdf)."),
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Run the experiment defined in a Python file.

    The file assigns a hop.Experiment to a variable and need not call fit(). Code below if __name__ == "__main__" does
    not run. Options override the file. An interrupted experiment continues where it stopped; a finished one is only
    shown.

    Example: hopfleet run digits.py --workers 4
    """
    from hopfleet.cli.scripts import load_for_preview, split_target

    if check and preview:
        raise UsageError("--check: cannot be combined with --preview; run one after the other")
    if not preview and (json or gantt is not None):
        raise UsageError(f"{'--json' if json else '--gantt'}: needs --preview; {command('show')} shows a finished run")
    file, variable = split_target(target)
    overrides: dict[str, Any] = {
        "workers": _workers(workers),
        "backend": backend,
        "policy": policy,
        "unit_timeout": _seconds(unit_timeout),
        "fuse": fuse,
    }
    if preview or check:
        with json_alone(json):
            experiment = load_for_preview(file, variable)
        experiment.use(**overrides)
        if check:
            return _check(experiment, quiet=quiet)
        return _preview(experiment, json=json, gantt=gantt, quiet=quiet)
    return train_with(file, variable, overrides, overwrite=overwrite, quiet=quiet)


def train_with(
    file: Path,
    variable: str,
    overrides: Mapping[str, Any],
    *,
    team: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """Train the experiment of a file with other settings, and report its results. Return the exit code.

    ``team`` holds arguments of ``KeepsTo.keep_to``: the nodes of a planned team.
    """
    from hopfleet.cli.scripts import load_experiment

    def described(variable: str) -> dict[str, Any]:
        return _origin(file, variable, overrides) | ({} if team is None else {"team": dict(team)})

    def adjust(found: Experiment) -> tuple[bool, bool]:
        _adjust(found, described(variable))
        return overwrite and found.results is None, quiet

    experiment, variable = load_experiment(file, variable, adjust=adjust)
    if experiment.results is None:
        origin = described(variable)
        _start(experiment, origin, overwrite=overwrite, quiet=quiet)
    assert experiment.results is not None
    return _report(experiment.results, quiet)


def _check(experiment: Experiment, *, quiet: bool) -> int:
    from hopfleet.monitor.wording import plural

    try:
        checked = experiment.check(quiet=quiet)
    except TaskError as error:
        if error.__cause__ is not None:
            echo("".join(traceback.format_exception(error.__cause__)).rstrip(), err=True)
        raise
    count = plural(len(checked), "configuration")
    echo(f"{experiment.name}: {count} built, trained, evaluated, saved and loaded without a mistake")
    return 0


def _preview(experiment: Experiment, *, json: bool, gantt: Path | None, quiet: bool) -> int:
    with json_alone(json):
        found = experiment.preview(quiet=quiet)
    if gantt is not None:
        found.gantt(gantt)
    if json:
        print_json(found.as_json())
    else:
        facts([*found.facts(), *([("drawn", str(gantt))] if gantt is not None else [])])
    return 0


def resume(
    name: Name,
    trial: Annotated[
        str | None,
        typer.Argument(
            metavar="TRIAL", help="Continue only this trial.", show_default=False, autocompletion=completing.trials
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Train the trial up to N epochs in total.", show_default=False),
    ] = None,
) -> int:
    """Continue an interrupted or paused experiment, or one trial.

    An interrupted or killed experiment continues where it stopped, with the same results as an uninterrupted run. The
    script that defined the experiment runs again, with the code after fit(); in a notebook, call fit() again instead. A
    finished experiment continues if requests are queued for it, e.g. after hopfleet extend. A paused one proceeds.

    With TRIAL, a stopped, paused or completed trial continues.

    Example: hopfleet resume digits-20260115-093012-7f3a
    """
    from hopfleet.runs.control import control

    if trial is not None:
        echo(control(name).resume(trial, epochs))
        return 0
    if epochs is not None:
        raise UsageError(f"--epochs {epochs}: needs a trial; hopfleet extend adds epochs to all trials")
    folder = find_run(name)
    results = _results(folder)
    if folder.running and results.history.held:
        echo(control(name).proceed())
        return 0
    if results.finished and not _requested(folder):
        echo(f"{results.name} is already finished.\n")
        _report(results, quiet=True)
        return 0
    if folder.running:
        raise ExperimentExists(f"{name}: is running in another process; {command('show', folder.handle)} shows it")
    return _report(*_go_on(folder, results))


def _go_on(folder: RunFolder, results: Results) -> tuple[Results, bool]:
    """Resume in the way that the experiment was started. Return its results, and whether to show them."""
    check_trusted(folder)
    origin = results.definition.get("origin") or {}
    how = origin.get("how")
    if how == "demo":
        experiment = _demo_experiment(results.name, folder.path, origin["workers"])
        return experiment.fit(), False
    if how not in ("run", "script"):
        raise UsageError(
            f"{results.name}: was not started from a file and cannot be resumed here; "
            "call fit() again where the experiment is defined"
        )
    from hopfleet.cli.scripts import enter, load_experiment, run_script

    file = Path(origin["file"])
    if not file.is_file():
        raise UsageError(f"{results.name}: the file that defined it is missing; restore {file}")
    enter(origin["cwd"])
    if how == "run":

        def adjust(found: Experiment) -> tuple[bool, bool]:
            _adjust(found, origin)
            return False, False

        experiment, _ = load_experiment(file, origin["variable"], resumed=results.name, adjust=adjust)
        if experiment.folder.path != folder.path:
            raise UsageError(f"{results.name}: {file} now defines {experiment.name}; restore its old name")
        if experiment.results is not None:
            return experiment.results, True
        return _start(experiment, origin), False
    echo(f"hopfleet: running {file} again from its top: fit() continues, and the code after it runs, too", err=True)
    run_script(file, origin["arguments"], resumed=results.name)
    if not results.refresh().finished or _requested(folder):
        raise UsageError(f"{results.name}: {file} ran but did not continue it; restore its definition")
    return results, True


def keep_to_nodes(experiment: Experiment, team: Mapping[str, Any]) -> None:
    """Have the members of the experiment's only team on the nodes of a plan, if its backend still has such nodes."""
    from hopfleet.backends.base import KeepsTo

    backend = experiment.definition.find_backend()
    if isinstance(backend, KeepsTo):
        backend.keep_to(**team)
        experiment.use(backend=backend)


def _set_origin(experiment: Experiment, origin: dict[str, Any]) -> None:
    """Set how ``hopfleet resume`` makes the experiment again."""
    experiment.definition = dataclasses.replace(experiment.definition, origin=origin)


def _adjust(experiment: Experiment, origin: dict[str, Any]) -> None:
    """Give an experiment the options of the command line."""
    experiment.use(**origin["overrides"])
    if team := origin.get("team"):
        keep_to_nodes(experiment, team)
    _set_origin(experiment, origin)


def _start(experiment: Experiment, origin: dict[str, Any], *, overwrite: bool = False, quiet: bool = False) -> Results:
    """Fit a file's experiment with the options of the command line."""
    _adjust(experiment, origin)
    folder = experiment.folder
    if not overwrite and folder.exists and _results(folder).finished and not _requested(folder):
        results = experiment.fit(quiet=True)
        echo(f"{experiment.name} is already finished: nothing was trained; --overwrite starts over\n")
        return results
    return experiment.fit(overwrite=overwrite, quiet=quiet)


def _origin(file: Path, variable: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Describe how the experiment was started, for ``experiment.json`` and ``resume``."""
    given = {name: value for name, value in overrides.items() if value is not None}
    return {"how": "run", "file": str(file), "variable": variable, "cwd": str(Path.cwd()), "overrides": given}


def _demo_experiment(name: str, folder: Path | None, workers: Any) -> Experiment:
    if any(importlib.util.find_spec(package) is None for package in ("torch", "sklearn", "matplotlib")):
        raise MissingExtra("PyTorch, scikit-learn and matplotlib", "demo")
    from hopfleet import demo

    workers = "auto" if workers is None else workers
    experiment = demo.experiment(name=name, folder=folder, workers=workers)
    _set_origin(experiment, {"how": "demo", "workers": workers})
    return experiment


def _workers(text: str | None) -> Any:
    """Return a count, or the text unchanged: the experiment checks which words are valid."""
    return int(text) if text is not None and text.lstrip("-").isdecimal() else text


def _seconds(text: str | None) -> float | str | None:
    """Return a number, or the text unchanged."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _requested(folder: RunFolder) -> bool:
    """Whether requests are queued for the next run."""
    from hopfleet.store.local import open_journal

    with contextlib.closing(open_journal(folder)) as journal:
        return bool(journal.requests.pending())


def _results(folder: RunFolder) -> Results:
    from hopfleet.runs.results import Results

    return Results(folder)


# ------------------------------------------------------------------------------------------------------ the result


def _report(results: Results, quiet: bool) -> int:
    """Print the leaderboard, where the results are and which commands to try next. Return the exit code."""
    _show_leaderboard(results, quiet)
    leader, handle = results.history.best(), results.folder.handle
    rows: list[tuple[str, object]] = [("run folder", results.folder.path)]
    if leader is not None:
        rows.append(("best model", checkpoint_path(results[leader.id]) or "none saved"))
    if results.definition["origin"].get("how") == "demo":
        rows += _pictures(results)
    rows.append(("next", _next_commands(handle, leader.id if leader is not None else None)))
    facts(rows)
    failed = [trial.id for trial in results.trials if trial.state is TrialState.FAILED]
    if failed:
        echo(
            f"hopfleet: {len(failed)} of {len(results.trials)} trials failed; "
            f"{command('show', handle, '--trial', failed[0])} shows the reason",
            err=True,
        )
    return 1 if failed else 0


def _pictures(results: Results) -> list[tuple[str, object]]:
    results.plot()
    results.gantt()
    plots = results.folder.plots
    return [("learning curves", plots / "curves.png"), ("worker schedule", plots / "gantt.png")]


def _next_commands(handle: str, leader: str | None) -> str:
    """Return commands to try next, each with a comment."""
    commands = [(command("show", handle), "all trials, workers and errors")]
    if leader is not None:
        commands += [
            (command("show", handle, "--trial", leader), "the best trial, epoch by epoch"),
            (command("best", handle), "the Python code that loads its model"),
        ]
    width = max(len(line) for line, _ in commands)
    return "\n".join(f"{line.ljust(width)}  # {purpose}" for line, purpose in commands)


def _show_leaderboard(results: Results, quiet: bool) -> None:
    """Print the leaderboard, unless the live view has left its last table on the terminal."""
    from hopfleet.monitor.terminal.tables import leaderboard_table

    if not quiet and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        echo()
        return
    screen = console()
    if not quiet:
        screen.print()
    screen.print(leaderboard_table(results.history, 10))
    screen.print()
