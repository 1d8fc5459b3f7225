"""Whose code is it? Which files are the user's own, and tracebacks that begin there."""

from __future__ import annotations

import dis
import os
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType, TracebackType

from hopfleet.errors import HopfleetError, describe

PACKAGES = ("site-packages", "dist-packages")
"""Folders of installed packages."""


def users_file(file: str) -> bool:
    """Whether a file of Python code is the user's: not Hopfleet's, not Python's and not of an installed package.

    Cells of notebooks, whose files exist only in name, are the user's.
    """
    if file.startswith("<") and not file.startswith(("<ipython", "<stdin", "<input")):
        return False
    # The first look spares most files the walk through links.
    return not _in_library(file) and not _in_library(os.path.realpath(file))


def is_users(kind: type) -> bool:
    """Whether a class is defined in code of the user's. That of a script or notebook has no module in a worker."""
    return kind.__module__ == "__main__" or _is_users_module(kind.__module__)


@lru_cache(4096)
def _is_users_module(name: str) -> bool:
    module = sys.modules.get(name)
    return module is None or users_file(getattr(module, "__file__", None) or "<none>")


@lru_cache(4096)
def _in_library(file: str) -> bool:
    return file.startswith(_libraries()) or not {*PACKAGES}.isdisjoint(Path(file).parts)


@cache
def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = [Path(__file__).parents[1], *(Path(paths[name]) for name in ("stdlib", "platstdlib"))]
    return tuple(f"{os.path.realpath(path)}{os.sep}" for path in found)


def users_traceback(error: BaseException) -> TracebackType | None:
    """Return an exception's traceback from the user's first frame on; None if it has no such frame."""
    found = error.__traceback__
    while found is not None and not users_file(found.tb_frame.f_code.co_filename):
        found = found.tb_next
    return found


def format_traceback(error: BaseException) -> str:
    """Return an exception as Python prints it, but from the user's first frame on.

    An exception without any frame of the user's is printed in full, unless Hopfleet raised it on purpose: its message
    says it all, and the text is empty.
    """
    whole = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    parts = [whole]
    while parts:
        part = parts.pop()
        if id(part) not in seen:
            seen.add(id(part))
            firsts = (number for number, frame in enumerate(part.stack) if users_file(frame.filename))
            del part.stack[: next(firsts, len(part.stack) if _on_purpose(part) else 0)]
            parts += [*filter(None, (part.__cause__, part.__context__)), *(part.exceptions or ())]
    alone = whole.__cause__ is None and (whole.__context__ is None or whole.__suppress_context__)
    return "" if alone and _on_purpose(whole) and not whole.stack else "".join(whole.format())


def _on_purpose(part: traceback.TracebackException) -> bool:
    return part.exc_type is not None and issubclass(part.exc_type, HopfleetError)


def place(error: BaseException) -> str:
    """Return the user's innermost frame in an exception's traceback as ``path/task.py:12``; empty if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if users_file(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def describe_with_place(error: BaseException) -> str:
    """Return an exception as one line with the user's innermost frame, as in ``(task.py:12)``, and its notes."""
    return describe(error, Path(place(error)).name)


def hook(error: BaseException) -> str:
    """Return the name of the user's first function in an exception's traceback, as in ``Digits.build``; or empty."""
    found = users_traceback(error)
    return "" if found is None else found.tb_frame.f_code.co_qualname


def interrupts(error: BaseException) -> bool:
    """Whether an exception is a Ctrl-C, rather than raised by code that a trial runs.

    Workers in processes of their own ignore Ctrl-C. In the user's process, Python raises KeyboardInterrupt wherever
    the code happens to be; only a statement in the user's own code raises it on purpose.
    """
    if isinstance(error, Exception) or not isinstance(error, KeyboardInterrupt):
        return isinstance(error, GeneratorExit)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return True
    code = last.tb_frame.f_code
    return not users_file(code.co_filename) or code.co_code[last.tb_lasti] != dis.opmap["RAISE_VARARGS"]


def users_modules(starts: Iterable[object]) -> list[ModuleType]:
    """Return the user's own modules that some values come from, and those that these modules refer to in turn."""
    waiting, seen = list(starts), dict[str, ModuleType]()
    while waiting:
        value = waiting.pop()
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is None or module.__name__ in seen:
            continue
        if name != "__main__" and not users_file(getattr(module, "__file__", None) or "<builtin>"):
            continue
        seen[module.__name__] = module
        waiting += vars(module).values()
    return [seen[name] for name in sorted(seen)]
