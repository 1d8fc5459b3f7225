"""Fixtures for tests of the controller."""

from __future__ import annotations

import pytest


@pytest.fixture
def few_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units take a second here. What is saved within an epoch has tests of its own."""
    monkeypatch.setattr("hopfleet.controller.decisions.versions.AT_RISK", 1.5)
