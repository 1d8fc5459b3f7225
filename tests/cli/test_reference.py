"""docs/cli.md names every command, argument and option, and nothing that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from hopfleet.cli.app import app

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
EVERY = typer.main.get_command(app).commands  # type: ignore[attr-defined]
COMMANDS = {name: command for name, command in EVERY.items() if not command.deprecated}


def section(command: str) -> str:
    found = re.search(rf"^## `hopfleet {command}`$(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/cli.md has no section on hopfleet {command}"
    return found[1]


def options(command: str) -> Iterator[str]:
    for parameter in COMMANDS[command].params:
        yield from (name for name in parameter.opts if name.startswith("-"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_there_with_an_example_and_its_options(command: str) -> None:
    text = section(command)
    assert re.search(rf"^hopfleet {command}\b", text, re.MULTILINE), "an example"
    documented = set(
        re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(re.findall(r"^\| `.*?` \|", text, re.MULTILINE)))
    )
    assert documented == set(options(command))


def test_there_are_no_sections_on_commands_that_do_not_exist() -> None:
    assert set(re.findall(r"^## `hopfleet (\w+)`$", TEXT, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("option", ["--version", "--debug", "--help", "--install-completion", "--show-completion"])
def test_global_options_are_there(option: str) -> None:
    assert f"`{option}`" in TEXT


def test_exit_codes_are_there() -> None:
    assert all(f"| {code} |" in TEXT for code in (0, 1, 2, 130))
