"""The commands that steer an experiment, running or not: each makes one request and prints the answer."""

from __future__ import annotations

import json as jsons
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopfleet.cli import completing
from hopfleet.cli.experiments import Json, Name
from hopfleet.cli.render import console, echo, print_json
from hopfleet.errors import UsageError
from hopfleet.support.plain import named

if TYPE_CHECKING:
    from hopfleet.runs.control import Control
    from hopfleet.store.base import Request

Trial = Annotated[
    str, typer.Argument(metavar="TRIAL", help="The trial, e.g. t0003 or 3.", autocompletion=completing.trials)
]
Now = Annotated[bool, typer.Option("--now", help="Do not wait for the current unit to finish.")]
Epochs = Annotated[
    int | None, typer.Option("--epochs", metavar="N", help="Train up to N epochs in total.", show_default=False)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a value of the configuration, as JSON or text; can be repeated.",
        show_default=False,
    ),
]


def _control(name: str) -> Control:
    from hopfleet.runs.control import control

    return control(name)


def stop(name: Name, trial: Trial, now: Now = False) -> None:
    """Stop a trial and keep its models.

    The trial finishes its current unit first, unless --now is given. Continue it with: hopfleet resume NAME TRIAL.

    Example: hopfleet stop demo t0003
    """
    echo(_control(name).stop(trial, now))


def delete(name: Name, trial: Trial, now: Now = False) -> None:
    """Delete a trial and its models.

    The trial disappears from all tables and charts; only the journal keeps a record. Its clones stay as they are.

    Example: hopfleet delete demo t0003
    """
    echo(_control(name).delete(trial, now))


def clone(
    name: Name,
    trial: Trial,
    settings: Settings = None,
    warm: Annotated[bool, typer.Option("--warm", help="Continue from its last epoch instead of from scratch.")] = False,
    epochs: Epochs = None,
) -> None:
    """Add a copy of a trial, with some values changed.

    A warm clone continues from the original's last epoch, with its model, optimizer and random streams.

    Example: hopfleet clone demo t0003 --set lr=0.01 --warm
    """
    echo(_control(name).clone(trial, _settings(settings), warm, epochs))


def add(name: Name, settings: Settings = None) -> None:
    """Add a trial with your own configuration.

    Give all keys of the space; write keys of nested dicts with dots.

    Example: hopfleet add mine --set lr=0.01 --set width=64
    """
    echo(_control(name).add(_nested(_settings(settings))))


def extend(
    name: Name,
    trials: Annotated[int, typer.Option(metavar="N", help="Number of trials to add.", show_default=False)] = 0,
    epochs: Annotated[int, typer.Option(metavar="N", help="Epochs to add to all trials.", show_default=False)] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=DIMENSION",
            help="Change a dimension for trials yet to be drawn; can be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Extend the search: add trials or epochs, or change dimensions.

    Continue a finished experiment with: hopfleet resume NAME.

    Example: hopfleet extend mine --trials 8 --set "lr=loguniform(1e-5, 1e-2)"
    """
    echo(_control(name).extend(trials, epochs, _settings(settings)))


def pause(name: Name) -> None:
    """Pause a running experiment.

    Running units finish and no others start. Continue with: hopfleet resume NAME.

    Example: hopfleet pause demo
    """
    echo(_control(name).pause())


def workers(
    name: Name,
    count: Annotated[str, typer.Argument(metavar="N", help="How many workers, or a change such as +2 or -1.")],
) -> None:
    """Change the number of workers of a running experiment.

    Workers that are removed finish their unit first. The number of workers does not affect any trial's result.

    Example: hopfleet workers demo +2
    """
    echo(_control(name).workers(count))


def prioritise(
    name: Name,
    trial: Trial,
    level: Annotated[int, typer.Argument(metavar="LEVEL", help="Higher levels go first; trials start at 0.")] = 1,
) -> None:
    """Schedule a trial before the others.

    Example: hopfleet prioritise demo t0003
    """
    echo(_control(name).prioritise(trial, level))


def requests(name: Name, json: Json = False) -> None:
    """List all requests ever made to an experiment.

    Shows when each request was made, by whom, and its answer. --json gives every answer in full.

    Example: hopfleet requests demo
    """
    trail = _control(name).requests()
    if json:
        print_json([_request_json(request) for request in trail])
    elif not trail:
        echo("No requests have been made.")
    else:
        _print_trail(trail)


def _request_json(request: Request) -> dict[str, Any]:
    return {
        "number": request.number,
        "time": datetime.fromtimestamp(request.time).astimezone().isoformat(timespec="milliseconds"),
        "who": request.who,
        "request": request.request,
        "wish": request.request,  # prose: allow, the old key; goes away in release 0.3
        "arguments": named(request.arguments),
        "granted": request.granted,
        "text": request.text or None,
    }


def _print_trail(trail: list[Request]) -> None:
    from hopfleet.monitor.terminal.tables import Column, FittedTable
    from hopfleet.monitor.wording import one_line, shorten

    words = {None: ("queued", "dim"), True: ("granted", "green"), False: ("refused", "red")}
    asked = [
        shorten(" ".join(filter(None, [request.request, *map(_argument, request.arguments.items())])), 36)
        for request in trail
    ]
    console().print(
        FittedTable(
            [
                Column("#", [str(request.number) for request in trail], 3, "right"),
                Column("when", [f"{datetime.fromtimestamp(request.time):%m-%d %H:%M:%S}" for request in trail], 4),
                Column("who", [request.who for request in trail], 5),
                Column("request", asked, 0),
                Column("outcome", [words[w.granted][0] for w in trail], 1, styles=[words[w.granted][1] for w in trail]),
                Column("answer", [shorten(one_line(request.text), 40) for request in trail], 2),
            ]
        )
    )


def _argument(item: tuple[str, Any]) -> str:
    name, value = item
    if isinstance(value, dict):
        return " ".join(map(_argument, value.items()))
    if isinstance(value, bool):
        return name if value else ""
    return f"{name}={value if isinstance(value, str) else jsons.dumps(value)}"


def _settings(given: list[str] | None) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` pairs. A value that is not JSON is text."""
    values: dict[str, Any] = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"--set {text}: must be KEY=VALUE")
        try:
            values[key] = jsons.loads(value)
        except ValueError:
            values[key] = value
    return values


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """Return nested dicts for dotted keys."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *outer, last = path.split(".")
        place = nested
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    return nested
