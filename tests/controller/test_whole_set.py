"""Evaluations that cover all validation partitions at once, under lost workers, requests and restarts."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

import hopfleet as hop
from hopfleet.domain import messages as m
from hopfleet.domain.rowsum import RowSum
from hopfleet.simulation.backend import Simulated
from hopfleet.testing import virtual
from hopfleet.testing.virtual import Run, VirtualExperiment

VALID, ALL = 3, 111


class Gathering(Simulated):
    """Workers whose evaluations of some trials cover the whole set; a metric tells which partitions were added up."""

    def _ended(self, worker, event):
        if isinstance(event, m.UnitFinished):
            unit = event.unit
            whole = int(event.trial[1:]) % 3 > 0 and not unit.trains
            # Training provides the one row of the mean, which is then the total of evaluations.
            rows, total = (int(unit.partition == 0), 0) if unit.trains else (0, ALL if whole else 10**unit.partition)
            event = replace(event, sums={**event.sums, "seen": RowSum(Fraction(total), rows)}, whole=whole)
        return super()._ended(worker, event)


class Suite:
    def __init__(self):
        self.space = {"lr": hop.loguniform(1e-4, 1e-1)}

    def make(self):
        return hop.ASHA(trials=7, max_epochs=4, min_epochs=1)


@pytest.mark.parametrize("seed", range(12))
def test_every_epoch_has_each_partition_once(seed, monkeypatch):
    monkeypatch.setattr(virtual, "Simulated", Gathering)
    run = Run(Suite(), VirtualExperiment.made(seed, troubles=seed % 5, valid=VALID, diverging=0.0, failing=0.0)).go()
    ends = [message for message in run.messages if isinstance(message, m.EpochEnded)]
    assert ends
    for end in ends:
        assert end.metrics["seen"] == ALL, end
