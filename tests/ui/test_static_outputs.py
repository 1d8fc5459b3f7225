"""Outputs of notebooks in front ends without scripts, frames and widgets, as those of Colab and VS Code may be."""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.helpers.cli import counting

ACTIVE = re.compile(r"<(script|iframe|object|embed|link)\b|\son\w+=|javascript:|application/vnd", re.IGNORECASE)
"""What needs more than a front end that shows HTML."""


def test_fit_results_and_preview_are_plain_html(own_home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    ipython.display = ModuleType("IPython.display")
    ipython.display.HTML = str

    def display(html: str, **options: Any) -> Any:
        shown.append(html)
        return SimpleNamespace(update=shown.append)

    ipython.display.display = display
    for name, module in {"IPython": ipython, "IPython.display": ipython.display}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    experiment = counting("mine")
    shown.append(experiment.preview(quiet=True)._repr_html_())
    results = experiment.fit()
    assert len(shown) > 1 and "t0003" in shown[-1], "the live table has the last state"
    shown += [results._repr_html_(), results.best._repr_html_(), experiment._repr_html_()]
    assert [ACTIVE.search(html) for html in shown] == [None] * len(shown)
    assert all("<table" in html for html in shown[-3:])
