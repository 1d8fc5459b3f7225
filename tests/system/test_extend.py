"""``hopfleet.extend`` has every name that extensions need, and the pages about extensions use nothing else."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hopfleet as hop
from hopfleet import extend
from hopfleet.support import registry
from tests.helpers.pages import EXTEND, blocks

PUBLIC = re.compile(r"hopfleet|hopfleet\.extend|hopfleet\.testing(\.\w+)?")


def exported() -> dict[str, Any]:
    return {name: getattr(extend, name) for name in extend.__all__}


def test_names_are_complete_and_sorted() -> None:
    assert list(extend.__all__) == sorted(extend.__all__) == dir(extend)
    assert all(value is not None for value in exported().values())
    assert {
        "Backend",
        "Callback",
        "Framework",
        "Policy",
        "Search",
        "StoppingRule",
        "Store",
        "Strategy",
    } <= exported().keys()


def test_names_that_are_in_both_modules_are_the_same() -> None:
    both = set(extend.__all__) & set(hop.__all__)
    assert {"Callback", "Search", "StoppingRule"} <= both
    assert all(getattr(hop, name) is getattr(extend, name) for name in both)


def test_a_misspelt_name_is_answered() -> None:
    with pytest.raises(
        AttributeError, match=r"module 'hopfleet.extend' has no attribute 'Frameworks'; did you mean 'Framework'"
    ):
        extend.Frameworks  # type: ignore[attr-defined]  # noqa: B018


def test_an_author_can_name_the_type_of_every_argument_of_a_contract() -> None:
    """Every type in the signatures of exported classes is exported too, or derived from one that is."""
    names = exported()
    values = [*names.values(), *vars(extend.messages).values(), *vars(extend.protocol).values()]
    known = {value for value in values if isinstance(value, type)}
    for kind in [value for value in names.values() if isinstance(value, type)]:
        for name, method in methods(kind):
            for hint in typing.get_type_hints(method, localns=names).values():
                unknown = [found for found in types_in(hint) if known.isdisjoint(found.__mro__[:-1])]
                assert not unknown, f"{kind.__name__}.{name}"


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """The public functions, static methods and properties that a class defines."""
    for name, value in vars(kind).items():
        function = getattr(getattr(value, "fget", value), "__func__", getattr(value, "fget", value))
        if inspect.isfunction(function) and (not name.startswith("_") or name == "__call__"):
            yield name, function


def types_in(hint: Any) -> Iterator[type]:
    """The classes of Hopfleet that a type is made of."""
    if isinstance(hint, list):
        for each in hint:
            yield from types_in(each)
    elif isinstance(hint, type) and hint.__module__.startswith("hopfleet."):
        yield hint
    else:
        for each in typing.get_args(hint):
            yield from types_in(each)


@pytest.mark.parametrize("page", EXTEND, ids=lambda page: page.stem)
def test_pages_import_nothing_private(page: Path) -> None:
    for language, text in blocks(page):
        for node in ast.walk(ast.parse(text)) if language == "python" else ():
            if isinstance(node, ast.Import):
                assert all(PUBLIC.fullmatch(name.name) for name in node.names if name.name.startswith("hopfleet"))
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hopfleet"):
                assert PUBLIC.fullmatch(node.module or ""), ast.unparse(node)


@pytest.mark.parametrize("page", EXTEND, ids=lambda page: page.stem)
def test_pages_name_nothing_private(page: Path) -> None:
    """Names with dots are those of public modules or of groups of entry points."""
    for name in re.findall(r"(?<![/\w.-])hopfleet(?:\.\w+)+", page.read_text()):
        home, _, last = name.rpartition(".")
        if home == "hopfleet.extend":
            assert last in extend.__all__
        elif name not in registry.GROUPS.values():
            assert name.startswith(("hopfleet.extend", "hopfleet.testing")), name


def test_importing_hopfleet_imports_no_names_of_extensions() -> None:
    code = "import sys, hopfleet; print('hopfleet.extend' in sys.modules, 'torch' in sys.modules)"
    assert run(code) == "False False"
    code = (
        "import sys, hopfleet.extend as e; print(len([m for m in sys.modules if m.startswith('hopfleet')])); e.Search"
    )
    assert int(run(code)) <= 4


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_modules_among_the_names_are_the_modules_themselves() -> None:
    modules = [name for name, value in exported().items() if isinstance(value, ModuleType)]
    assert modules == ["messages", "protocol"]
    assert extend.messages.RunUnit.__name__ == "RunUnit" and extend.protocol.Execute.__name__ == "Execute"
