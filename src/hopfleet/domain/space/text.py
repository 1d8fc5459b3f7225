"""Spaces as text that users read and write: ``describe`` and its inverse ``parse``."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from hopfleet.domain.space import constructors
from hopfleet.domain.space.chooser import Space, function_name
from hopfleet.domain.space.dimension import Derived, Dimension
from hopfleet.domain.space.json_values import plain
from hopfleet.errors import SpaceError
from hopfleet.phrases import LETTERS, cut


def describe(space: Space) -> Any:
    """Return a space as JSON that users can read and that two runs can be compared by."""
    if isinstance(space, Mapping):
        return {str(key): describe(value) for key, value in space.items()}
    if callable(space):
        return f"function {function_name(space)}"
    return repr(space) if isinstance(space, Dimension) else json.loads(json.dumps(plain(space)))


def parse(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the space that ``describe`` described: text like ``loguniform(1e-4, 0.1)`` becomes a dimension."""
    return {name: _parsed(name, value) for name, value in described.items()}


def recalled(described: Any) -> Space:
    """Return the space of a run folder as far as its text tells: a function in it, or for all of it, is unknown."""
    if not isinstance(described, Mapping):
        return _unknown
    return {name: _recalled(name, value) for name, value in described.items()}


def _recalled(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return recalled(value)
    try:
        return _parsed(name, value)
    except SpaceError:
        return Derived(_unknown)


def _unknown(_: Any) -> None:
    """Stand in for a function that is written as text."""


def _parsed(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return parse(value)
    call = re.fullmatch(r"(\w+)\((.*)\)", value, re.DOTALL) if isinstance(value, str) else None
    if call is not None and call[1] == constructors.sample_from.__name__:
        raise SpaceError(f"{name}={value}: a function cannot be written as text; use numbers or lists")
    if call is None or call[1] not in CONSTRUCTORS:
        return value
    try:
        arguments = _literals(f"({call[2]},)")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpaceError(
            f"{name}={cut(value, LETTERS)}: must be plain numbers and lists, e.g. {name}=loguniform(1e-4, 0.1)"
        ) from None
    try:
        return CONSTRUCTORS[call[1]](*arguments)
    except SpaceError as error:
        raise SpaceError(f"{name}={error}") from None
    except TypeError as error:
        raise SpaceError(f"{name}={cut(value, LETTERS)}: {error}") from None


class _NotFinite(ast.NodeTransformer):
    """Puts floats in the place of the names that ``repr`` gives to NaN and infinity."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(float(node.id)) if node.id in ("nan", "inf") else node


def _literals(text: str) -> tuple[Any, ...]:
    """Return a tuple of numbers, strings and lists from its ``repr``, in which ``nan`` and ``inf`` are numbers too."""
    found: tuple[Any, ...] = ast.literal_eval(_NotFinite().visit(ast.parse(text, mode="eval")))
    return found


CONSTRUCTORS: Mapping[str, Callable[..., Dimension]] = {
    function.__name__: function
    for function in (
        constructors.choice,
        constructors.grid_search,
        constructors.uniform,
        constructors.loguniform,
        constructors.quniform,
        constructors.qloguniform,
        constructors.randint,
        constructors.lograndint,
        constructors.normal,
    )
}
