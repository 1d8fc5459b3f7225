"""Text that is safe to show and to keep: it drives no terminal, and it holds no secret that a person typed.

Configurations, errors and logs may contain control characters. URLs and arguments of scripts may contain passwords;
what is written into run folders and data sets, or shown in a message, is masked here first. References to secrets in a
configuration are another matter: ``hop.secret``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Control characters other than newlines and tabs, marks that reorder text, line separators and lone surrogates.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
HIDDEN = "***"
"""Stands for a value that is not shown and not stored."""

_NAME = (
    r"(?:[a-z0-9_.-]*[-_.])?"
    r"(?:(?:api|access|private|secret|account|auth|encryption|signing|wandb|openai|hf)[-_]?key|apikey"
    r"|token|secret|password|passwd|passphrase|pwd|credentials?|sig|signature|authorization)"
)
_URL_PASSWORD = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)(?P<user>[^\s/:@'\"]*):(?P<password>[^\s/'\"]*)@", re.IGNORECASE
)
_URL_QUERY = re.compile(rf"(?P<name>[?&;](?:{_NAME})=)(?P<value>[^\s&;#'\"]+)", re.IGNORECASE)
_ASSIGNED = re.compile(rf"(?P<name>[-+]{{0,2}}{_NAME})(?P<sign>[=:])(?P<value>.+)", re.IGNORECASE | re.DOTALL)
_OPTION = re.compile(rf"-{{1,2}}{_NAME}", re.IGNORECASE)
_SHAPED = re.compile(
    r"\b(?:sk-(?:proj-|ant-api\d\d-)?[A-Za-z0-9_]{24,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|glpat-[A-Za-z0-9_-]{16,}|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*)"
)
"""Keys that services hand out, known by their shape."""


def visible(text: str) -> str:
    """Replace control characters by escapes that can be read: an escape character becomes ``\\x1b``."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_json(text: str) -> str:
    """Replace control characters in JSON by the escapes of JSON, which leaves every value as it is."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def masked(text: str) -> str:
    """Return a text with the passwords and signatures of its URLs, and keys of a known shape, masked."""
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\g<scheme>\g<user>:{HIDDEN}@", text)
        text = _URL_QUERY.sub(rf"\g<name>{HIDDEN}", text)
    return _SHAPED.sub(HIDDEN, text)


def masked_arguments(arguments: Sequence[str]) -> list[str]:
    """Return arguments of a script with those masked whose names or shapes are those of secrets.

    ``--api-key=VALUE``, ``--api-key VALUE`` and ``service.token=VALUE`` are such arguments.
    """
    found: list[str] = []
    follows = False
    for argument in arguments:
        if follows and not argument.startswith("--"):
            found.append(HIDDEN)
        elif assigned := _ASSIGNED.fullmatch(argument):
            found.append(f"{assigned['name']}{assigned['sign']}{HIDDEN}")
        else:
            found.append(masked(argument))
        follows = _OPTION.fullmatch(argument) is not None
    return found


def masked_parts(value: Any) -> Any:
    """Return nested dictionaries and lists with each text in them masked; keys stay."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {key: masked_parts(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [masked_parts(part) for part in value]
    return value
