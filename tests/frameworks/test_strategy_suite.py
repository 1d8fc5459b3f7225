"""Every strategy that comes with Hopfleet passes the suite for strategies."""

from __future__ import annotations

import pytest

from hopfleet.frameworks.torch.parallel import choose
from hopfleet.frameworks.torch.parallel.strategy import Strategy
from hopfleet.testing.strategies import StrategySuite


class TestDdp(StrategySuite):
    def make(self) -> Strategy:
        return choose.find("ddp")()


@pytest.mark.slow
class TestFsdp(StrategySuite):
    def make(self) -> Strategy:
        return choose.find("fsdp")()


@pytest.mark.slow
class TestPipeline(StrategySuite):
    def make(self) -> Strategy:
        return choose.find("pipeline")()


@pytest.mark.slow
class TestPs(StrategySuite):
    def make(self) -> Strategy:
        return choose.find("ps")()


class TestSpill(StrategySuite):
    size = 1
    bound = 0.0

    def make(self) -> Strategy:
        return choose.find("spill")()
