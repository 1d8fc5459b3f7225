"""The surroundings of the user's code: how the script has configured ``logging`` and ``warnings``, and which values it
has set in modules of its own. They are read in the script's process, travel with the WorkerSpec, and hold in workers.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cloudpickle

from hopfleet.frameworks.base import Task
from hopfleet.support.logging import StandardError, messages
from hopfleet.support.user_code import users_file
from hopfleet.worker.pickling import dumps
from hopfleet.worker.surroundings.changed_modules import changes


class Output(NamedTuple):
    """How records are written to a stream; by default as Python does where no handler is configured."""

    level: int = logging.WARNING
    #: A pickled logging.Formatter; empty if records are written without any frills.
    formatter: bytes = b""

    @classmethod
    def of_script(cls) -> Output:
        """Return how the root writes to its first stream; if it has none, how another of the script's loggers does."""
        root = logging.getLogger()
        for logger in [root, *root.manager.loggerDict.values()]:
            if not isinstance(logger, logging.Logger) or not logger.handlers:
                continue
            if logger is not root and _is_of_package(logger.name):
                continue
            for handler in logger.handlers:
                if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                    with contextlib.suppress(Exception):
                        return cls(handler.level, dumps(handler.formatter))
                    return cls(handler.level)
        return cls()

    def configure(self, handler: logging.Handler) -> None:
        """Let a handler write in the same way."""
        handler.setLevel(self.level)
        handler.setFormatter(None)
        # The class of a formatter may be one that cannot be imported here.
        with contextlib.suppress(Exception):
            handler.setFormatter(cloudpickle.loads(self.formatter))


def _is_of_package(logger: str) -> bool:
    """Whether a logger belongs to an installed package, Hopfleet included; strobelight is a part of PyTorch."""
    package = logger.partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None)
    return package.startswith("strobelight") or (file is not None and not users_file(file))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a worker takes over from the script's process; the default takes over nothing."""

    #: The levels of loggers by name, that of the root by an empty name.
    levels: Mapping[str, int] = field(default_factory=dict)
    #: The level up to which ``logging.disable`` suppresses records.
    disabled: int = logging.NOTSET
    output: Output = field(default_factory=Output)
    #: Whether ``logging.captureWarnings`` is on.
    logs_warnings: bool = False
    #: The filters of warnings, each pickled by itself, with the package of its category; None leaves the worker's own.
    filters: tuple[tuple[str, bytes], ...] | None = None
    #: Values that the script has set in modules, by the name of the module and of the attribute.
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Names that the script has replaced in modules, whose values cannot travel.
    stuck: tuple[str, ...] = ()

    @classmethod
    def of(cls, task: Task) -> Surroundings:
        """Return the surroundings of this process, for a task."""
        found = changes(task)
        return cls(
            levels=dict(_levels()),
            disabled=logging.getLogger().manager.disable,
            output=Output.of_script(),
            logs_warnings=warnings.showwarning.__module__ == logging.__name__,
            filters=tuple(_filters()),
            modules=found.values,
            stuck=tuple(found.stuck),
        )

    def adopt(self) -> None:
        """Take over these surroundings in this process."""
        for name, level in self.levels.items():
            logging.getLogger(name).setLevel(level)
        logging.disable(self.disabled)
        handler = StandardError()
        self.output.configure(handler)
        logging.getLogger().addHandler(handler)
        if self.filters is not None:
            _adopt_filters(self.filters)
        logging.captureWarnings(self.logs_warnings)
        for module, values in self.modules.items():
            try:
                found = importlib.import_module(module)
            except ImportError as error:
                messages().warning("%s: %s", module, error)
                continue
            for name, value in values.items():
                setattr(found, name, value)


def _levels() -> Iterator[tuple[str, int]]:
    root = logging.getLogger()
    yield "", root.level
    for name, logger in list(root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET:
            yield name, logger.level


def _filters() -> Iterator[tuple[str, bytes]]:
    """Yield the filters of warnings, each with the package of its category. One that cannot be pickled is left out."""
    for action, message, category, module, line in warnings.filters:
        patterns = [getattr(pattern, "pattern", pattern) or "" for pattern in (message, module)]
        with contextlib.suppress(Exception):
            pickled = dumps((action, patterns[0], category, patterns[1], line))
            yield category.__module__.partition(".")[0], pickled


def _adopt_filters(filters: tuple[tuple[str, bytes], ...]) -> None:
    warnings.resetwarnings()
    for package, each in filters:
        # Importing PyTorch takes seconds and makes these filters itself: a task that does without it need not wait.
        if package == "torch" and package not in sys.modules:
            continue
        # A category of a module that cannot be imported here cannot be warned of here.
        with contextlib.suppress(Exception):
            action, message, category, module, line = cloudpickle.loads(each)
            warnings.filterwarnings(action, message, category, module, line, append=True)
