"""The pickle of a task for its workers or a file: the user's classes by value, and modules and operators by name."""

from __future__ import annotations

import io
import pkgutil
from types import ModuleType
from typing import Any

import cloudpickle

MAKE_CLASS = (cloudpickle.cloudpickle._make_skeleton_class, cloudpickle.cloudpickle._make_skeleton_enum)
"""What makes a class when a pickle is loaded; the last argument but one is the number of the class."""

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


class CopyingPickler(TaskPickler):
    """A pickler whose pickles make classes of their own each time they are loaded.

    The usual pickler gives a class a random number, by which a process that knows the class finds it again, and puts
    the pickled functions into it: where the user's class is, it would no longer see the globals of its module.
    """

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(reduced, tuple) and reduced[0] in MAKE_CLASS:
            make, (*arguments, _number, extra), *rest = reduced
            return make, (*arguments, None, extra), *rest
        return reduced


def dumps(value: object, pickler: type[TaskPickler] = TaskPickler) -> bytes:
    """Return the pickle of a value, with the classes and functions of the user's script."""
    with io.BytesIO() as file:
        pickler(file).dump(value)
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
