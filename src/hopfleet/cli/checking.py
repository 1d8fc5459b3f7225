"""The commands that check and repair experiments: verify, recover and replay."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopfleet.cli import completing
from hopfleet.cli.experiments import Json, Name
from hopfleet.cli.render import console, echo, facts, json_alone, print_json
from hopfleet.cli.runs import find_trial
from hopfleet.errors import UsageError
from hopfleet.store.folder import check_trusted, find_damaged, find_run

if TYPE_CHECKING:
    from hopfleet.clients.replay import Replay, Replayed
    from hopfleet.frameworks.base import Task
    from hopfleet.runs.results import Results
    from hopfleet.runs.verify import Verdict

SHOWN = 12
"""Characters of a SHA-256 to print; enough to tell models apart."""

STYLES = {"equal": "green", "different": "bold red", "failed": "red", "skipped": "dim"}


Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Number of worker processes; by default chosen to suit this machine.", show_default=False
    ),
]
WhereWorkersRun = Annotated[
    str, typer.Option(metavar="NAME", help="Where workers run: local, or inline (in this process).")
]


def verify(name: Name, json: Json = False) -> int:
    """Check a run folder against its journal.

    Checks the journal against the invariants, all models and the data against their SHA-256, and the folder's
    permissions. Changes nothing; the experiment may be running. The exit code is 1 if a fault is found.

    Example: hopfleet verify demo
    """
    from hopfleet.forecast.preview import slow
    from hopfleet.runs.verify import verify as check

    folder = find_run(name)
    with slow(quiet=False, what="verify") as tell:
        verdict = check(folder, tell)
    if json:
        print_json(_verdict_json(folder.name, verdict))
    else:
        _print_verdict(verdict)
    return 0 if verdict.ok else 1


def _verdict_json(name: str, verdict: Verdict) -> dict[str, object]:
    faults = [
        {"part": fault.part, "where": fault.where, "problem": fault.problem, "remedy": fault.remedy}
        for fault in verdict.faults
    ]
    return {"name": name, "ok": verdict.ok, "checked": verdict.checked, "faults": faults, "notes": verdict.notes}


def _print_verdict(verdict: Verdict) -> None:
    from hopfleet.monitor.wording import plural

    wrong = {part: sum(fault.part == part for fault in verdict.faults) for part in verdict.checked}
    facts(
        (
            (part, f"{plural(wrong[part], 'fault') if wrong[part] else 'ok'}  {text}")
            for part, text in verdict.checked.items()
        ),
        red=[part for part, count in wrong.items() if count],
    )
    for note in verdict.notes:
        echo(note)
    for fault in verdict.faults:
        echo(f"hopfleet: {fault}", err=True)


def recover(name: Name, json: Json = False) -> int:
    """Rebuild a damaged run folder as far as possible.

    Rebuilds the journal up to its first damaged message, and the definition from the journal. Without a journal, writes
    recovered.json: the configurations, metrics and models of all trials, as far as they are known. Deletes nothing:
    damaged files get another name. The exit code is 1 if something is lost.

    Example: hopfleet recover demo
    """
    from hopfleet.forecast.preview import slow
    from hopfleet.runs.recovery import recover as rebuild

    folder = find_damaged(name)
    with slow(quiet=False, what="recover") as tell:
        found = rebuild(folder, tell)
    if json:
        lists = {"rebuilt": found.rebuilt, "lost": found.lost, "trials": found.trials}
        print_json({"name": folder.name, "ok": found.ok, **lists})
        return 0 if found.ok else 1
    for text in found.rebuilt:
        echo(f"rebuilt  {text}")
    for text in found.lost:
        echo(f"lost     {text}")
    if not (found.rebuilt or found.lost):
        echo(f"Nothing to recover; hopfleet verify {folder.handle} checks models and data.")
    return 0 if found.ok else 1


def replay(
    name: Name,
    trial: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRIAL",
            help="Replay only this trial, e.g. t0003 or 3; can be repeated.",
            show_default=False,
            autocompletion=completing.trials,
        ),
    ] = None,
    workers: Workers = None,
    backend: WhereWorkersRun = "local",
    json: Json = False,
) -> int:
    """Repeat the training and compare the models bit for bit.

    Trials visit the partitions in the logged order, from the same seeds, in a temporary folder. The SHA-256 of each
    trial's last and best model is compared with the journal's. Failed and deleted trials are skipped. The exit code
    is 1 if a model differs.

    Example: hopfleet replay demo --trial t0003 --workers 1
    """
    from hopfleet.clients.replay import replay as train_again
    from hopfleet.forecast.preview import slow
    from hopfleet.runs.results import Results

    results = Results(find_run(name))
    chosen = [find_trial(results, one).id for one in trial or []]
    with json_alone(json), slow(quiet=False, what="replay") as tell:
        task, train = task_and_train(results)
        found = train_again(
            results,
            task=task,
            train=train,
            trials=chosen,
            workers="auto" if workers is None else workers,
            backend=backend,
            tell=tell,
        )
    if json:
        print_json(_replay_json(found))
    else:
        _print_replay(found)
    return 0 if found.ok else 1


def task_and_train(results: Results) -> tuple[Task, Any]:
    """Return the experiment's task, and its training data if it is not stored.

    Import the task, or run the file that defined it without training.
    """
    check_trusted(results.folder)
    recorded, origin = results.definition["task"], results.definition.get("origin") or {}
    live = results.definition["train"].get("live", False)
    file = Path(origin["file"]) if origin.get("how") in ("run", "script") else None
    if recorded["module"] != "__main__" and recorded["name"] != "FunctionTask" and not live:
        if file is not None and str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))  # modules beside the script
        return results.find_task(), None
    from hopfleet.cli.scripts import enter

    given = "task=..., train=hop.live(dataset)" if live else "task=..."
    remedy = f"pass the task in Python: hopfleet.clients.replay.replay({results.folder.handle!r}, {given})"
    if file is None or not file.is_file():
        raise UsageError(f"{results.name}: the file that created its task is unknown or gone; {remedy}")
    enter(origin["cwd"])
    task, train = _from_file(results, file, origin, live=live)
    made = type(task).__qualname__
    if made != recorded["name"]:
        raise UsageError(f"{results.name}: {file} now creates {made} instead of {recorded['name']}; {remedy}")
    return task, train if live else None


def _from_file(results: Results, file: Path, origin: Mapping[str, Any], *, live: bool) -> tuple[Task, Any]:
    """Return the task and the training data that a file defines, without training.

    A script that makes its experiment below ``if __name__ == "__main__"`` runs again up to its ``fit``, unless its task
    has no attributes: then another instance of the class is the same task.
    """
    from hopfleet.cli.scripts import NoExperiment, load_for_preview, load_task, run_until_fit

    arguments = origin.get("arguments", [])
    try:
        experiment = load_for_preview(file, origin.get("variable", ""), arguments)
    except NoExperiment:
        if origin["how"] != "script":
            raise
        if results.definition.get("bare_task", False) and not live:
            return load_task(file, results.definition["task"]["name"]), None
        experiment = run_until_fit(file, arguments, results.folder, results.name)
    return experiment.task, experiment.definition.train


def _replay_json(found: Replay) -> dict[str, object]:
    return {"name": found.name, "ok": found.ok, "notes": found.notes, "trials": [_trial_json(t) for t in found.trials]}


def _trial_json(trial: Replayed) -> dict[str, object]:
    versions = [
        {"version": each.version, "which": each.which, "expected": each.expected, "found": each.found}
        for each in trial.versions
    ]
    return {
        "trial": trial.trial,
        "verdict": trial.verdict,
        "units": trial.units,
        "versions": versions,
        "reason": trial.reason or None,
    }


def _print_replay(found: Replay) -> None:
    from hopfleet.monitor.terminal.tables import Column, FittedTable
    from hopfleet.monitor.wording import one_line

    for note in found.notes:
        echo(f"hopfleet: {note}", err=True)
    if not found.trials:
        echo("No trial has started yet.")
        return
    trials, verdicts = found.trials, [trial.verdict for trial in found.trials]
    details = [one_line(trial.reason) or ", ".join(_shown(trial)) for trial in trials]
    console().print(
        FittedTable(
            [
                Column("trial", [trial.trial for trial in trials], 0),
                Column("models", verdicts, 1, styles=[STYLES[verdict] for verdict in verdicts]),
                Column("units", [str(trial.units) for trial in trials], 3, "right"),
                Column("", details, 2),
            ]
        )
    )
    counts = {verdict: verdicts.count(verdict) for verdict in STYLES if verdict in verdicts}
    echo(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def _shown(trial: Replayed) -> list[str]:
    return [f"{each.which} {each.found[:SHOWN]}" for each in trial.versions]
