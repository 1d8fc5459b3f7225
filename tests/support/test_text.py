"""Text that is safe to print."""

from __future__ import annotations

import json

import pytest

from hopfleet.support.text import visible, visible_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x9b2J", r"\x9b2J"),
        ("a\rb\x08\x7f\x00", r"a\rb\x08\x7f\x00"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("\ud800", r"\ud800"),
        ("two\nlines\tand naïve 漢字 🙂", "two\nlines\tand naïve 漢字 🙂"),
    ],
)
def test_control_characters_become_visible(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


def test_json_keeps_its_values() -> None:
    value = {"a\x9b": "\x1b]0;title\x07 \u202e \x7f \ud800"}
    text = visible_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert visible(text) == text
