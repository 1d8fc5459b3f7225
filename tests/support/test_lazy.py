from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

NAMES = """
from typing import TYPE_CHECKING
from hopfleet.support.lazy import lazy
if TYPE_CHECKING:
    from json import loads as loads
    from os import path as path
    from xml import sax as sax
    from json import dumps
else:
    __all__, __getattr__, __dir__ = lazy(__name__, {"load": "loads(text)"})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "some_names.py").write_text(NAMES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "some_names", raising=False)
    return tmp_path


def test_names_are_loaded_on_first_use(folder: Path) -> None:
    import json
    import os

    some = importlib.import_module("some_names")
    assert "loads" not in vars(some)
    assert some.loads is json.loads and vars(some)["loads"] is json.loads
    assert some.path is os.path
    assert some.__all__ == dir(some) == ["loads", "path", "sax"], "a name that is not imported as itself is private"


def test_a_submodule_is_a_name_like_others(folder: Path) -> None:
    some = importlib.import_module("some_names")
    assert some.sax.__name__ == "xml.sax"


def test_unknown_names_are_answered(folder: Path) -> None:
    some = importlib.import_module("some_names")
    for name, remedy in [
        ("load", "write loads"),
        ("load_s", "did you mean 'loads'"),
        ("zzz", r"dir\(some_names\) lists"),
    ]:
        with pytest.raises(AttributeError, match=f"module 'some_names' has no attribute '{name}'; {remedy}"):
            getattr(some, name)
    with pytest.raises(AttributeError, match=r"no attribute '__wrapped__'$"):
        some.__wrapped__  # noqa: B018


def test_a_module_without_its_source_says_what_is_missing(folder: Path) -> None:
    import py_compile

    py_compile.compile(str(folder / "some_names.py"), cfile=str(folder / "some_names.pyc"))
    (folder / "some_names.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(ImportError, match="some_names: its source file is missing"):
        importlib.import_module("some_names")
