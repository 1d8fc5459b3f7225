"""Outlines of experiments, and a backend that is tried."""

from __future__ import annotations

import dataclasses
from typing import Any

from hopfleet.domain.trial import Config
from hopfleet.forecast.rehearsal import Outline
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import Scaling
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search.base import Goal
from hopfleet.worker.spec import Profile

SECOND = Profile(metrics=("loss",), seconds_per_row=0.01, size=1000)
"""A second for a partition of 100 rows."""


def outline(**changes: Any) -> Outline:
    plain = Outline(
        name="mine",
        trials=4,
        epochs=2,
        rows=(100, 100, 100),
        valid_rows=(),
        workers=2,
        policy_name="longest-remaining",
        policy=POLICIES["longest-remaining"],
        fixed_order=False,
        seed=0,
        goal=Goal("train_loss", "min"),
    )
    return dataclasses.replace(plain, **changes)


def configs(count: int) -> dict[int, Config]:
    return {number: {"number": number} for number in range(count)}


SCALING = Scaling("ddp", Rates("ddp", (1.0, 1.9)), 1.0)
