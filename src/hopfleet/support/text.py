"""Text that is safe to print: configurations, errors and logs must not drive a terminal."""

from __future__ import annotations

import re

#: Control characters other than newlines and tabs, marks that reorder text, line separators and lone surrogates.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Replace control characters by escapes that can be read: an escape character becomes ``\\x1b``."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_json(text: str) -> str:
    """Replace control characters in JSON by the escapes of JSON, which leaves every value as it is."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
