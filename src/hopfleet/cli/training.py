"""The commands that train: demo, run and resume."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopfleet.cli.render import command, console, facts, print_json
from hopfleet.cli.runs import checkpoint_path
from hopfleet.domain.trial import TrialState
from hopfleet.errors import ExperimentExists, Interrupted, MissingExtra, UsageError
from hopfleet.store.folder import RunFolder, find_run

if TYPE_CHECKING:
    from hopfleet.experiment.experiment import Experiment
    from hopfleet.runs.results import Results

Workers = Annotated[
    str | None, typer.Option(metavar="N", help="Worker processes, or 'auto' for as many as this machine carries.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only the outcome.")]


def demo(
    workers: Workers = "2",
    name: Annotated[
        str, typer.Option(help="The experiment's name. An earlier demo of that name is replaced.")
    ] = "demo",
    folder: Annotated[
        Path | None, typer.Option(file_okay=False, help="The run folder, if it is not to lie in the home folder.")
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Select a model that reads handwritten digits.

    Four networks, 16 trials, 2 workers, about half a minute; then a leaderboard, the best model and two pictures.
    Needs PyTorch, scikit-learn and matplotlib: pip install 'hopfleet[demo]'

    Example: hopfleet demo --workers 2
    """
    experiment = _demo_experiment(name, folder, _workers(workers))
    place = experiment.folder
    if place.exists and place.definition().get("origin", {}).get("how") != "demo":
        raise ExperimentExists(f"--name {name}: is an experiment of yours; choose another --name for the demo")
    if not quiet:
        typer.echo(
            "16 trials: four networks, two learning rates, two batch sizes.\n"
            "They train on 1,437 images of handwritten digits in 4 partitions.\n"
            "Models hop from worker to worker, and each trains as if it were alone.\n"
        )
    return _report(_fit(experiment, overwrite=True, quiet=quiet), quiet)


def run(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py[:VARIABLE]", help="The file, and the variable if it has several.")
    ],
    workers: Workers = None,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where workers live: local, inline (in this process), ...")
    ] = None,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="Which unit runs next: auto, random, ...")] = None,
    unit_timeout: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="When a unit counts as hung: seconds, 'auto' by estimates, or 'none'."),
    ] = None,
    fuse: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="Train trials together: exact (the same bits), fast (rounding differs), off."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an experiment of the same name, with all its results.")
    ] = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Train nothing; say how long it will take and what it will need.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="With --preview: print JSON, for other programs.")] = False,
    gantt: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="With --preview: draw the predicted schedule, a .png, .svg or .pdf file."),
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Run the experiment that a Python file defines.

    The file makes a hop.Experiment and need not call fit(). What stands below if __name__ == "__main__" is left out.
    The options take the place of what the file says. An experiment that was interrupted goes on.

    Example: hopfleet run digits.py --workers 4
    """
    from hopfleet.cli.scripts import load_experiment, load_for_preview, split_target

    if not preview and (json or gantt is not None):
        raise UsageError(f"{'--json' if json else '--gantt'}: goes with --preview only; {command('show')} shows runs")
    file, variable = split_target(target)
    overrides: dict[str, Any] = {
        "workers": _workers(workers),
        "backend": backend,
        "policy": policy,
        "unit_timeout": _seconds(unit_timeout),
        "fuse": fuse,
    }
    if preview:
        experiment = load_for_preview(file, variable)
        experiment.use(**overrides)
        return _preview(experiment, json=json, gantt=gantt, quiet=quiet)
    experiment, variable = load_experiment(file, variable)
    if experiment.results is None:
        _start(experiment, _origin(file, variable, overrides), overwrite=overwrite, quiet=quiet)
    assert experiment.results is not None
    return _report(experiment.results, quiet)


def _preview(experiment: Experiment, *, json: bool, gantt: Path | None, quiet: bool) -> int:
    found = experiment.preview(quiet=quiet)
    if gantt is not None:
        found.gantt(gantt)
    if json:
        print_json(found.as_json())
    else:
        facts([*found.facts(), *([("drawn", str(gantt))] if gantt is not None else [])])
    return 0


def resume(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The experiment's name, or its run folder.")],
    trial: Annotated[
        str | None, typer.Argument(metavar="[TRIAL]", help="A trial that is to go on.", show_default=False)
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Train the trial until so many epochs in all.", show_default=False),
    ] = None,
) -> int:
    """Go on with an interrupted or paused experiment, or with one trial.

    Whether it was interrupted or killed, it goes on where it stopped, to the same results. The file that defined it
    runs again, as it was started then. Of an experiment that a notebook defined, call fit() there again. A finished
    experiment goes on if wishes wait for it, e.g. after hopfleet extend. One that is running and paused proceeds.

    With a trial: one that was stopped, paused or completed trains on.

    Example: hopfleet resume digits-20260115-093012
    """
    from hopfleet.runs.control import control

    if trial is not None:
        typer.echo(control(name).resume(trial, epochs))
        return 0
    if epochs is not None:
        raise UsageError(f"--epochs {epochs}: say which trial; hopfleet extend --epochs lets all train longer")
    folder = find_run(name)
    results = _results(folder)
    if folder.running and results.history.held:
        typer.echo(control(name).proceed())
        return 0
    if results.finished and not _requested(folder):
        typer.echo(f"{results.name} is finished already.\n")
        _report(results, quiet=True)
        return 0
    if folder.running:
        raise ExperimentExists(f"{name}: is running in another process; watch it with {command('show', folder.handle)}")
    return _report(*_go_on(folder, results))


def _go_on(folder: RunFolder, results: Results) -> tuple[Results, bool]:
    """Resume in the way that the experiment was started. Returns its results, and whether nothing has shown them."""
    origin = results.definition.get("origin") or {}
    how = origin.get("how")
    if how == "demo":
        experiment = _demo_experiment(results.name, folder.path, origin["workers"])
        return _fit(experiment), False
    if how not in ("run", "script"):
        raise UsageError(
            f"{results.name}: was not started from a file, so it cannot be made again here; "
            "call fit() again where it was defined"
        )
    from hopfleet.cli.scripts import enter, load_experiment, run_script

    file = Path(origin["file"])
    if not file.is_file():
        raise UsageError(f"{results.name}: the file that defined it, {file}, is gone; put it back")
    enter(origin["cwd"])
    if how == "run":
        experiment, _ = load_experiment(file, origin["variable"], resumed=results.name)
        if experiment.folder.path != folder.path:
            raise UsageError(f"{results.name}: {file} defines {experiment.name} now; give it its old name")
        return _start(experiment, origin), False
    with _resumable(folder):
        run_script(file, origin["arguments"], resumed=results.name)
    if not results.refresh().finished or _requested(folder):
        raise UsageError(f"{results.name}: {file} ran, but did not go on with it; does it define it no more?")
    return results, True


def _start(experiment: Experiment, origin: dict[str, Any], *, overwrite: bool = False, quiet: bool = False) -> Results:
    """Fit the experiment of a file, with the options that were given on the command line."""
    folder = experiment.folder
    if folder.exists and not overwrite and _results(folder).finished and not _requested(folder):
        show = command("show", folder.handle)
        raise ExperimentExists(f"{experiment.name}: is finished already; {show} shows it, --overwrite replaces it")
    experiment.use(**origin["overrides"])
    experiment.origin = origin
    return _fit(experiment, overwrite=overwrite, quiet=quiet)


def _fit(experiment: Experiment, *, overwrite: bool = False, quiet: bool = False) -> Results:
    with _resumable(experiment.folder):
        return experiment.fit(overwrite=overwrite, quiet=quiet)


@contextlib.contextmanager
def _resumable(folder: RunFolder) -> Iterator[None]:
    """Who stops a run at once hears as well that it can go on."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        if not folder.journal_file.exists():
            raise
        again = command("resume", folder.handle)
        raise Interrupted(f"stopped at once; what had been finished is kept, and it can go on: {again}") from error


def _origin(file: Path, variable: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """How to start it once more, in the form that ``experiment.json`` keeps and ``resume`` reads."""
    given = {name: value for name, value in overrides.items() if value is not None}
    return {"how": "run", "file": str(file), "variable": variable, "cwd": str(Path.cwd()), "overrides": given}


def _demo_experiment(name: str, folder: Path | None, workers: int | str | None) -> Experiment:
    if any(importlib.util.find_spec(package) is None for package in ("torch", "sklearn", "matplotlib")):
        raise MissingExtra("PyTorch, scikit-learn and matplotlib", "demo")
    from hopfleet import demo

    workers = "auto" if workers is None else workers
    experiment = demo.experiment(name=name, folder=folder, workers=workers)
    experiment.origin = {"how": "demo", "workers": workers}
    return experiment


def _workers(text: str | None) -> int | str | None:
    """A count, or the word as it is: the experiment knows which words there are."""
    return int(text) if text is not None and text.lstrip("-").isdecimal() else text


def _seconds(text: str | None) -> float | str | None:
    """A number, or the word as it is."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _requested(folder: RunFolder) -> bool:
    """Whether wishes wait for the next run."""
    from hopfleet.store.journal import Journal

    with contextlib.closing(Journal(folder.journal_file)) as journal:
        return bool(journal.requests())


def _results(folder: RunFolder) -> Results:
    from hopfleet.runs.results import Results

    return Results(folder)


# ------------------------------------------------------------------------------------------------------ the outcome


def _report(results: Results, quiet: bool) -> int:
    """Say what came of it, where it lies and what to do with it. Returns the exit code."""
    _show_leaderboard(results, quiet)
    leader, handle = results.history.best(), results.folder.handle
    rows: list[tuple[str, object]] = [("run folder", results.folder.path)]
    if leader is not None:
        rows.append(("best model", checkpoint_path(results[leader.id]) or "none was saved"))
    if results.definition["origin"].get("how") == "demo":
        rows += _pictures(results)
    rows.append(("next", _next_commands(handle, leader.id if leader is not None else None)))
    facts(rows)
    failed = [trial.id for trial in results.trials if trial.state is TrialState.FAILED]
    if failed:
        typer.echo(
            f"hopfleet: {len(failed)} of {len(results.trials)} trials failed; "
            f"{command('show', handle, '--trial', failed[0])} says why",
            err=True,
        )
    return 1 if failed else 0


def _pictures(results: Results) -> list[tuple[str, object]]:
    results.plot()
    results.gantt()
    plots = results.folder.plots
    return [("learning curves", plots / "curves.png"), ("who did what when", plots / "gantt.png")]


def _next_commands(handle: str, leader: str | None) -> str:
    """Commands to try, each with what it does."""
    commands = [(command("show", handle), "all trials, workers and errors")]
    if leader is not None:
        commands += [
            (command("show", handle, "--trial", leader), "the best trial, epoch by epoch"),
            (command("best", handle), "the Python that loads its model"),
        ]
    width = max(len(line) for line, _ in commands)
    return "\n".join(f"{line.ljust(width)}  # {purpose}" for line, purpose in commands)


def _show_leaderboard(results: Results, quiet: bool) -> None:
    """The live view leaves its last table on a terminal, so it is shown where there was none."""
    from hopfleet.monitor.terminal.tables import leaderboard_table

    if not quiet and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        typer.echo()
        return
    screen = console()
    if not quiet:
        screen.print()
    screen.print(leaderboard_table(results.history, 10))
    screen.print()
