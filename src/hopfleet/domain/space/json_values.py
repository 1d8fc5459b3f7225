"""Configurations as JSON values: conversion, comparison, and access by path.

A path is the sequence of keys that leads to a value in nested dicts; users write it with dots, as in ``net.width``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hopfleet.domain.trial import Config
from hopfleet.errors import SpaceError
from hopfleet.phrases import shown


def plain(value: Any, path: Sequence[str] = ()) -> Any:
    """Return ``value`` as JSON represents it (tuples become lists, numpy scalars numbers), or raise SpaceError."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(part, [*path, str(key)]) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part, path) for part in value]
    raise SpaceError(
        f"{'.'.join(path) or 'value'}={shown(value)}: a configuration holds numbers, strings, booleans, None, "
        "lists and dicts only; use a name here and look the object up in build()"
    )


def is_number(value: object) -> bool:
    """Whether a value is a finite number; booleans are not numbers."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def alike(one: Any, other: Any) -> bool:
    """Whether two values are equal, where True does not equal 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def flatten(config: Config, prefix: str = "") -> dict[str, Any]:
    """Return a nested configuration as {dotted path: value}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def leaves(space: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the value of every constant and dimension of a space."""
    for key, value in space.items():
        if not isinstance(key, str) or not key:
            raise SpaceError(f"space key {key!r}: must be a non-empty string")
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def put(config: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set the value at a path, and create the dicts on the way."""
    for key in path[:-1]:
        config = config.setdefault(key, {})
    config[path[-1]] = value
