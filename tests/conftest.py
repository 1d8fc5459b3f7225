"""Fixtures for all tests: no test sees the user's own experiments, or leaves any behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# CI gives the same verdict for the same commit; everybody else looks for new examples.
settings.register_profile("ci", derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HOPFLEET_HOME", str(home))
    monkeypatch.delenv("HOPFLEET_RESUME", raising=False)
    return home
