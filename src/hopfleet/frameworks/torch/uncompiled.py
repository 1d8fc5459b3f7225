"""PyTorch's compiler, kept out of processes that compile nothing.

The first optimizer of a process imports ``torch._dynamo``, only to tell it to look away, and so do functions that
differentiate others. That takes as long as to import torch, and tens of megabytes. A stand-in takes notice instead.
Whoever wants anything else of the compiler gets the real one, which is imported then, and is told again.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

COMPILER = "torch._dynamo"

TOLD = "__dynamo_disable"
"""Where torch keeps what the compiler made of a function that it was told to leave alone."""


class Gradients:
    """The compiler of backward passes, as far as functions know it that differentiate others."""

    def _disable(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is compiled, so there is nothing to switch off."""
        return contextlib.nullcontext()

    def __getattr__(self, name: str) -> Any:
        return getattr(loaded().compiled_autograd, name)


class StandIn(ModuleType):
    """The compiler, as far as optimizers know it."""

    def __init__(self) -> None:
        super().__init__(COMPILER, __doc__)
        self.__file__ = __file__
        #: As a package has it, so that its modules are looked for.
        self.__path__: list[str] = []
        self._left_alone: list[Any] = []
        self.compiled_autograd = Gradients()

    def disable(self, function: Any = None, recursive: bool = True, **how: Any) -> Any:
        if not callable(function):
            return loaded().disable(function, recursive, **how)
        self._left_alone.append(function)
        return function

    def graph_break(self, *reason: Any, **more: Any) -> None:
        """Nothing is compiled, so there is nothing to break."""

    def __getattr__(self, name: str) -> Any:
        return getattr(loaded(), name)

    def leave(self) -> ModuleType:
        """Make room for the real one; returns it."""
        for function in self._left_alone:
            function.__dict__.pop(TOLD, None)
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
        del sys.modules[COMPILER], torch._dynamo
        real = importlib.import_module(COMPILER)
        # Who holds on to the stand-in has the same.
        self.__dict__.update(real.__dict__)
        return real


class Finder(MetaPathFinder):
    """Finds the modules of the compiler, once it is there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{COMPILER}."):
            return None
        loaded()
        module = importlib.import_module(fullname)
        return ModuleSpec(fullname, Given(module), origin=module.__file__)


class Given(Loader):
    """Loads a module that is loaded already."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        pass


def loaded() -> ModuleType:
    """The real compiler."""
    there = sys.modules.get(COMPILER)
    return there.leave() if isinstance(there, StandIn) else importlib.import_module(COMPILER)


def keep_out() -> None:
    """Put the stand-in into place, unless the compiler is there already."""
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = torch._dynamo = StandIn()
        sys.meta_path.insert(0, Finder())


keep_out()
