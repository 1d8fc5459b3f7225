"""What the configurations of stacked trials have in common, and the keys on which they differ.

Numbers with a fractional part may differ: a stack computes with a tensor of them. Anything else on which trials differ
is left out of the configuration that the loss of a stack sees, so that no trial is ever computed with the value of
another. A loss that asks for it raises Differs, and its trials are grouped by the value.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from hopfleet.frameworks.base import IsolationError
from hopfleet.frameworks.tracked_config import TrackedConfig


class Differs(IsolationError):
    """The loss depends on values of the configuration on which the members of a stack differ."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = frozenset(keys)
        names = ", ".join(map(repr, sorted(self.keys)))
        super().__init__(f"stacked trials differ in {names}, which their loss did not use at first")


class CommonConfig(TrackedConfig):
    """The values that several configurations have in common. Code that asks for one of the others gets Differs."""

    def __init__(
        self, values: Mapping[str, object], differing: Collection[str], seen: set[str], absent: set[str]
    ) -> None:
        self.differing = frozenset(differing)
        super().__init__(values, seen, absent=absent)

    def with_values(self, values: Mapping[str, object], differing: Collection[str] | None = None) -> CommonConfig:
        """Return a copy with further values, or with other keys that differ. What is read of one is read of both."""
        given = self.differing if differing is None else differing
        return CommonConfig({**_plain(self), **values}, given, self._seen, self._absent)

    def check(self) -> None:
        """Raise Differs again if code that asked for a value went on without it."""
        if asked := self.differing & self._seen:
            raise Differs(asked)

    def _refuse(self, key: object) -> None:
        if key in self.differing:
            self._seen.add(str(key))
            raise Differs([str(key)])

    def _note(self, key: str) -> None:
        self._refuse(key)
        super()._note(key)

    def __missing__(self, key: str) -> NoReturn:
        self._refuse(key)
        super().__missing__(key)
        raise AssertionError("a key that is missing raises")

    def __contains__(self, key: object) -> bool:
        self._refuse(key)
        return super().__contains__(key)

    def setdefault(self, key: str, default: object = None) -> object:
        self._refuse(key)
        return super().setdefault(key, default)

    def __iter__(self) -> Iterator[str]:
        if self.differing:
            self._seen |= self.differing
            raise Differs(self.differing)
        return super().__iter__()


def compared(configs: Sequence[TrackedConfig]) -> tuple[dict[str, object], dict[str, list[float]], set[str]]:
    """Return the values that all configurations have in common, the numbers that differ, and the other keys.

    Of the numbers, only those with a fractional part count: a loss computes with them, and does little else.
    """
    same: dict[str, object] = {}
    numbers: dict[str, list[float]] = {}
    differing: set[str] = set()
    plain = [_plain(config) for config in configs]
    for key in dict.fromkeys(key for values in plain for key in values):
        column = [values.get(key) for values in plain]
        fractions = [value for value in column if isinstance(value, float)]
        if len({words(config, [key]) for config in configs}) == 1:
            same[key] = column[0]
        elif len(fractions) == len(column):
            numbers[key] = fractions
        else:
            differing.add(key)
    return same, numbers, differing


def _plain(config: TrackedConfig) -> dict[str, object]:
    """Return a configuration as plain dicts, without counting their keys as read."""
    return {key: _plain(value) if isinstance(value, TrackedConfig) else value for key, value in dict.items(config)}


def words(config: TrackedConfig, keys: Iterable[str]) -> Hashable:
    """Return the values of some keys as text, by which configurations are grouped; keys may be missing."""
    return tuple((key, repr(dict.get(config, key))) for key in sorted(keys) if dict.__contains__(config, key))


def separating(configs: Sequence[TrackedConfig], keys: Collection[str], others: Collection[int]) -> set[str]:
    """Return the keys whose values tell the configurations at some places, the others, from the rest; or all keys."""

    def values(key: str, of_others: bool) -> set[Hashable]:
        return {words(config, [key]) for place, config in enumerate(configs) if (place in others) is of_others}

    return {key for key in keys if values(key, True).isdisjoint(values(key, False))} or set(keys)
