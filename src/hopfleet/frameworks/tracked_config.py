"""Configurations that remember which of their keys a task has read."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from hopfleet.errors import MissingKey
from hopfleet.phrases import did_you_mean, listed


class TrackedConfig(dict[str, Any]):
    """A configuration that remembers which keys were read. Nested dicts are tracked as dotted paths.

    It is a copy: a task that changes it changes nothing else. ``changed`` tells.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        seen: set[str] | None = None,
        prefix: str = "",
        absent: set[str] | None = None,
    ) -> None:
        self._seen: set[str] = set() if seen is None else seen
        #: Keys that were asked for in vain.
        self._absent: set[str] = set() if absent is None else absent
        self._prefix = prefix

        def own(key: str, value: Any) -> Any:
            if isinstance(value, Mapping):
                return TrackedConfig(value, self._seen, f"{prefix}{key}.", self._absent)
            return copy.deepcopy(value) if isinstance(value, list) else value

        super().__init__({key: own(key, value) for key, value in values.items()})

    def unused(self) -> tuple[str, ...]:
        """Return the keys that were never read, as dotted paths."""
        unread: list[str] = []
        for key, value in dict.items(self):
            if isinstance(value, TrackedConfig):
                unread += value.unused()
            elif self._prefix + key not in self._seen:
                unread.append(self._prefix + key)
        return tuple(unread)

    def absent(self) -> tuple[str, ...]:
        """Return the keys that were asked for in vain, as dotted paths."""
        return tuple(sorted(self._absent))

    def changed(self, values: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
        """Return the first key whose value is not the one in ``values`` any more, with both values.

        Keys that were added or removed do not count.
        """
        for key, value in dict.items(self):
            if isinstance(value, TrackedConfig) and isinstance(values.get(key), Mapping):
                if found := value.changed(values[key]):
                    return found
            elif key in values and _differs(value, values[key]):
                return self._prefix + key, values[key], value
        return None

    def share(self, other: TrackedConfig) -> None:
        """Count the keys read of another configuration as read of this one, too."""
        self._seen |= other._seen
        self._absent |= other._absent

    def __getitem__(self, key: str) -> Any:
        self._seen.add(self._prefix + key)
        return super().__getitem__(key)

    def __missing__(self, key: str) -> Any:
        near, known = did_you_mean(key, map(str, dict.keys(self))), listed(key, map(str, dict.keys(self)))
        name = f"config[{self._prefix[:-1]!r}]" if self._prefix else "config"
        raise MissingKey(f"{name} has no {key!r}; {near}it has {known}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"config.{name}: the configuration is a dict; write config[{name!r}]")

    def get(self, key: str, default: Any = None) -> Any:
        self._note(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self._note(key)
        return super().pop(key, *default)

    def _note(self, key: str) -> None:
        name = f"{self._prefix}{key}"
        if key not in self and name not in self._seen:
            self._absent.add(name)
        self._seen.add(name)

    def __iter__(self) -> Iterator[str]:
        # Code that iterates over the configuration, as f(**config) does, may use every key.
        self._seen.update(self._prefix + key for key in dict.keys(self))
        return super().__iter__()

    def keys(self) -> Any:
        iter(self)
        return super().keys()

    def values(self) -> Any:
        iter(self)
        return super().values()

    def items(self) -> Any:
        iter(self)
        return super().items()

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)


def _differs(value: Any, before: Any) -> bool:
    """Whether a value of a configuration was changed. A tuple may stand for a list."""
    try:
        return value is not before and bool((list(value) if isinstance(value, tuple) else value) != before)
    except Exception:  # an array that took the place of a list, say, has no single answer
        return True
