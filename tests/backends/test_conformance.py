"""All backends pass the one suite."""

from __future__ import annotations

from hopfleet.backends.base import Backend
from hopfleet.backends.inline import Inline
from hopfleet.backends.local.backend import Local
from hopfleet.simulation.backend import Simulated
from hopfleet.testing.backends import BackendSuite


class TestInline(BackendSuite):
    stops = False

    def make(self) -> Backend:
        return Inline()


class TestLocal(BackendSuite):
    def make(self) -> Backend:
        return Local()


class TestSimulated(BackendSuite):
    trains = False

    def make(self) -> Backend:
        return Simulated()
