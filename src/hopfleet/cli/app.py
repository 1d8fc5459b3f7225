"""The command ``hopfleet``: its subcommands, its global options and its exit codes.

Every error that a user can cause ends in one line on standard error; ``--debug`` adds the traceback.
"""

from __future__ import annotations

import functools
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from hopfleet.cli.checking import recover, replay, verify
from hopfleet.cli.control import add, clone, delete, extend, pause, prioritise, requests, stop, workers
from hopfleet.cli.data import partition, prepare
from hopfleet.cli.doctor import doctor
from hopfleet.cli.experiments import best, export, ls, show
from hopfleet.cli.looking import data
from hopfleet.cli.page import top, ui
from hopfleet.cli.planning import plan
from hopfleet.cli.plotting import plot
from hopfleet.cli.profiling import profile
from hopfleet.cli.render import echo
from hopfleet.cli.simulating import simulate
from hopfleet.cli.testing import ensemble, predict, refit, test
from hopfleet.cli.training import demo, resume, run
from hopfleet.errors import HopfleetError, NotFound, UsageError
from hopfleet.version import __version__

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

DEBUG = "HOPFLEET_DEBUG"
"""Environment variable; any value except 0 and the empty string has the effect of ``--debug``."""

#: The base class of all errors of the command-line parser. Typer uses its own copy of click or the installed one.
CommandLineError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="hopfleet",
    help="Find the best deep-learning model for your data: train many trials at once, each as if alone.",
    epilog="To start, run: hopfleet demo",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Stopped(Exception):
    """A Ctrl-C in a form that passes through the parser, which discards the message of a KeyboardInterrupt."""


def _carried(command: Callable[..., int | None]) -> Callable[..., int | None]:
    @functools.wraps(command)
    def wrapper(*arguments: Any, **options: Any) -> int | None:
        try:
            return command(*arguments, **options)
        except KeyboardInterrupt as error:
            raise _Stopped(str(error) or "interrupted") from error

    return wrapper


WATCHING = (demo, run, resume, ui, top, ls, show, best, export, plot)
CONTROL = (stop, delete, clone, add, extend, pause, workers, prioritise, requests)
for command in (
    *WATCHING,
    *CONTROL,
    verify,
    recover,
    replay,
    test,
    predict,
    ensemble,
    refit,
    partition,
    prepare,
    data,
    simulate,
    plan,
    profile,
    doctor,
):
    # "hopfleet workers NAME -1": the number is an argument, not an option.
    app.command(context_settings={"ignore_unknown_options": command is workers})(_carried(command))
app.command("wishes", hidden=True, deprecated=True)(_carried(requests))  # prose: allow, the old name


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"hopfleet {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _global_options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Show the traceback of an error; {DEBUG}=1 does the same.")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"
    if context.invoked_subcommand is None:
        echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default this process's own, and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")  # the locale may lack characters that users write
    try:
        code = app(arguments, prog_name="hopfleet", standalone_mode=False)
    except CommandLineError as error:
        where = error.ctx.command_path if error.ctx else "hopfleet"
        return _fail(error, f"{error.format_message().rstrip('.')}; {_hint(error)}see {where} --help", USAGE)
    except (UsageError, NotFound) as error:
        return _fail(error, _coded(error), USAGE)
    except _Stopped as error:
        return _fail(error, str(error), INTERRUPTED)
    except HopfleetError as error:
        return _fail(error, _coded(error), FAILED)
    except OSError as error:
        return _fail(error, f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED)
    except Exception as error:
        text = f"{type(error).__name__}: {error}; please report this with the traceback that hopfleet --debug shows"
        return _fail(error, text, FAILED)
    return code if isinstance(code, int) else DONE


COMMANDS = {
    **dict.fromkeys(("fit", "start", "train", "tune"), "hopfleet run FILE.py"),
    **dict.fromkeys(("cancel", "kill"), "hopfleet stop NAME TRIAL"),
    **dict.fromkeys(("log", "logs"), "hopfleet show NAME --trial TRIAL"),
    **dict.fromkeys(
        ("remove", "rm"), "hopfleet delete NAME TRIAL; an experiment is the folder that hopfleet show names"
    ),
    **dict.fromkeys(("info", "status"), "hopfleet show NAME"),
    **dict.fromkeys(("dashboard", "serve", "web"), "hopfleet ui"),
}
"""Commands of other tools: what to type instead."""


def _hint(error: CommandLineError) -> str:
    """Return what to type instead of a word that is no command, or of one word too many."""
    known = {option for each in (error.ctx.command.params if error.ctx else ()) for option in each.opts}
    if found := re.search(r"No such command '(\w+)'", error.format_message()):
        return f"type {COMMANDS[found[1]]}; " if found[1] in COMMANDS else ""
    found = re.search(r"unexpected extra argument\S* \((\S+)\)", error.format_message())
    word = found[1] if found else ""
    option = "--set" if "=" in word else "--trial" if re.fullmatch(r"t?\d+", word) else ""
    return f"type {option} {word}; " if option in known else ""


def _coded(error: HopfleetError) -> str:
    """Return the message of an error and the code by which the documentation explains it."""
    return f"{error} [{error.code}]"


def _fail(error: BaseException, text: str, code: int) -> int:
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    sys.stdout.flush()
    echo(f"hopfleet: {text}", err=True)
    return code
