"""Help, version, errors and exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer.main

from hopfleet.cli import app as app_module
from hopfleet.cli.app import app
from hopfleet.errors import CheckpointError, Interrupted, UsageError
from hopfleet.version import __version__
from tests.helpers.cli import Cli

COMMANDS = ["demo", "run", "resume", "ls", "show", "best", "export", "doctor"]


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"hopfleet {__version__}\n"


@pytest.mark.slow
def test_module_runs_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "hopfleet", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"hopfleet {__version__}\n")


def test_start_up_is_light() -> None:
    heavy = {"torch", "pandas", "matplotlib", "pyarrow", "sklearn", "numpy", "rich.console"}
    code = f"import sys, hopfleet.cli; sys.exit(', '.join({heavy!r} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_ends_with_its_code(cli: Cli) -> None:
    assert cli("show", "nothing").err.rstrip().endswith("[HF120]")


def test_without_arguments_it_shows_help(cli: Cli) -> None:
    outcome = cli()
    assert outcome.code == 0
    assert all(f"  {name} " in outcome.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(cli: Cli, name: str) -> None:
    outcome = cli(name, "--help")
    assert outcome.code == 0
    assert f"Example: hopfleet {name}" in outcome.out


def test_every_option_and_argument_has_help() -> None:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "frobnicate"),
        (["ls", "--frobnicate"], "--frobnicate"),
        (["show"], "NAME"),
        (["run"], "FILE.py"),
        (["show", "nothing"], "no such experiment"),
        (["best", "nothing"], "no such experiment"),
        (["resume", "nothing"], "no such experiment"),
        (["export", "nothing", "--csv", "-"], "no such experiment"),
        (["run", "nothing.py"], "no such file"),
        (["demo", "--workers", "0"], "workers=0"),
        (["demo", "--workers", "many"], "workers='many'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(cli: Cli, arguments: list[str], said: str) -> None:
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("hopfleet: ")
    assert outcome.err.count("\n") == 1
    assert said in outcome.err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("x=1: must be 2"), 2, "x=1: must be 2"),
        (CheckpointError("it is damaged"), 1, "it is damaged"),
        (PermissionError(13, "Permission denied", "/x"), 1, "/x: Permission denied"),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Interrupted("mine can go on"), 130, "mine can go on"),
    ],
)
def test_errors_and_their_exit_codes(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("hopfleet.cli.experiments.runs", fail)
    outcome = cli("ls")
    assert outcome.code == code
    assert f"hopfleet: {said}" in outcome.err
    assert "Traceback" not in outcome.err
    assert "Traceback" in cli("--debug", "ls").err


def test_debug_by_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(app_module.DEBUG, "1")
    assert "Traceback" in cli("show", "nothing").err
