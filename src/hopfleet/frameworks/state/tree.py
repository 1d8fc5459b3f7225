"""Nested Python state as JSON plus named arrays, without pickle.

Optimizers and schedules keep their state in dicts with integer keys, tuples, counters and tensors. ``flatten``
writes such a tree as JSON in which each array is a reference by name; ``unflatten`` restores it exactly. An array
that occurs twice (tied weights) is kept once.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from hopfleet.errors import CheckpointError


class Arrays:
    """Collects the arrays of a tree under unique names. ``identity`` tells which ones are the same memory."""

    def __init__(self, is_array: Callable[[Any], bool], identity: Callable[[Any], Hashable]) -> None:
        self.is_array = is_array
        self.identity = identity
        self.named: dict[str, Any] = {}
        self._names: dict[Hashable, str] = {}

    def add(self, array: Any, path: str) -> str:
        identity = self.identity(array)
        if identity not in self._names:
            self._names[identity] = path
            self.named[path] = array
        return self._names[identity]


def flatten(value: Any, arrays: Arrays, path: str) -> Any:
    """``value`` as JSON. Raises CheckpointError for an object that cannot be kept, naming its place."""
    if value is None or isinstance(value, (bool, int, float, str)):
        # A subclass (an enum, a numpy float) would come back as its plain base: the same value.
        return value if type(value) in (bool, int, float, str, type(None)) else _plain(value)
    if arrays.is_array(value):
        return {"$array": arrays.add(value, path)}
    if isinstance(value, Mapping):
        kind = "counter" if isinstance(value, Counter) else "dict"
        if isinstance(value, (dict, OrderedDict, defaultdict, Counter)):
            if kind == "dict" and all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: flatten(part, arrays, f"{path}.{key}") for key, part in value.items()}
            pairs = [
                [flatten(key, arrays, path), flatten(part, arrays, f"{path}.{key}")] for key, part in value.items()
            ]
            return {f"${kind}": pairs}
    if isinstance(value, list):
        return [flatten(part, arrays, f"{path}.{index}") for index, part in enumerate(value)]
    if isinstance(value, (tuple, set, frozenset, deque)):
        kind = type(value).__name__
        if kind in ("tuple", "set", "frozenset", "deque"):
            parts = sorted(value) if isinstance(value, (set, frozenset)) else value
            return {f"${kind}": [flatten(part, arrays, f"{path}.{index}") for index, part in enumerate(parts)]}
    if isinstance(value, np.generic):
        return flatten(value.item(), arrays, path)
    if isinstance(value, complex):
        return {"$complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    raise CheckpointError(
        f"{path}: a {type(value).__name__} cannot be saved without pickle; keep numbers, strings, tensors, lists, "
        "tuples and dicts in state_dict()"
    )


def unflatten(value: Any, array: Callable[[str], Any]) -> Any:
    """The inverse of ``flatten``; ``array`` gives the array of a name."""
    if isinstance(value, list):
        return [unflatten(part, array) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (tag, content), *_ = value.items()
        match tag:
            case "$array":
                return array(content)
            case "$dict" | "$counter":
                pairs = {unflatten(key, array): unflatten(part, array) for key, part in content}
                return Counter(pairs) if tag == "$counter" else pairs
            case "$tuple":
                return tuple(unflatten(content, array))
            case "$set":
                return set(unflatten(content, array))
            case "$frozenset":
                return frozenset(unflatten(content, array))
            case "$deque":
                return deque(unflatten(content, array))
            case "$complex":
                return complex(*content)
            case "$bytes":
                return bytes.fromhex(content)
            case _:
                pass
    return {key: unflatten(part, array) for key, part in value.items()}


def _plain(value: Any) -> Any:
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return base(value)
    raise AssertionError(value)
