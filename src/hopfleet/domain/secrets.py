"""Secret values: a configuration holds only references to them.

A reference is text that begins with ``***``, so it can be stored, shown and compared like any other value. The secret
value is read where a model is built, and goes nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from hopfleet.domain.signatures import explained
from hopfleet.errors import SpaceError
from hopfleet.safe_text import HIDDEN

_REFERENCE = re.compile(r"\*\*\* \((env|file) ([^\n]+)\)")


@explained
def secret(*values: object, env: str | None = None, file: str | PurePath | None = None) -> str:
    """Refer to a secret in a space: the value of an environment variable, or the content of a file."""
    if values:
        raise SpaceError(
            "secret(...): a value passed here would be written into the run folder; put it into an environment "
            "variable or a file, and pass the name instead: secret(env='TOKEN')"
        )
    if (env is None) == (file is None):
        raise SpaceError("secret(): must have exactly one of env='NAME' and file='/path'")
    if env is not None:
        if not isinstance(env, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", env):
            raise SpaceError(f"secret(env={env!r}): must be the name of an environment variable, e.g. 'TOKEN'")
        return f"{HIDDEN} (env {env})"
    if not isinstance(file, str | PurePath) or not PurePath(file).is_absolute() or "\n" in str(file):
        raise SpaceError(
            f"secret(file={str(file)!r}): must be an absolute path, since workers may run in other folders"
        )
    return f"{HIDDEN} (file {file})"


def place(reference: str) -> tuple[str, str]:
    """Return the kind and the name of a reference: ("env", "TOKEN") or ("file", "/path")."""
    found = _REFERENCE.fullmatch(reference)
    assert found is not None, reference
    return found[1], found[2]


def references(value: Any) -> set[str]:
    """Return all references in a configuration."""
    if isinstance(value, str):
        return {value} if _REFERENCE.fullmatch(value) else set()
    parts: Iterable[Any] = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return {reference for part in parts for reference in references(part)}


def revealed(value: Any, values: Mapping[str, str]) -> Any:
    """Return a configuration with references replaced by their values."""
    if isinstance(value, Mapping):
        return {key: revealed(part, values) for key, part in value.items()}
    if isinstance(value, list):
        return [revealed(part, values) for part in value]
    return values.get(value, value) if isinstance(value, str) else value


def hidden(text: str, values: Iterable[str]) -> str:
    """Return a text with these values masked, both verbatim and in Python's ``repr``."""
    forms = {form for value in values for form in (value, repr(value)[1:-1])}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    return text
