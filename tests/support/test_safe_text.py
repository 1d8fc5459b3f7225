"""Text that is safe to show and to keep."""

from __future__ import annotations

import json

import pytest

from hopfleet.errors import HopfleetError, UsageError
from hopfleet.safe_text import HIDDEN, masked, masked_arguments, masked_parts, visible, visible_json


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


SECRET = "open-sesame"


@pytest.mark.parametrize(
    "text",
    [
        f"s3://user:{SECRET}@bucket/x",
        f"redis://:{SECRET}@host:6379/0",
        f"postgresql://a:b@{SECRET}@host/db",
        f"https://host/x?X-Amz-Signature={SECRET}&y=1",
        f"cannot read 'https://host/x?sig={SECRET}' and memory://u:{SECRET}@x/y",
        f"https://host/?api_key={SECRET}#part",
    ],
)
def test_passwords_of_urls_are_masked_also_in_errors(text: str) -> None:
    assert SECRET not in masked(text) and masked(masked(text)) == masked(text)
    assert SECRET not in str(HopfleetError(text)) and SECRET not in str(UsageError(f"{text}: is missing"))
    assert SECRET not in json.dumps(masked_parts({"files": [[text, 3]], "url": text}))


@pytest.mark.parametrize(
    "arguments",
    [
        [f"--api-key={SECRET}"],
        ["--api-key", SECRET],
        ["--hf_token", SECRET, "--lr", "0.1"],
        [f"service.password={SECRET}"],
        [f"OPENAI_API_KEY={SECRET}"],
        [f"--storage=s3://u:{SECRET}@bucket"],
        ["--key=hf_abcdefghijklmnopqrstuvwxyz"],
    ],
)
def test_secrets_among_arguments_are_masked(arguments: list[str]) -> None:
    found = masked_arguments(arguments)
    assert len(found) == len(arguments) and HIDDEN in " ".join(found)
    assert SECRET not in " ".join(found) and "hf_abc" not in " ".join(found)


def test_other_texts_stay() -> None:
    arguments = [
        "--max-tokens=512",
        "--tokenizer",
        "gpt2",
        "--key",
        "id",
        "--lr=1e-3",
        "http://host:8080/a@b",
        "keys=3",
    ]
    assert masked_arguments(arguments) == arguments


def test_errors_drive_no_terminal() -> None:
    assert str(HopfleetError("\x1b]0;title\x07 bad")) == r"\x1b]0;title\x07 bad"
