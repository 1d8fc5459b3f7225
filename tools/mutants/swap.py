"""Puts a mutant into functions that are loaded already, which takes no import and leaves all files as they are."""

from __future__ import annotations

import ast
import gc
from pathlib import Path
from types import CodeType, FunctionType

from tools.mutants.mutators import Mutant

Key = tuple[str, str, int]
"""File, name and first line of a function."""


def loaded_functions(folder: Path) -> dict[Key, list[FunctionType]]:
    """Return all functions that come from files in a folder; a function may have copies."""
    gc.unfreeze()  # frozen objects are not listed
    found: dict[Key, list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(f"{folder}/"):
            found.setdefault(_key(each.__code__), []).append(each)
    gc.freeze()
    return found


def swap(mutant: Mutant, source: str, file: Path, functions: dict[Key, list[FunctionType]]) -> None:
    """Put a mutant into the function of this process; raise LookupError if it is not loaded.

    ``source`` is the text of the file when it was imported.
    """
    code = mutant.code(source, str(file))
    if _key(code) not in functions:
        raise LookupError(f"{mutant.name}: not loaded")
    for function in functions[_key(code)]:
        if mutant.default is None:
            function.__code__ = code
        else:
            _set_default(function, mutant)
    for inner in _inner(code) if mutant.default is None else ():
        for function in functions.get(_key(inner), ()):  # which was made by a call at the import
            if len(function.__code__.co_freevars) == len(inner.co_freevars):
                function.__code__ = inner


def _key(code: CodeType) -> Key:
    return code.co_filename, code.co_name, code.co_firstlineno


def _inner(code: CodeType) -> list[CodeType]:
    """Return the code of functions within a function, unless two of them have the same name and line."""
    found: dict[Key, list[CodeType]] = {}
    codes = [code]
    while codes:
        for each in codes.pop().co_consts:
            if isinstance(each, CodeType):
                found.setdefault(_key(each), []).append(each)
                codes.append(each)
    return [same[0] for same in found.values() if len(same) == 1]


def _set_default(function: FunctionType, mutant: Mutant) -> None:
    assert mutant.default is not None and isinstance(mutant.replacement, ast.Constant)
    field, place = mutant.default
    assert place is not None
    value, code = mutant.replacement.value, function.__code__
    if field == "defaults":
        defaults = list(function.__defaults__ or ())
        defaults[place] = value
        function.__defaults__ = tuple(defaults)
    else:
        name = code.co_varnames[code.co_argcount + place]
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), name: value}
