"""Dicts and plain objects in the user's own code, such as ``CONFIG = {"dropout": 0.1}``, and what they contain.

Scripts keep settings in them, which ``build`` changes in place: ``CONFIG.update(config)`` or ``args.dropout = 0.2``.
What a holder contains is put back in place, so that other names for it, or for what lies in it, see the same.
"""

from __future__ import annotations

import argparse
import enum
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np

from hopfleet.support.user_code import is_users
from hopfleet.worker.surroundings.changed_modules import PLAIN

MOST_ITEMS, DEPTH = 1000, 8
"""Items of a holder, with those of what lies in it, and levels, up to which it counts as settings."""

CODE = (FunctionType, BuiltinFunctionType, MethodType, partial, type)
"""Types of code: a name that is bound to another function or class was patched."""

DICTS = (dict, OrderedDict, defaultdict, Counter)
"""Types of dicts that contain what they are filled with, and nothing else."""

_VALUES = (*PLAIN, *CODE, np.generic, enum.Enum, PurePath)


class NotSettings(Exception):
    """A value contains more than plain values, or too many."""


class Holder:
    """A dict or an object with plain values, and what it contained when it was read."""

    __slots__ = ("_content", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._content = _Content(value, [MOST_ITEMS], DEPTH)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Holder) and self._content.equals(other._content)

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_current(self) -> bool:
        """Whether the holder still contains the same."""
        try:
            return self._content.equals(_Content(self.value, [MOST_ITEMS], DEPTH))
        except NotSettings:
            return False

    def restore(self) -> Any:
        """Put back what the holder contained, and return it."""
        return self._content.restore()


def holder_of(value: Any) -> Holder | None:
    """Return a value with what it contains; None if it does not hold settings."""
    if type(value) not in DICTS and not _is_record(value):
        return None
    try:
        return Holder(value)
    except NotSettings:
        return None


def _is_record(value: Any) -> bool:
    """Whether the attributes of an object are all there is to it, as far as its class tells."""
    kind = type(value)
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    return kind in (SimpleNamespace, argparse.Namespace) or is_users(kind)


class _Content:
    """A dict, list, set or object, and its items; those that can be changed in place are contents, too."""

    __slots__ = ("items", "kind", "value")

    def __init__(self, value: Any, left: list[int], depth: int) -> None:
        self.value, self.kind = value, type(value)
        self.items: list[tuple[Any, Any]] = []
        for key, item in _items(value):
            left[0] -= 1
            if left[0] < 0 or not depth:
                raise NotSettings
            self.items.append((_leaf(key), self._part(item, left, depth - 1)))

    @staticmethod
    def _part(item: Any, left: list[int], depth: int) -> Any:
        if type(item) in (*DICTS, list, set) or _is_record(item):
            return _Content(item, left, depth)
        return _leaf(item)

    def equals(self, other: _Content) -> bool:
        """Whether two contents are those of one object, with the same items; in the same order, unless it is a set."""
        if self.value is other.value and self.kind is set:
            return {(type(item), item) for _, item in self.items} == {(type(item), item) for _, item in other.items}
        return (
            self.value is other.value
            and len(self.items) == len(other.items)
            and all(_same(*pair) for pair in zip(self.items, other.items, strict=True))
        )

    def restore(self) -> Any:
        values = [(key, item.restore() if isinstance(item, _Content) else item) for key, item in self.items]
        if self.kind is list:
            self.value[:] = [item for _, item in values]
        elif self.kind is set:
            self.value.clear()
            self.value.update(item for _, item in values)
        else:
            names = self.value if self.kind in DICTS else vars(self.value)
            names.clear()
            for key, item in values:  # update() of a Counter counts
                names[key] = item
        return self.value


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if type(value) in (list, set):
        return ((None, item) for item in value)
    return iter((value if type(value) in DICTS else vars(value)).items())


def _leaf(value: Any) -> Any:
    """Return a value that cannot be changed in place; raise NotSettings for any other."""
    if isinstance(value, _VALUES) or type(value).__name__ in ("dtype", "device"):
        return value
    if type(value) in (tuple, frozenset):
        for item in value:
            _leaf(item)
        return value
    raise NotSettings


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return _equal(one[0], other[0]) and _equal(one[1], other[1])


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, _Content):
        return isinstance(other, _Content) and one.equals(other)
    return one is other or (type(one) is type(other) and bool(one == other))
