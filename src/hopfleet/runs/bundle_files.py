"""The description of a bundle and the files that it names, checked before anything else of the bundle is read.

A bundle may come from a stranger. Its description has a bounded size and a form, its files are plain ones inside of the
folder, and no link leads elsewhere.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hopfleet.errors import UsageError, describe
from hopfleet.phrases import shown
from hopfleet.support.files import digest_of, open_folder, open_inside, open_plain, parsed_json
from hopfleet.version import __version__

FILE = "bundle.json"
"""The description of a bundle."""

DESCRIPTION_BYTES = 1 << 24
"""Bytes of the largest description that is read."""

MOST_FILES, MOST_MODELS = 10_000, 1_000

FORMAT, VERSION = "hopfleet-bundle", 1

SHA256 = re.compile("[0-9a-f]{64}")

PART = re.compile(r"[^/\\\x00-\x1f]+")
"""A part of a file name."""

Check = Callable[[Any], bool]


def _mapping(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _file(value: Any) -> bool:
    """Whether a value is the relative path of a file inside of a folder."""
    return isinstance(value, str) and all(PART.fullmatch(part) and part not in (".", "..") for part in value.split("/"))


def _files(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MOST_FILES
        and all(map(_file, value))
        and all(isinstance(each, str) and SHA256.fullmatch(each) is not None for each in value.values())
    )


_OBJECT: Check = lambda value: isinstance(value, dict)  # noqa: E731

MODEL: Mapping[str, Check] = {
    "trial": _text,
    "file": _file,
    "weight": lambda value: _number(value) and math.isfinite(value),
    "config": _OBJECT,
    "epoch": lambda value: value is None or _number(value),
    "metrics": _mapping(_number),
}


def _models(value: Any) -> bool:
    """Whether a value is a list of models, each with a file of its own. ``_wrong`` names what is wrong of each."""
    return isinstance(value, list) and 0 < len(value) <= MOST_MODELS and all(map(_OBJECT, value))


KEYS: Mapping[str, Check] = {
    "experiment": _text,
    "task": _text,
    "metric": _text,
    "mode": _text,
    "models": _models,
    "logits": lambda value: isinstance(value, bool),
    "columns": _mapping(_text),
    "raw_columns": _mapping(_text),
    "data": _OBJECT,
    "settings": _OBJECT,
    "versions": _mapping(_text),
    "files": _files,
}


def read_description(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the description of a bundle, and its text. Raise UsageError unless it has the form of one."""
    path = folder / FILE
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > DESCRIPTION_BYTES:
                raise ValueError(f"it has {size:,} bytes, and at most {DESCRIPTION_BYTES:,} are read")
            text = file.read(DESCRIPTION_BYTES)
        json.loads(text, object_pairs_hook=_once)
        content = parsed_json(text)
    except FileNotFoundError:
        raise UsageError(
            f"{folder}: is not a bundle: it has no {FILE}; trial.export(path, format='bundle') writes one"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is damaged ({describe(error)}); export the bundle again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        raise UsageError(f"{path}: is not a bundle of a format that Hopfleet {__version__} reads")
    if wrong := _wrong(content):
        raise UsageError(f"{path}: is damaged: {wrong}; export the bundle again")
    return content, text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raise ValueError if it has a key twice: readers might take either value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has {next(name for name in names if names.count(name) > 1)!r} twice")
    return found


def _wrong(content: Mapping[str, Any]) -> str:
    """Describe the first key that is missing or has a value that no bundle has; return nothing if there is none."""
    if wrong := _first_wrong(content, KEYS):
        return wrong
    for number, model in enumerate(content["models"]):
        if wrong := _first_wrong(model, MODEL, f"models[{number}]."):
            return wrong
    names = [model["file"] for model in content["models"]]
    return "" if len(set(names)) == len(names) else "two models have the same file"


def _first_wrong(content: Mapping[str, Any], checks: Mapping[str, Check], prefix: str = "") -> str:
    for key, check in checks.items():
        if key not in content:
            return f"it has no {prefix + key!r}"
        if not check(content[key]):
            return f"{prefix + key!r} has a value that no bundle has: {shown(content[key])}"
    return ""


def check_files(folder: Path, content: Mapping[str, Any], loaded: tuple[str, ...]) -> None:
    """Raise UsageError unless the files of a bundle are those exported, with those that are ``loaded`` among them."""
    place = open_folder(folder, links=True)
    try:
        for name in (*loaded, *(model["file"] for model in content["models"])):
            if name not in content["files"]:
                raise UsageError(f"{folder / name}: is not in the list of files; export the bundle again")
        for name, wanted in content["files"].items():
            try:
                with open_inside(place, name) as file:
                    found = digest_of(file)
            except OSError as error:
                why = (
                    "is missing" if isinstance(error, FileNotFoundError) else f"is not a plain file ({error.strerror})"
                )
                raise UsageError(f"{folder / name}: {why}; export the bundle again") from error
            if found != wanted:
                raise UsageError(f"{folder / name}: differs from what was exported; export the bundle again")
    finally:
        os.close(place)
