"""Digests of the user's code that a task or recipe reaches, to tell whether the code has changed since."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from hopfleet.support.user_code import users_file

MOST = 500
"""Pieces of code to follow at most."""

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def digests(value: object) -> dict[str, str]:
    """Return a digest of each function, method and constant of the user's that a task or function reaches, by name.

    Functions and classes are followed by the names that they use. Comments, docstrings and layout do not count.
    Pieces without source text, such as those typed into an interactive interpreter, are left out.
    """
    found: dict[str, str] = {}
    visited: set[int] = set()
    start = value if isinstance(value, FunctionType) else type(value)
    waiting: list[tuple[str, Any]] = [(start.__qualname__, start)]
    with contextlib.suppress(TypeError):  # an object with slots has no attributes to list
        waiting += [(f"self.{name}", each) for name, each in vars(value).items()]
    while waiting and len(visited) < MOST:
        name, value = waiting.pop()
        if _plain(value):
            found[name] = _digest(repr(value))
        elif id(value) not in visited:
            visited.add(id(value))
            if isinstance(value, type):
                waiting += _members(value)
            elif isinstance(value, FunctionType) and users_file(value.__code__.co_filename):
                text = _source(value)
                if text:
                    found[value.__qualname__] = _digest(text)
                waiting += _used(value)
    return dict(sorted(found.items()))


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names of the pieces that have changed. Without digests of both, nothing has."""
    if not before or not now:
        return []
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_plain, value))
    return isinstance(value, PLAIN)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the names and values in the bodies of a class and of its bases, as far as they are the user's."""
    for base in kind.__mro__:
        module = sys.modules.get(base.__module__)
        if not users_file(getattr(module, "__file__", None) or "<ipython"):
            continue
        for name, value in vars(base).items():
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            elif isinstance(value, property):
                value = value.fget
            if not name.startswith("__") or isinstance(value, FunctionType):
                yield f"{base.__qualname__}.{name}", value


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of what a function uses: globals, members of the user's modules, and closures."""
    names = set(_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if not isinstance(value, ModuleType):
            yield name, value
        elif users_file(getattr(value, "__file__", None) or "<builtin>"):
            yield from ((f"{name}.{member}", vars(value)[member]) for member in sorted(names & vars(value).keys()))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            yield name, cell.cell_contents


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _source(function: FunctionType) -> str:
    """Return a function's source without comments, docstrings and layout; empty if there is none."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError, IndexError, tokenize.TokenError):
        return ""  # no source, a file that has changed since, or a lambda in the middle of an expression
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
