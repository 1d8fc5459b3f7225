"""The form of a definition on disk: which keys every definition has, and what their values may be.

Readers rely on the form, so a definition that was damaged or edited is refused when it is read, in words.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Names of experiments, which are also names of folders."""

Check = Callable[[Any], bool]


def _kind(kinds: tuple[type, ...], value: Any) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63


def _each(check: Check, value: Any) -> bool:
    return isinstance(value, list) and all(map(check, value))


def _form(required: Mapping[str, Check], value: Any) -> bool:
    return _fits(required, value) and required.keys() <= value.keys()


def _fits(checks: Mapping[str, Check], value: Any) -> bool:
    return isinstance(value, dict) and all(check(value[key]) for key, check in checks.items() if key in value)


def _name(value: Any) -> bool:
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def _moment(value: Any) -> bool:
    try:
        return datetime.datetime.fromisoformat(value) is not None
    except (TypeError, ValueError):
        return False


def _goal(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _TEXT(value[0]) and _mode(value[1])


def _mode(value: Any) -> bool:
    return value in ("min", "max")


_TEXT, _OBJECT, _WHOLE, _FLAG = (partial(_kind, (kind,)) for kind in (str, dict, int, bool))
_TEXTS = partial(_each, _TEXT)
_DATA = partial(_form, {"url": _TEXT, "rows": _count, "partitions": _count, "fingerprint": _TEXT})
_ORIGIN = partial(
    _fits,
    {
        **dict.fromkeys(("how", "file", "variable", "cwd"), _TEXT),
        "arguments": _TEXTS,
        "overrides": _OBJECT,
        "workers": partial(_kind, (int, str, type(None))),
    },
)
_TRIALS = partial(_each, partial(_form, {"config": _OBJECT, "metrics": _OBJECT}))
_WARM_START = partial(_form, {"names": _TEXTS, "trials": _TRIALS})

REQUIRED: Mapping[str, Check] = {
    "name": _name,
    "created": _moment,
    "task": partial(_form, {"module": _TEXT, "name": _TEXT}),
    "space": partial(_kind, (dict, str)),  # text for a function
    "search": _OBJECT,
    "metric": _TEXT,
    "mode": _mode,
    "seed": _WHOLE,
    "batch_size": _count,
    "drop_last": _FLAG,
    "train": _DATA,
    "valid": lambda value: value is None or _DATA(value),
    "device": _TEXT,
    "threads": _count,
    "origin": _ORIGIN,
}
OPTIONAL: Mapping[str, Check] = {
    "settings": _OBJECT,
    "partition_rows": partial(_each, _WHOLE),
    "code": _OBJECT,
    "bare_task": _FLAG,  # whether the task has no attributes of its own
    "others": partial(_each, _goal),
    "limits": _TEXTS,
    "rules": _TEXTS,
    "points": partial(_each, _OBJECT),
    "warm_start": _WARM_START,
    "fuse": _TEXT,
    "store": _TEXT,
    "order": _TEXT,
    "policy": _TEXT,
    "backend": _TEXT,
}


def problem(definition: Any) -> str:
    """Describe the first part of a definition that has the wrong form; return an empty string if there is none."""
    if not isinstance(definition, dict):
        return "it is not a JSON object"
    for key in REQUIRED:
        if key not in definition:
            return f"it has no {key!r}"
    for key, check in {**REQUIRED, **OPTIONAL}.items():
        if key in definition and not check(definition[key]):
            return f"{key!r} has a value that no experiment has: {_shown(definition[key])}"
    return ""


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
