"""Messages for people who see the page and no code: the same text, without the notation of Python."""

from __future__ import annotations

import re

_REPLACED = (
    (re.compile(r"^([\w.]+)=('[^']*'|\"[^\"]*\"|\[.*?\]|\{.*?\}|[^\s:,]+): "), r"\1 \2: "),
    (re.compile(r"\bchoice\(\[([^\]]*)\]\)"), r"one of \1"),
    (re.compile(r"'([^']*)'"), r"“\1”"),
    (re.compile(r"\ba dict\b"), "an object"),
    (re.compile(r"\bTrue\b"), "true"),
    (re.compile(r"\bFalse\b"), "false"),
    (re.compile(r"\bNone\b"), "nothing"),
)


def in_words(text: str) -> str:
    """Return a message without ``name=value``, quotes and types as Python writes them."""
    for python, words in _REPLACED:
        text = python.sub(words, text)
    return text
