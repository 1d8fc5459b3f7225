"""Phrases that messages to users are made of: values, lists of names, and names that a user may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NAMES, LETTERS, MESSAGE = 20, 200, 2000
"""Names that a message lists at most, characters of one value, and characters of a whole message."""

BITS = 128
"""Bits of the largest integer that a message shows with its digits."""

LIKE = 0.65
"""Least similarity of two names, from 0 to 1, at which one may be a misspelling of the other."""


def shown(value: object) -> str:
    """Return a value for a message: its ``repr`` in one short line, or its type if the ``repr`` is an address."""
    text = " ".join(_repr(value).split())
    if " at 0x" in text:
        kind = value if isinstance(value, type) else type(value)
        name = getattr(value, "__qualname__", "").rpartition(".")[2]
        text = f"<{kind.__name__} {name}>" if name else f"<{kind.__module__}.{kind.__qualname__}>"
    return cut(text, LETTERS)


def _repr(value: object) -> str:
    """Return the ``repr`` of any value: some values have none, or one that is too long to make."""
    if isinstance(value, int) and value.bit_length() > BITS:
        return f"<an integer of {value.bit_length():,} bits>"
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__qualname__} without a repr: {type(error).__name__}>"


def cut(text: str, most: int = MESSAGE) -> str:
    """Return a text of a readable length: a message may quote what a user sent."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def plural(count: int, noun: str) -> str:
    """Return ``1 trial`` or ``2 trials``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def nearest(given: object, known: Iterable[str]) -> str:
    """Return the known name that is spelt most like the given one; empty if none is like it."""
    names = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(str(given).casefold(), names, n=1, cutoff=LIKE)
    return names[found[0]] if found else ""


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Return ``did you mean 'random'? `` for a misspelt name; empty if no known name is like it."""
    name = nearest(given, known)
    return f"did you mean {name!r}? " if name else ""


def listed(given: object, known: Iterable[str]) -> str:
    """Return the known names in one line, the one that is most like the given name first; long lists are cut."""
    names = list(known)
    if (near := nearest(given, names)) in names:
        names.remove(near)
        names.insert(0, near)
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return (", ".join(names[:NAMES]) or "none") + more
