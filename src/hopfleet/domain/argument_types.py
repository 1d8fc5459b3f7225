"""Whether the arguments of a call have the types that their annotations name.

Annotations are read leniently: what cannot be evaluated, and what a check would have to go into, is taken as it is. So
a wrong kind of value is named with its argument, before the function has done anything with it.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hopfleet.phrases import shown

_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a text",
    bytes: "bytes",
    None: "None",
    collections.abc.Callable: "a function",
    collections.abc.Mapping: "a dictionary",
}
_LISTS = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)


def wrong_type(
    function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], own: Sequence[str] = ()
) -> str:
    """Return what is wrong with the type of an argument, as the text of an error; empty if nothing is.

    The function checks its ``own`` arguments itself.
    """
    try:
        given = inspect.signature(function).bind(*arguments, **keywords).arguments
    except TypeError:
        return ""  # the call itself says what is missing
    for name, wanted in _annotations(function).items():
        if name in given and name not in own and not _fits(given[name], wanted):
            return f"{name}={shown(given[name])}: must be {_worded(wanted)}"
    return ""


@functools.lru_cache(maxsize=512)
def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotation of each named argument, as far as it can be evaluated."""
    found = {}
    names = getattr(inspect.unwrap(function), "__globals__", {})
    for each in inspect.signature(function).parameters.values():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) or each.annotation is each.empty:
            continue
        if not isinstance(each.annotation, str):
            found[each.name] = each.annotation
            continue
        try:
            found[each.name] = eval(each.annotation, names)  # of this package's own source
        except (NameError, TypeError, AttributeError):  # imported for type checkers alone
            continue
    return found


def _options(wanted: Any) -> tuple[Any, ...]:
    """Return the types of a union, each in the form that is checked."""
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        return tuple(option for each in typing.get_args(wanted) for option in _options(each))
    if typing.get_origin(wanted) is typing.Literal:
        return (wanted,)
    origin = typing.get_origin(wanted) or wanted
    return (None,) if origin is type(None) else (origin,)


def _fits(value: Any, wanted: Any) -> bool:
    return any(_is(value, option) for option in _options(wanted))


def _is(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind) if isinstance(value, collections.abc.Hashable) else False
    if kind is bool:
        return isinstance(value, bool) or (type(value).__name__ == "bool" and hasattr(value, "dtype"))
    if kind in (int, float):
        return isinstance(value, numbers.Integral if kind is int else numbers.Real) and not isinstance(value, bool)
    if kind is collections.abc.Mapping or kind is dict:
        return hasattr(value, "keys") and hasattr(value, "__getitem__")
    if kind in _LISTS:
        return hasattr(value, "__iter__") and not isinstance(value, str | bytes)
    if kind is collections.abc.Callable:
        return callable(value)
    if kind in (str, bytes):
        return isinstance(value, kind)
    return hasattr(value, "__fspath__") if _is_path(kind) else True


def _is_path(kind: Any) -> bool:
    return getattr(kind, "__name__", "") in ("PathLike", "Path")


def _worded(wanted: Any) -> str:
    words = []
    for option in _options(wanted):
        if typing.get_origin(option) is typing.Literal:
            words += [repr(value) for value in typing.get_args(option)]
        elif option in _LISTS:
            words.append("a list")
        elif _is_path(option):
            words.append("a path")
        else:
            words.append(_WORDS.get(option) or f"a {getattr(option, '__name__', option)}")
    words = list(dict.fromkeys(words))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
