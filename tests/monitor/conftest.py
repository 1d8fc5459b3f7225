"""A small simulator that writes the journal of a made-up experiment: realistic input for every view."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hopfleet.monitor.history import History
from tests.helpers.simulated_journal import Records, history_of, simulated


@pytest.fixture
def simulate() -> Callable[..., Records]:
    return simulated


@pytest.fixture
def quiet_history() -> History:
    """A run in which nothing went wrong."""
    return history_of(simulated())


@pytest.fixture
def eventful_history() -> History:
    return history_of(simulated(eventful=True))
