"""Settings of a process that a trial's code may change, and that the code of other trials would see.

``worker/surroundings`` has the table of Python's own settings; each adapter adds those of its framework.
"""

from __future__ import annotations

import contextlib
import enum
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


class Absent(enum.Enum):
    """The value of a key that a setting does not have."""

    ABSENT = enum.auto()

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent.ABSENT


class Shared:
    """A value that stays when a trial sets it, because all trials of a process may use it: the change is noticed."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shared) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


Changes = Mapping[str, Mapping[str, Any]]
"""Values of settings, by the name of the setting and by the key; a setting without keys has an empty key."""


class FoundChanges:
    """What some code has changed in the process: filled when the code has ended."""

    def __init__(self) -> None:
        #: What was put back, by setting and key.
        self.changes: dict[str, dict[str, Any]] = {}
        #: The names of what could not be put back.
        self.left: list[str] = []


Around = Callable[[Changes], contextlib.AbstractContextManager[FoundChanges]]
"""Opens a context in which a trial's own settings are in force, and after which those of the process are."""


def unwatched(own: Changes) -> contextlib.AbstractContextManager[FoundChanges]:
    """Leave all settings as they are."""
    return contextlib.nullcontext(FoundChanges())


@dataclass(frozen=True, slots=True)
class ProcessSetting:
    """One row of the table: how a setting is called, read and put back.

    The value of a setting with ``keys`` is a mapping. Each of its keys counts as a setting of its own, and ``restore``
    takes the values of some keys, ABSENT for those to remove.
    """

    name: str
    read: Callable[[], Any]
    #: Puts a value back; None for a setting that cannot be put back: a change is noticed.
    restore: Callable[[Any], object] | None
    keys: bool = False
    #: Reads enough of the setting to notice most changes, in about a microsecond; None if that takes longer.
    glance: Callable[[], object] | None = None

    def values(self) -> Mapping[str, Any]:
        """Return the present value by key."""
        found = self.read()
        return found if self.keys else {"": found}

    def put(self, values: Mapping[str, Any]) -> None:
        """Put some values back, if that is possible."""
        if self.restore is not None:
            self.restore(values if self.keys else values[""])


def patches(name: str, *owners: Any) -> ProcessSetting:
    """Return a setting whose keys are the public functions and classes of some modules and classes."""
    spaces = {getattr(owner, "__name__", ""): owner for owner in owners}
    reader = _Functions(spaces)

    def restore(values: Mapping[str, Any]) -> None:
        for path, value in values.items():
            space, _, function = path.rpartition(".")
            if value is ABSENT:
                delattr(spaces[space], function)
            else:
                setattr(spaces[space], function, value)

    return ProcessSetting(name, reader.read, restore, keys=True)


class _Functions:
    """Reads the functions and classes of some namespaces; large ones quickly, as long as nothing has changed."""

    def __init__(self, spaces: Mapping[str, Any]) -> None:
        self._spaces = spaces
        self._seen: list[dict[str, Any]] = []
        self._found: dict[str, Any] = {}

    def read(self) -> Mapping[str, Any]:
        if not self._unchanged():
            self._seen = [dict(vars(space)) for space in self._spaces.values()]
            self._found = {
                f"{name}.{key}": value
                for name, seen in zip(self._spaces, self._seen, strict=True)
                for key, value in seen.items()
                # Storage classes follow the default type.
                if callable(value) and not key.startswith("_") and not key.endswith("Storage")
            }
        return self._found

    def _unchanged(self) -> bool:
        try:
            return bool(self._seen) and all(map(operator.eq, self._seen, map(vars, self._spaces.values())))
        except Exception:  # of a value that cannot be compared with another
            return False


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are other than before, by key."""
    if same(before, now):
        return {}
    found: dict[str, Any] = {}
    for key in before.keys() | now.keys():
        value = now.get(key, ABSENT)
        if not same(before.get(key, ABSENT), value):
            found[key] = value
    return found


def same(one: object, other: object) -> bool:
    """Whether two values of a setting are the same; values that cannot be compared are not."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:
        return False


def alike(one: Changes, other: Changes) -> bool:
    """Whether the own settings of two trials are the same."""
    if one.keys() != other.keys():
        return False
    return all(one[name].keys() == other[name].keys() and not _differ(one[name], other[name]) for name in one)


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return not all(same(value, other[key]) for key, value in one.items())
