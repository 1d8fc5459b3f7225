"""Puts a mutant into functions that are loaded already, which takes no import and leaves all files as they are."""

from __future__ import annotations

import ast
import gc
from pathlib import Path
from types import FunctionType

from tools.mutants.mutators import Mutant

Key = tuple[str, str, int]
"""File, name and first line of a function."""


def loaded_functions(folder: Path) -> dict[Key, list[FunctionType]]:
    """Return all functions that come from files in a folder; a function may have copies."""
    gc.unfreeze()  # frozen objects are not listed
    found: dict[Key, list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(f"{folder}/"):
            code = each.__code__
            found.setdefault((code.co_filename, code.co_name, code.co_firstlineno), []).append(each)
    gc.freeze()
    return found


def swap(mutant: Mutant, source: str, file: Path, functions: dict[Key, list[FunctionType]]) -> None:
    """Put a mutant into the function of this process; raise LookupError if it is not loaded.

    ``source`` is the text of the file when it was imported.
    """
    code = mutant.code(source, str(file))
    key = (code.co_filename, code.co_name, code.co_firstlineno)
    if key not in functions:
        raise LookupError(f"{mutant.name}: not loaded")
    for function in functions[key]:
        if mutant.default is None:
            function.__code__ = code
        else:
            _set_default(function, mutant)


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
