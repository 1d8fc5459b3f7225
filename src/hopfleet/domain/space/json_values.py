"""Configurations as JSON values: conversion, comparison, and access by path.

A path is the sequence of keys that leads to a value in nested dicts; users write it with dots, as in ``net.width``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hopfleet.domain.bounds import INTEGERS, excess
from hopfleet.domain.trial import Config
from hopfleet.errors import SpaceError
from hopfleet.phrases import shown


def plain(value: Any, path: Sequence[str] = ()) -> Any:
    """Return ``value`` as JSON represents it (tuples become lists, numpy scalars numbers), or raise SpaceError.

    NaN and infinities remain floats; journals and requests hold them as ``NaN``, ``Infinity`` and ``-Infinity``.
    """
    if wrong := excess(value, ".".join(path) or "value"):
        raise SpaceError(wrong)
    return _plain(value, path)


def _plain(value: Any, path: Sequence[str]) -> Any:
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        if len(found := {str(key): _plain(part, [*path, str(key)]) for key, part in value.items()}) < len(value):
            raise SpaceError(
                f"{'.'.join(path) or 'value'}={shown(value)}: two of its keys are the same text; rename one"
            )
        return found
    if isinstance(value, (list, tuple)):
        return [_plain(part, path) for part in value]
    raise SpaceError(
        f"{'.'.join(path) or 'value'}={shown(value)}: a configuration holds numbers, strings, booleans, None, "
        "lists and dicts only; use a name here and look the object up in build()"
    )


def is_number(value: object) -> bool:
    """Whether a value is a finite number of at most 64 bits; booleans are not numbers."""
    if isinstance(value, int):
        return not isinstance(value, bool) and -INTEGERS < value < INTEGERS
    return isinstance(value, float) and math.isfinite(value)


def alike(one: Any, other: Any) -> bool:
    """Whether two values are equal, where True does not equal 1, and NaN equals NaN."""
    same = bool(one == other) or (one != one and other != other)
    return same and isinstance(one, bool) == isinstance(other, bool)


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
