"""The commands of a person at the wheel: each asks something of an experiment, running or not, and says the answer."""

from __future__ import annotations

import json as jsons
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopfleet.cli.experiments import Json, Name
from hopfleet.cli.render import console, print_json
from hopfleet.errors import UsageError

if TYPE_CHECKING:
    from hopfleet.runs.control import Control
    from hopfleet.store.journal import Request

Trial = Annotated[str, typer.Argument(metavar="TRIAL", help="The trial, e.g. t0003 or 3.")]
Now = Annotated[bool, typer.Option("--now", help="Do not wait for the end of what it is doing.")]
Epochs = Annotated[
    int | None, typer.Option("--epochs", metavar="N", help="Train until so many epochs in all.", show_default=False)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A value of the configuration, as JSON or text; may be repeated.",
        show_default=False,
    ),
]


def _control(name: str) -> Control:
    from hopfleet.runs.control import control

    return control(name)


def stop(name: Name, trial: Trial, now: Now = False) -> None:
    """Train a trial no further; its model stays.

    It finishes the unit that it is at, unless --now is given. hopfleet resume NAME TRIAL lets it go on.

    Example: hopfleet stop demo t0003
    """
    typer.echo(_control(name).stop(trial, now))


def delete(name: Name, trial: Trial, now: Now = False) -> None:
    """Delete a trial and its models.

    It vanishes from all tables and pictures; only the journal remembers it. Clones of it are left as they are.

    Example: hopfleet delete demo t0003
    """
    typer.echo(_control(name).delete(trial, now))


def clone(
    name: Name,
    trial: Trial,
    settings: Settings = None,
    warm: Annotated[bool, typer.Option("--warm", help="Go on from its last epoch rather than start afresh.")] = False,
    epochs: Epochs = None,
) -> None:
    """Add a trial like another one, with some values changed.

    A warm clone goes on from the last epoch of the other one, with its model, optimizer and random streams.

    Example: hopfleet clone demo t0003 --set lr=0.01 --warm
    """
    typer.echo(_control(name).clone(trial, _settings(settings), warm, epochs))


def add(name: Name, settings: Settings = None) -> None:
    """Add a trial with a configuration of your own.

    All keys of the space must be given; those of nested dicts with dots.

    Example: hopfleet add mine --set lr=0.01 --set width=64
    """
    typer.echo(_control(name).add(_nested(_settings(settings))))


def extend(
    name: Name,
    trials: Annotated[int, typer.Option(metavar="N", help="So many more trials.", show_default=False)] = 0,
    epochs: Annotated[int, typer.Option(metavar="N", help="So many more epochs for all.", show_default=False)] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=DIMENSION",
            help="Another dimension for the trials to come; may be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Extend the search: more trials, more epochs, other dimensions.

    A finished experiment goes on with hopfleet resume NAME.

    Example: hopfleet extend mine --trials 8 --set "lr=loguniform(1e-5, 1e-2)"
    """
    typer.echo(_control(name).extend(trials, epochs, _settings(settings)))


def pause(name: Name) -> None:
    """Pause a running experiment: units at work end, no other starts.

    hopfleet resume NAME lets it proceed.

    Example: hopfleet pause demo
    """
    typer.echo(_control(name).pause())


def workers(
    name: Name,
    count: Annotated[str, typer.Argument(metavar="N", help="How many; +2 and -1 mean more or fewer.")],
) -> None:
    """Change the number of workers of a running experiment.

    Those that go finish their unit first. No trial's outcome depends on it.

    Example: hopfleet workers demo +2
    """
    typer.echo(_control(name).workers(count))


def prioritise(
    name: Name,
    trial: Trial,
    level: Annotated[int, typer.Argument(metavar="LEVEL", help="Higher levels go first; all begin with 0.")] = 1,
) -> None:
    """Let a trial go before the others.

    Example: hopfleet prioritise demo t0003
    """
    typer.echo(_control(name).prioritise(trial, level))


def requests(name: Name, json: Json = False) -> None:
    """List all that was ever asked of an experiment.

    When, by whom, and what came of it; --json has every text in full.

    Example: hopfleet requests demo
    """
    trail = _control(name).requests()
    if json:
        print_json([_request_json(request) for request in trail])
    elif not trail:
        typer.echo("Nobody has asked for anything.")
    else:
        _print_trail(trail)


def _request_json(request: Request) -> dict[str, Any]:
    return {
        "number": request.number,
        "time": datetime.fromtimestamp(request.time).astimezone().isoformat(timespec="milliseconds"),
        "who": request.who,
        "wish": request.request,
        "arguments": request.arguments,
        "granted": request.granted,
        "text": request.text or None,
    }


def _print_trail(trail: list[Request]) -> None:
    from hopfleet.monitor.terminal.tables import Column, FittedTable
    from hopfleet.monitor.wording import one_line, shorten

    words = {None: ("waits", "dim"), True: ("granted", "green"), False: ("refused", "red")}
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
                Column("wish", asked, 0),
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
    """``KEY=VALUE`` pairs; a value is JSON, or else text."""
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
    """Dotted keys as nested dicts, which is what a configuration has."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *outer, last = path.split(".")
        place = nested
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    return nested
