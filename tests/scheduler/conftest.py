"""Fixtures for tests of the scheduler."""

from __future__ import annotations

import pytest

from hopfleet.scheduler.policies import exact as exact_policy
from hopfleet.scheduler.policies import portfolio as portfolio_policy


@pytest.fixture
def quick_solver(monkeypatch):
    monkeypatch.setattr(exact_policy, "SECONDS", 0.02)
    monkeypatch.setattr(portfolio_policy, "FIRST_EFFORT", 2_000)
