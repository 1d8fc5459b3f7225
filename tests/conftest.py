"""Fixtures for all tests: no test sees the user's own experiments, or leaves any behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

try:
    from hypothesis import settings
except ImportError:  # on machines with GPUs, which have what these tests need and little else
    pass
else:
    # The same commit gets the same verdict, from everybody; who has time looks for new examples.
    settings.register_profile("steady", derandomize=True)
    settings.load_profile("default" if os.environ.get("HOPFLEET_LONG") else "steady")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HOPFLEET_HOME", str(home))
    monkeypatch.delenv("HOPFLEET_RESUME", raising=False)
    return home
