"""Names in the user's own code that a trial may bind anew: globals of modules, attributes of classes and of the task.

Plain values, functions and classes are put back, and so is what dicts and plain objects contain (see ``holders``).
Other objects are often made once for all trials, such as a tokenizer, and lists may collect what all trials do, so they
stay as they are and are noticed. An attribute that is set on the task belongs to the trial, whatever its value.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from hopfleet.frameworks.base import Task
from hopfleet.frameworks.process_settings import ABSENT, Shared, same
from hopfleet.support.user_code import is_users, users_file, users_modules
from hopfleet.worker.surroundings.changed_modules import PLAIN
from hopfleet.worker.surroundings.holders import CODE, DICTS, Holder, holder_of

MOST_ITEMS = 1000
"""Items of a container up to which its content is compared."""

TASK = "self"
"""The name of the task in the names of its attributes."""


class Content(Shared):
    """A list, set or other container, and what it contains."""

    __slots__ = ("_copy",)

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._copy = value.copy() if len(value) <= MOST_ITEMS else len(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.value is other.value and same(self._copy, other._copy)

    __hash__ = None

    @property
    def is_current(self) -> bool:
        """Whether the container still has this content."""
        return bool(self._copy == (self.value if len(self.value) <= MOST_ITEMS else len(self.value)))


class Namespaces:
    """The namespaces of the code of one task. They are looked up anew when modules have been imported."""

    def __init__(self, task: Task, *, attributes: bool = True) -> None:
        while isinstance(inner := getattr(task, "inner", None), Task):
            task = inner
        self._task = task
        #: Whether the attributes of the task are among the names.
        self._attributes = attributes
        self._imported = -1
        self._spaces: dict[str, Any] = {}
        #: What was read last: the names of each space, and the containers among their values.
        self._seen: list[dict[str, Any]] = []
        self._contents: list[Content | Holder] = []
        self._found: dict[str, Any] = {}

    def read(self) -> Mapping[str, Any]:
        """Return the values of all names: the same object as long as nothing has changed."""
        if self._imported != len(sys.modules):
            self._spaces = dict(_spaces(self._task))
            if not self._attributes:
                del self._spaces[TASK]
            self._imported = len(sys.modules)
            self._seen = []
        if not self._unchanged():
            self._seen = [dict(_names(owner)) for owner in self._spaces.values()]
            self._found = {
                f"{space}.{name}": self._kept(owner, value)
                for (space, owner), seen in zip(self._spaces.items(), self._seen, strict=True)
                for name, value in seen.items()
                if not name.startswith("__")
            }
            self._contents = [value for value in self._found.values() if isinstance(value, Content | Holder)]
        return self._found

    def _unchanged(self) -> bool:
        try:
            return len(self._seen) == len(self._spaces) and (
                all(map(_same_names, self._seen, map(_names, self._spaces.values())))
                and all(content.is_current for content in self._contents)
            )
        except Exception:  # of a value that cannot be compared with another
            return False

    def _kept(self, owner: Any, value: Any) -> Any:
        if owner is not self._task and (holder := holder_of(value)) is not None:
            return holder
        if type(value) in (list, set, deque, *DICTS):
            return Content(value)
        put_back = owner is self._task or type(value) in PLAIN or isinstance(value, CODE)
        return value if put_back else Shared(value)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Bind some names to the values that ``read`` returned."""
        for path, kept in values.items():
            space, _, name = path.rpartition(".")
            owner = self._spaces.get(space)
            if owner is None:
                continue
            value = kept.value if isinstance(kept, Shared) else kept.restore() if isinstance(kept, Holder) else kept
            if isinstance(owner, dict):
                if value is ABSENT:
                    owner.pop(name, None)
                else:
                    owner[name] = value
            elif value is ABSENT:
                if name in _names(owner):
                    delattr(owner, name)
            else:
                setattr(owner, name, value)


def _same_names(before: dict[str, Any], now: Mapping[str, Any]) -> bool:
    return bool(before == now)


def _names(owner: Any) -> Mapping[str, Any]:
    """Return the names of a namespace: the globals of a module, a class or an object."""
    return owner if isinstance(owner, dict) else getattr(owner, "__dict__", {})


def _spaces(task: Task) -> Iterator[tuple[str, Any]]:
    """Yield the namespaces of a task's code, each with its name."""
    yield TASK, task
    kinds = [kind for kind in type(task).__mro__ if is_users(kind)]
    # The code of a script that travelled to a worker has globals that belong to no module.
    functions = [value for owner in (task, *kinds) for value in _names(owner).values() if type(value) is FunctionType]
    known: dict[int, tuple[str, dict[str, Any]]] = {}
    for function in functions:
        if users_file(function.__code__.co_filename):
            known.setdefault(id(function.__globals__), (function.__module__, function.__globals__))
    for module in users_modules([*kinds, *functions]):
        known.setdefault(id(vars(module)), (module.__name__, vars(module)))
    found: dict[str, Any] = {}
    for name, names in known.values():
        found.setdefault(name, names)
        for value in list(names.values()):
            if isinstance(value, type) and value.__module__ == name and is_users(value):
                found.setdefault(f"{name}.{value.__qualname__}", value)
    for kind in kinds:
        found.setdefault(f"{kind.__module__}.{kind.__qualname__}", kind)
    yield from found.items()
