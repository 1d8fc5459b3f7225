"""The pickle of a task for its workers: the user's classes by value, and modules and operators by name."""

from __future__ import annotations

import io
import pkgutil
from types import ModuleType
from typing import Any

import cloudpickle

OPERATORS = ("OpOverload", "OpOverloadPacket")
"""The classes of PyTorch's operators, which live below ``torch.ops``."""


class TaskPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler for code that refers to special modules.

    Modules such as ``torch.backends.cudnn`` and ``torch.ops`` are objects of classes derived from ModuleType. The usual
    pickler fails at them, although every process can import them.
    """

    def reducer_override(self, obj: Any) -> Any:
        name = _name(obj)
        return super().reducer_override(obj) if name is None else (pkgutil.resolve_name, (name,))


def dumps(value: object) -> bytes:
    """Return the pickle of a value, with the classes and functions of the user's script."""
    with io.BytesIO() as file:
        TaskPickler(file).dump(value)
        return file.getvalue()


def _name(value: object) -> str | None:
    """Return the name under which any process finds a special module or an operator; None for all other values."""
    kind = type(value)
    if isinstance(value, ModuleType) and kind is not ModuleType:
        name = value.__name__
    elif kind.__name__ in OPERATORS and kind.__module__.startswith("torch."):
        name = f"torch.ops.{value}"
    else:
        return None
    try:
        return name if pkgutil.resolve_name(name) is value else None
    except (ImportError, AttributeError, ValueError):
        return None
