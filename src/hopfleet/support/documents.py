"""Small documents that users write by hand: JSON, or YAML where PyYAML is installed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.phrases import shown

MOST = 10**9
"""The largest whole number that a document may hold."""


def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the mapping that a .json, .yaml or .yml file holds."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})") from error
    try:
        content = _yaml(text) if file.suffix in (".yaml", ".yml") else json.loads(text)
    except ValueError as error:
        raise UsageError(f"{file}: must be JSON, or YAML in a file that ends in .yaml ({error})") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file}: holds a {type(content).__name__}; it must hold names with values")
    return content


def number(value: Any, what: str) -> float:
    """Return a number; YAML reads 1e9 as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{what}: {shown(value)}: must be a number") from None


def whole_number(value: Any, what: str) -> int:
    """Return a number that has no fraction."""
    found = number(value, what)
    if not (found.is_integer() and abs(found) <= MOST):
        raise UsageError(f"{what}: {shown(value)}: must be a whole number, at most {MOST:,}")
    return int(found)


def flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{what}: {shown(value)}: must be true or false")
    return value


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise MissingExtra("PyYAML", "yaml", otherwise="JSON files need nothing") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
