"""Refusals on the page are words, without the notation of Python."""

from __future__ import annotations

import pytest

from hopfleet.ui.words import in_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "width='wide': must be a number, as in choice([32, 64])",
            "width “wide”: must be a number, as in one of 32, 64",
        ),
        ("epochs=0.5: must be an integer of at least 1", "epochs 0.5: must be an integer of at least 1"),
        ("config=[1]: must be a dict of names to values", "config [1]: must be an object of names to values"),
        ("epochs=True: must be an integer", "epochs true: must be an integer"),
        ("optimizer.lr='x: y': must be a number", "optimizer.lr “x: y”: must be a number"),
        ("t0004 is completed: a trial that has ended", "t0004 is completed: a trial that has ended"),
    ],
)
def test_refusals_are_words(text: str, words: str) -> None:
    assert in_words(text) == words
