"""Output shared by the commands: the console, tables of facts, JSON, time stamps and command lines."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from hopfleet.monitor.wording import size as size
from hopfleet.safe_text import masked, visible, visible_json
from hopfleet.support.plain import plain as plain

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 120
"""Columns of output that goes to a pipe or a file."""


def console() -> Console:
    """Return a rich console on standard output, with the colours and the width of the terminal if there is one."""
    from hopfleet.monitor.terminal.screen import Screen

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Screen(width=width)


def echo(text: object = "", *, err: bool = False) -> None:
    """Print a line on standard output, or with ``err`` on standard error. Control characters become visible.

    Passwords of URLs are masked.
    """
    typer.echo(visible(masked(str(text))), err=err)  # noqa: TID251


def facts(pairs: Iterable[tuple[str, object]], *, red: Collection[str] = ()) -> None:
    """Print names and values in two columns; the values of the names in ``red`` are red.

    Long values are not wrapped, so that paths can be copied.
    """
    listed = [(visible(name), visible(masked(str(value)))) for name, value in pairs]
    width = max(len(name) for name, _ in listed)
    for name, value in listed:
        first, *rest = value.split("\n")
        shown = typer.style(first, "red") if name in red else first
        typer.echo(f"{typer.style(name.ljust(width), dim=True)}  {shown}")  # noqa: TID251
        for line in rest:
            echo(" " * (width + 2) + line)


def print_json(value: Any) -> None:
    """Print a value as strict, indented JSON."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    typer.echo(visible_json(masked(text)))  # noqa: TID251


def json_alone(json: bool) -> AbstractContextManager[object]:
    """Return a context in which, for ``json``, a user's code prints on standard error: standard output is for JSON."""
    return contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext()


def moment(iso: str) -> str:
    """Format a time stamp for reading, in local time."""
    try:
        return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return iso


def command(*words: str) -> str:
    """Return a hopfleet command line, quoted for a shell."""
    return " ".join(["hopfleet", *(shlex.quote(word) for word in words)])
