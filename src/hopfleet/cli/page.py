"""The commands that watch experiments live: ui, in a browser, and top, in a terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopfleet.cli import completing
from hopfleet.cli.experiments import Name
from hopfleet.cli.render import console, echo
from hopfleet.cli.runs import RunState, state_of
from hopfleet.store.folder import find_run
from hopfleet.ui import PORT

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hopfleet.runs.results import Results

FASTEST = 0.2
"""Seconds between two drawings of ``top``, at least."""


def ui(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="An experiment, its run folder, or a folder of run folders (default: all at home).",
            autocompletion=completing.experiments,
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="The port; 0 takes any free one.")] = PORT,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="A port for /metrics alone, which needs no session there; 0 takes any.",
            show_default=False,
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, and steer nothing.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate.", show_default=False)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key of the certificate.", show_default=False)
    ] = None,
) -> None:
    """Show experiments in a browser, live, and steer them.

    The page reads run folders, so it works while experiments run and after their end. It prints an address with a code
    that works once; Enter shows a new one. Programs give the token in HOPFLEET_UI_TOKEN. Ctrl-C ends it.

    Example: hopfleet ui demo --port 0
    """
    from hopfleet.ui.server import Options, serve

    options = Options(host, port, read_only, tls_cert, tls_key, browse=not no_browser, metrics_port=metrics_port)
    serve(name, options, lambda text: echo(text))


def top(
    name: Name,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="The time between two drawings.", min=FASTEST)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Draw once and exit.")] = False,
) -> None:
    """Watch an experiment in the terminal until it ends.

    It shows the progress, the best trials and what each worker does. Ctrl-C ends it; the experiment goes on.

    Example: hopfleet top demo
    """
    from rich.live import Live

    from hopfleet.runs.results import Results

    screen, results = console(), Results(find_run(name))
    if once or not screen.is_terminal:
        screen.print(_picture(results, 30))
        return
    with Live(console=screen, auto_refresh=False, screen=True) as live:
        while True:
            live.update(_picture(results, screen.size.height), refresh=True)
            if state_of(results.folder, results.refresh().history) is not RunState.RUNNING:
                break
            time.sleep(every)
    screen.print(_picture(results, screen.size.height))


def _picture(results: Results, height: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from hopfleet.monitor.terminal.tables import header, leaderboard_table, workers_table

    history = results.history
    state = Text(f"{state_of(results.folder, results.history).value}", style="dim")
    workers: list[RenderableType] = [Text(), workers_table(history)] if history.workers else []
    rows = max(3, height - 10 - (len(history.workers) + 4 if workers else 0))
    table: RenderableType = leaderboard_table(history, rows) if history.trials else Text("No trial has started yet.")
    return Group(header(history), state, Text(), table, *workers)
