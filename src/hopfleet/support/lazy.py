"""Modules whose public names are loaded when they are first used.

Such a module states its names once, as imports that only type checkers and editors execute::

    if TYPE_CHECKING:
        from hopfleet.search.base import Search as Search
    else:
        __all__, __getattr__, __dir__ = lazy(__name__)

So the source of the module must be installed with it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any


def lazy(
    module: str, elsewhere: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a module.

    ``elsewhere`` tells what to write instead of the names of other libraries.
    """
    names = vars(sys.modules[module])
    source: bytes = names["__loader__"].get_data(names["__file__"])
    homes = _homes(source.decode("utf-8", errors="replace"))
    if not homes:
        raise ImportError(f"{module}: its source file is missing; install Hopfleet with its .py files")

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(
                f"module {module!r} has no attribute {name!r}{_remedy(name, module, homes, elsewhere)}"
            )
        # Imported modules stay. Looking through all of them for garbage, again and again, takes a third of the time.
        collects = gc.isenabled()
        gc.disable()
        try:
            home = import_module(homes[name])
            names[name] = getattr(home, name) if hasattr(home, name) else import_module(f"{homes[name]}.{name}")
        finally:
            if collects:
                gc.enable()
        return names[name]

    return sorted(homes), load, lambda: sorted(homes)


def _homes(source: str) -> dict[str, str]:
    """Return the module of each name that a source imports as itself."""
    homes = {}
    for line in source.splitlines():
        match line.split():
            case ["from", home, "import", name, "as", public] if name == public:
                homes[name] = home
    return homes


def _remedy(name: str, module: str, known: Mapping[str, str], elsewhere: Mapping[str, str]) -> str:
    if name.startswith("__"):  # tools look for such names; users do not mistype them
        return ""
    from hopfleet.phrases import did_you_mean

    where = elsewhere.get(name)
    return "; " + (
        f"write {where}" if where else did_you_mean(name, known).rstrip() or f"dir({module}) lists all names"
    )
