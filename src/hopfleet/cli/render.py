"""Output shared by the commands: the console, tables of facts, JSON, time stamps and command lines."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from hopfleet.monitor.wording import size as size

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 120
"""Columns of output that goes to a pipe or a file."""


def console() -> Console:
    """Return a rich console on standard output, with the colours and the width of the terminal if there is one."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(width=width, highlight=False)


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns. Long values are not wrapped, so that paths can be copied."""
    listed = [(name, str(value)) for name, value in pairs]
    width = max(len(name) for name, _ in listed)
    for name, value in listed:
        first, *rest = value.splitlines() or [""]
        typer.echo(f"{typer.style(name.ljust(width), dim=True)}  {first}")
        for line in rest:
            typer.echo(" " * (width + 2) + line)


def print_json(value: Any) -> None:
    """Print a value as strict, indented JSON."""
    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    """Return a value that strict JSON can hold: NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def moment(iso: str) -> str:
    """Format a time stamp for reading, in local time."""
    try:
        return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return iso


def command(*words: str) -> str:
    """Return a hopfleet command line, quoted for a shell."""
    return " ".join(["hopfleet", *(shlex.quote(word) for word in words)])
