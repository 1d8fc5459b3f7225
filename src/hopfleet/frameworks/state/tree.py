"""Nested Python state as JSON plus named arrays, without pickle.

Optimizers and schedules keep their state in dicts with integer keys, tuples, counters and tensors. ``flatten`` writes
such a tree as JSON in which each array is a reference by name; ``unflatten`` restores the tree exactly. An array that
occurs twice (tied weights) is stored once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from hopfleet.errors import CheckpointError

Tree = Any
"""Nested state: numbers, strings, arrays, and containers of them."""

PLAIN = frozenset({bool, int, float, str, type(None)})
"""Types that JSON has."""


class Arrays:
    """The arrays of a tree under unique names. ``identity`` tells which arrays are the same memory."""

    def __init__(self, is_array: Callable[[Any], bool], identity: Callable[[Any], Hashable]) -> None:
        self.is_array = is_array
        self.identity = identity
        self.named: dict[str, Any] = {}
        self._names: dict[Hashable, str] = {}

    def add(self, array: Any, path: str) -> str:
        """Add an array; return its name, which is that of an equal array added before."""
        identity = self.identity(array)
        if identity not in self._names:
            self._names[identity] = path
            self.named[path] = array
        return self._names[identity]


def flatten(value: Tree, arrays: Arrays, path: str) -> Tree:
    """Return ``value`` as JSON. Raises CheckpointError for an object that cannot be stored, and names its place."""
    if type(value) in PLAIN:
        return value
    if arrays.is_array(value):
        return {"$array": arrays.add(value, path)}
    # A subclass (an enum, a numpy float) is stored as its plain base, which has the same value.
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return base(value)
    for kind, encode in ENCODERS:
        if isinstance(value, kind):
            encoded = encode(value, arrays, path)
            if encoded is not None:
                return encoded
    raise CheckpointError(
        f"{path}: a {type(value).__name__} cannot be saved without pickle; keep numbers, strings, tensors, lists, "
        "tuples and dicts in state_dict()"
    )


def _dict(value: dict[Any, Tree], arrays: Arrays, path: str) -> Tree:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: flatten(part, arrays, f"{path}.{key}") for key, part in value.items()}
    return {"$dict": _pairs(value, arrays, path)}


def _pairs(value: dict[Any, Tree], arrays: Arrays, path: str) -> Tree:
    return [[flatten(key, arrays, path), flatten(part, arrays, f"{path}.{key}")] for key, part in value.items()]


def _items(value: Iterable[Tree], arrays: Arrays, path: str) -> Tree:
    return [flatten(part, arrays, f"{path}.{index}") for index, part in enumerate(value)]


def _tagged(value: Iterable[Tree], arrays: Arrays, path: str) -> Tree | None:
    """Encode a container by the name of its type; None for a subclass, e.g. a named tuple."""
    if type(value) not in (tuple, set, frozenset, deque):
        return None
    parts = sorted(value) if isinstance(value, (set, frozenset)) else value
    return {f"${type(value).__name__}": _items(parts, arrays, path)}


Encoder = Callable[[Any, Arrays, str], Tree]

ENCODERS: tuple[tuple[type | tuple[type, ...], Encoder], ...] = (
    (Counter, lambda value, arrays, path: {"$counter": _pairs(value, arrays, path)}),
    (dict, _dict),
    (list, _items),
    ((tuple, set, frozenset, deque), _tagged),
    (np.generic, lambda value, arrays, path: flatten(value.item(), arrays, path)),
    (complex, lambda value, arrays, path: {"$complex": [value.real, value.imag]}),
    (bytes, lambda value, arrays, path: {"$bytes": value.hex()}),
)
"""Encoders by type, in order: the first one whose type matches and that does not return None is used."""

Decoder = Callable[[Any, Callable[[str], Any]], Tree]

DECODERS: Mapping[str, Decoder] = {
    "$array": lambda content, array: array(content),
    "$dict": lambda content, array: _unpaired(content, array),
    "$counter": lambda content, array: Counter(_unpaired(content, array)),
    "$tuple": lambda content, array: tuple(unflatten(content, array)),
    "$set": lambda content, array: set(unflatten(content, array)),
    "$frozenset": lambda content, array: frozenset(unflatten(content, array)),
    "$deque": lambda content, array: deque(unflatten(content, array)),
    "$complex": lambda content, array: complex(*content),
    "$bytes": lambda content, array: bytes.fromhex(content),
}
"""Decoders by tag."""


def unflatten(value: Tree, array: Callable[[str], Any]) -> Tree:
    """Invert ``flatten``; ``array`` returns the array of a name."""
    if isinstance(value, list):
        return [unflatten(part, array) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, content),) = value.items()
        if tag in DECODERS:
            return DECODERS[tag](content, array)
    return {key: unflatten(part, array) for key, part in value.items()}


def _unpaired(pairs: Iterable[tuple[Tree, Tree]], array: Callable[[str], Any]) -> dict[Any, Tree]:
    return {unflatten(key, array): unflatten(part, array) for key, part in pairs}
