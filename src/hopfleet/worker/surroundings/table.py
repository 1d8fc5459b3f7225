"""The table of what a trial's code may change in its process, beside what belongs to a framework.

Random streams are not in the table: sessions put those of a trial in place, and versions contain them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import builtins
import contextlib
import decimal
import gc
import locale
import logging
import math
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hopfleet.frameworks.base import Task
from hopfleet.frameworks.process_settings import ABSENT, ProcessSetting, patches
from hopfleet.worker.surroundings.changed_modules import FRAMEWORKS
from hopfleet.worker.surroundings.namespaces import Namespaces

DESCRIPTORS: Mapping[str, int] = {"stdin": 0, "stdout": 1, "stderr": 2}
"""The descriptors of the standard streams."""

SIGNALS: Mapping[str, int] = {
    name: int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGCHLD", "SIGQUIT")
    if hasattr(signal, name)
}
"""The numbers of signals that programs handle."""

IMPORTED = "sympy.utilities.exceptions"
"""A module that adds a filter for its own warning. An engine may have it imported in a thread while trials train."""

PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
"""Parts of the names of folders that belong to installed packages."""


def settings_of(task: Task, *, attributes: bool = True) -> list[ProcessSetting]:
    """Return the table for the code of a task: the settings of Python, of its framework, and of its own names.

    Unless ``attributes`` of the task belong to a trial, they are left as they are.
    """
    names = Namespaces(task, attributes=attributes)
    return [
        *shared_settings(task),
        ProcessSetting("names in your code", names.read, names.restore, keys=True),
    ]


def shared_settings(task: Task) -> list[ProcessSetting]:
    """Return the settings of Python and of a task's framework, which all code of a process shares."""
    return [*python_settings(), *task.framework.process_settings()]


def python_settings() -> list[ProcessSetting]:
    """Return the settings of Python and its standard library, and of NumPy."""
    return [
        *(_stream(name) for name in DESCRIPTORS),
        ProcessSetting("the working directory", _folder, _change_folder, glance=_folder),
        ProcessSetting("environment variables", _variables, partial(_put_keys, os.environb), keys=True),
        ProcessSetting("the umask", _umask, os.umask),
        ProcessSetting("the locale", partial(locale.setlocale, locale.LC_ALL), _set_locale),
        ProcessSetting("sys.path", _search_path, _set_search_path),
        ProcessSetting("the warnings filters", _filters, _set_filters, glance=_filters),
        ProcessSetting("signal handlers", _handlers, _set_handlers, keys=True),
        ProcessSetting("loggers", _loggers, _set_loggers, keys=True),
        ProcessSetting("the decimal context", DecimalContext, lambda value: decimal.setcontext(value.context)),
        ProcessSetting("NumPy's handling of errors", np.geterr, lambda value: np.seterr(**value)),
        ProcessSetting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
        ProcessSetting("the garbage collector", lambda: (gc.isenabled(), gc.get_threshold()), _set_collector),
        _attributes("hooks of the interpreter", sys, ("excepthook", "displayhook", "breakpointhook")),
        ProcessSetting("hooks of warnings", _warning_hooks, _set_warning_hooks),
        patches("patches of Python and NumPy", builtins, random, math, np, np.random),
    ]


def _attributes(name: str, owner: object, names: Iterable[str]) -> ProcessSetting:
    """Return a setting with some attributes of an object as its keys."""
    chosen = tuple(names)

    def restore(values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            setattr(owner, key, value)

    return ProcessSetting(name, lambda: {key: getattr(owner, key) for key in chosen}, restore, keys=True)


def _put_keys(target: Any, values: Mapping[str, Any]) -> None:
    """Set or remove some keys of a mapping."""
    for key, value in values.items():
        if value is ABSENT:
            target.pop(key, None)
        else:
            target[key] = value


def _search_path() -> list[str]:
    """Return where modules are looked for, without what installed packages have added for their own."""
    return [entry for entry in sys.path if not _of_package(entry)]


def _set_search_path(value: Sequence[str]) -> None:
    """Put the path back. Packages keep their part: another thread may be importing one, such as setuptools."""
    sys.path[:] = [*value, *(entry for entry in sys.path if _of_package(entry))]


def _of_package(entry: object) -> bool:
    """Whether an entry is a folder inside an installed package."""
    text = str(entry)
    return any(name in text for name in PACKAGES)


# ----------------------------------------------------------------------------------------------- standard streams


def _stream(name: str) -> ProcessSetting:
    def read() -> Any:
        found = getattr(sys, name)
        return _CLOSED if getattr(found, "closed", False) else found

    return ProcessSetting(f"sys.{name}", read, partial(_put_stream, name), glance=read)


_CLOSED = "a stream that is closed"


def _put_stream(name: str, value: Any) -> None:
    """Put a standard stream back; one that was closed is opened anew."""
    if getattr(value, "closed", False):
        number = DESCRIPTORS[name]
        try:
            os.fstat(number)
        except OSError:  # closed with its stream
            spare = os.open(os.devnull, os.O_RDWR)
            if spare != number:
                os.dup2(spare, number)
                os.close(spare)
        value = open(number, "r" if number == 0 else "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    elif isinstance(value, str):
        value = getattr(sys, f"__{name}__")
    setattr(sys, name, value)


# ------------------------------------------------------------------------------------------------- the process


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - called before each turn
    except OSError:
        return ""  # the folder was deleted


def _change_folder(path: str) -> None:
    with contextlib.suppress(OSError):
        os.chdir(path)


def _variables() -> dict[Any, Any]:
    """Return the environment variables as the process has them: to decode all of them would take long."""
    found: dict[Any, Any] = vars(os.environ)["_data"].copy()
    return found


def _umask() -> int:
    """Return the umask. Other threads create files meanwhile, so it is not set to be read where Linux tells it."""
    with contextlib.suppress(OSError, IndexError):
        file = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 4096).split(b"\nUmask:", 1)[1].split(maxsplit=1)[0], 8)
        finally:
            os.close(file)
    found = os.umask(0o077)
    os.umask(found)
    return found


def _set_locale(value: str) -> None:
    locale.setlocale(locale.LC_ALL, value)


def _handlers() -> dict[str, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {name: _signal.getsignal(number) for name, number in SIGNALS.items()}


def _set_handlers(values: Mapping[str, Any]) -> None:
    for name, handler in values.items():
        if handler not in (None, ABSENT):  # a handler that C code has set
            signal.signal(SIGNALS[name], handler)


# ------------------------------------------------------------------------------------ parts of the standard library


def _filters(*, imported: bool = False) -> list[Any]:
    return [one for one in warnings.filters if (getattr(one[2], "__module__", "") == IMPORTED) is imported]


def _set_filters(value: list[Any]) -> None:
    warnings.filters[:] = [*_filters(imported=True), *value]  # type: ignore[index]
    with warnings.catch_warnings():  # afterwards, Python forgets what it knew of the filters before
        pass


def _warning_hooks() -> tuple[bool, Any, Any]:
    """Return whether warnings are logged, and the functions that show them."""
    return warnings.showwarning.__module__ == logging.__name__, warnings.showwarning, warnings.formatwarning


def _set_warning_hooks(value: tuple[bool, Any, Any]) -> None:
    logged, shows, formats = value
    logging.captureWarnings(logged)
    warnings.showwarning, warnings.formatwarning = shows, formats


def _loggers() -> dict[str, Any]:
    """Return level, handlers and propagation of the root and of the user's own loggers, and what all of them ignore."""
    root = logging.getLogger()
    found: dict[str, Any] = {"disable": root.manager.disable}
    found[""] = root.level, tuple(root.handlers), root.propagate, root.disabled
    for name, one in root.manager.loggerDict.copy().items():
        if isinstance(one, logging.PlaceHolder) or not (one.level or one.handlers or not one.propagate or one.disabled):
            continue  # the most common cases first: PyTorch has hundreds of loggers
        if name.partition(".")[0] not in FRAMEWORKS:
            found[name] = one.level, tuple(one.handlers), one.propagate, one.disabled
    return found


def _set_loggers(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name == "disable":
            logging.disable(value)
            continue
        logger = logging.getLogger(name)
        level, handlers, propagates, disabled = (0, (), True, False) if value is ABSENT else value
        logger.propagate, logger.disabled = propagates, disabled
        logger.setLevel(level)
        logger.handlers[:] = handlers


class DecimalContext:
    """The present context of decimal numbers. Which signals were seen so far does not matter."""

    def __init__(self) -> None:
        self.context = decimal.getcontext().copy()
        self.context.clear_flags()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecimalContext) and repr(self.context) == repr(other.context)

    __hash__ = None  # type: ignore[assignment]


def _set_collector(value: tuple[bool, tuple[int, int, int]]) -> None:
    enabled, thresholds = value
    (gc.enable if enabled else gc.disable)()
    gc.set_threshold(*thresholds)
