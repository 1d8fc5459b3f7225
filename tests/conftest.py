"""Fixtures for all tests: no test sees the user's own experiments, or leaves any behind."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HOPFLEET_HOME", str(home))
    monkeypatch.delenv("HOPFLEET_RESUME", raising=False)
    return home
