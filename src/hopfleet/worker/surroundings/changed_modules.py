"""Values that a script has set in modules, such as ``settings.SIZE = 3`` after ``import settings``.

Workers import such modules anew and would not see the values. A change is found by comparison with the source: a name
that the source binds once, to a literal, and that now has another value was set from outside, and so was a name that
the source does not contain. Plain values travel to workers; of others, the user is warned. In installed packages, whose
own code may do anything, only plain values in place of literals count.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from hopfleet.frameworks.base import Task
from hopfleet.support.user_code import PACKAGES, users_file

MODULES = 200
"""Modules that are compared with their source at most."""

FRAMEWORKS = ("flax", "hopfleet", "jax", "keras", "lightning", "numpy", "optax", "tensorflow", "torch", "transformers")
"""Packages whose modules are not compared."""

LARGEST = 64_000
"""Bytes of an installed module's source that are compared at most."""

DYNAMIC = ("import *", "globals()", "exec(", "setattr(")
"""Words of a source that may bind names which do not occur in it."""

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types of values that mean the same in every process; tuples, lists, sets and dicts of them do, too."""


class Changes(NamedTuple):
    """The values that were set in modules, and the names of those that cannot travel."""

    values: dict[str, dict[str, Any]]
    stuck: list[str]


def changes(task: Task) -> Changes:
    """Return what was changed in the user's own modules that the code of a task can reach."""
    found = Changes({}, [])
    for module in _own_modules(task):
        for name in _changed(module):
            value = getattr(module, name)
            if _is_plain(value):
                found.values.setdefault(module.__name__, {})[name] = value
            else:
                found.stuck.append(f"{module.__name__}.{name}")
    for module in _installed_modules(task):
        plain = {name: value for name in _replaced(module) if _is_plain(value := getattr(module, name))}
        if plain:
            found.values[module.__name__] = plain
    return found


def _installed_modules(task: Task) -> list[ModuleType]:
    """Return the modules of installed packages that the module of a task refers to by a name of their own.

    Frameworks have settings of their own, which travel anyway, and large sources take long to parse.
    """
    values = vars(sys.modules.get(type(task).__module__, ModuleType(""))).values()
    found = {value.__name__: value for value in values if type(value) is ModuleType}
    return [module for name, module in found.items() if name.partition(".")[0] not in FRAMEWORKS and _is_short(module)]


def _is_short(module: ModuleType) -> bool:
    """Whether a module is a file of an installed package that does not take long to parse."""
    path = Path(getattr(module, "__file__", None) or "")
    return not {*PACKAGES}.isdisjoint(path.parts) and path.suffix == ".py" and path.stat().st_size <= LARGEST


def _own_modules(task: Task) -> list[ModuleType]:
    """Return the user's own modules that the module of a task refers to, directly or through other such modules."""
    folders = [Path(entry).resolve() for entry in dict.fromkeys(["", sys.path[0]])]
    start = sys.modules.get(type(task).__module__)
    waiting, seen = [start] if start is not None else [], dict[str, ModuleType]()
    while waiting and len(seen) < MODULES:
        module = waiting.pop()
        seen[module.__name__] = module
        for value in list(vars(module).values()):
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            other = sys.modules.get(name) if isinstance(name, str) else None
            if other is not None and other.__name__ not in seen and other not in waiting and _is_own(other, folders):
                waiting.append(other)
    return [module for module in seen.values() if module is not start or _is_own(module, folders)]


def _is_own(module: ModuleType, folders: list[Path]) -> bool:
    """Whether workers import a module from a file in one of the folders, which is not an installed package."""
    file = getattr(module, "__file__", None)
    if type(module) is not ModuleType or not file or getattr(module, "__spec__", None) is None:
        return False  # of a script that is running, the values travel with the task
    path = Path(file).resolve()
    if module.__name__.startswith("__") or path.suffix != ".py" or not path.is_file():
        return False
    return users_file(file) and any(folder in path.parents for folder in folders)


def _changed(module: ModuleType) -> list[str]:
    """Return the names whose values differ from the source of a module."""
    return [*_replaced(module), *_added(module)]


def _added(module: ModuleType) -> list[str]:
    """Return the names of plain values that do not occur in the source of a module."""
    try:
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return []
    if any(words in source for words in DYNAMIC):
        return []
    return [name for name, value in vars(module).items() if name[0] != "_" and name not in source and _is_plain(value)]


def _replaced(module: ModuleType) -> list[str]:
    """Return the names that the source of a module binds to a literal, a function or a class, if they have changed."""
    try:
        tree = _parsed(Path(str(module.__file__)).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    values = vars(module)
    differ = [name for name, same in _claims(tree, module.__name__) if name in values and not same(values[name])]
    bound = Counter(_bound(tree) if differ else ())
    return [name for name in differ if bound[name] == 1 and not bound["*"]]  # ``import *`` binds unknown names


@functools.lru_cache(maxsize=32)
def _parsed(source: bytes) -> ast.Module:
    return ast.parse(source)


def _claims(tree: ast.Module, module: str) -> Iterator[tuple[str, Callable[[object], bool]]]:
    """Yield the names that a source binds at its top level, each with a test whether a value is still the same."""
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                with contextlib.suppress(ValueError, TypeError, SyntaxError):
                    literal = ast.literal_eval(value)
                    if not isinstance(literal, list | dict | set):  # the module's own code may fill these
                        yield name, functools.partial(_is_literal, literal)
            case ast.FunctionDef(name=name, decorator_list=[]) | ast.ClassDef(name=name, decorator_list=[]):
                yield name, functools.partial(_is_defined_in, module)
            case _:
                pass


def _bound(tree: ast.Module) -> Iterator[str]:
    """Yield each name as often as the source may bind it: names that functions declare as global count as well."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.partition(".")[0]
            case ast.Global(names=names):
                yield from names
            case _:
                pass


def _is_literal(literal: object, value: object) -> bool:
    return type(value) is type(literal) and repr(value) == repr(literal)


def _is_defined_in(module: str, value: object) -> bool:
    if isinstance(value, FunctionType) and value.__code__.co_filename == sys.modules[module].__file__:
        return True  # under another name of its module
    return isinstance(value, FunctionType | type) and value.__module__ == module


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, tuple | list | set | frozenset):
        return type(value) in (tuple, list, set, frozenset) and all(map(_is_plain, value))
    return type(value) in PLAIN
