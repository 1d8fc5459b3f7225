"""The choice among strategies after trial runs."""

from __future__ import annotations

import pytest

from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.forecast.trial_runs import Choice, TrialRun, choose

CONFIG = {"width": 8}
DDP, FSDP = TeamShape("ddp", 2), TeamShape("fsdp", 2)


def chosen(trials: int, devices: int, **rates: float) -> Choice:
    shapes = {"single": SINGLE, "ddp": DDP, "fsdp": FSDP}
    runs = [TrialRun(CONFIG, shapes[name], rate, 1, "" if rate else "out of memory") for name, rate in rates.items()]
    (choice,) = choose(runs, trials=trials, devices=devices)
    return choice


def test_as_many_trials_as_devices_have_one_each() -> None:
    choice = chosen(8, 8, single=100.0, ddp=190.0)
    assert choice.shape == SINGLE
    assert "each trial can have 1 of 8 devices" in choice.why


def test_fewer_trials_than_devices_have_teams_that_pay() -> None:
    choice = chosen(4, 8, single=100.0, ddp=150.0, fsdp=160.0)
    assert choice.shape == FSDP
    assert "1.60 times as fast as single" in choice.why
    assert chosen(4, 8, single=100.0, ddp=104.0).shape == SINGLE  # not clearly faster
    assert chosen(4, 8, single=100.0, ddp=60.0).shape == SINGLE


def test_larger_teams_than_tried_are_estimated() -> None:
    choice = chosen(2, 8, single=100.0, ddp=190.0)
    assert choice.shape == TeamShape("ddp", 4)
    assert choice.rows_per_second == pytest.approx(4 * 95 * 0.95**2)  # efficiency falls by the same factor each time
    assert choice.why.endswith("by estimate")


def test_a_model_that_does_not_fit_one_device_takes_the_smallest_team() -> None:
    choice = chosen(8, 8, single=0.0, fsdp=50.0)
    assert choice.shape == FSDP
    assert "needs 2 devices" in choice.why


def test_a_configuration_that_works_nowhere_has_no_choice() -> None:
    choice = chosen(8, 8, single=0.0, ddp=0.0)
    assert choice.shape is None
    assert "out of memory" in choice.why


def test_each_configuration_has_a_choice_of_its_own() -> None:
    runs = [TrialRun({"width": width}, SINGLE, 1.0) for width in (1, 2)]
    assert [choice.config for choice in choose(runs, trials=1, devices=1)] == [{"width": 1}, {"width": 2}]
