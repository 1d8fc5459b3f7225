"""How values read."""

from __future__ import annotations

import pytest

from hopfleet.monitor.history import TrialHistory
from hopfleet.monitor.wording import (
    config_keys,
    describe,
    duration,
    flatten,
    makespan,
    natural_order,
    short,
    size,
    varying_keys,
)


def trial(number: int, **config: object) -> TrialHistory:
    return TrialHistory(f"t{number}", number, config, seed=0, epochs=1)


def test_nested_configurations_are_flattened() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e": {}}) == {"a.b": 1, "a.c.d": 2, "e": {}}


@pytest.mark.parametrize(
    "value, text",
    [(0.000123456, "0.0001235"), (1.0, "1"), (64, "64"), (None, "None"), ("a\nb", "a b"), ("x" * 20, "x" * 15 + "…")],
)
def test_values_are_short(value: object, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    "seconds, text", [(0.4, "0s"), (59.6, "1m 00s"), (125, "2m 05s"), (7800, "2h 10m"), (273600, "3d 04h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("seconds, text", [(0.04, "0.0 s"), (12.34, "12.3 s"), (125, "2m 05s")])
def test_makespans_have_tenths_while_they_are_short(seconds: float, text: str) -> None:
    assert makespan(seconds) == text


@pytest.mark.parametrize("count, text", [(512, "512 B"), (3.4 * 2**20, "3.4 MiB"), (2**52, "4096.0 TiB")])
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


def test_keys_that_differ_come_first() -> None:
    trials = [trial(0, same=1, lr=0.1), trial(1, same=1, lr=0.2, extra=True)]
    assert config_keys(trials) == ["lr", "extra", "same"]
    assert varying_keys(trials) == ["lr", "extra"]


def test_a_lone_trial_is_told_by_all_its_keys() -> None:
    assert varying_keys([trial(0, a=1, b=2)]) == ["a", "b"]


def test_a_description_holds_as_many_keys_as_fit() -> None:
    config = {"optimizer": {"name": "sgd"}, "lr": 0.01}
    assert describe(config, ["optimizer.name", "lr", "missing"], 40) == "name=sgd lr=0.01"
    assert describe(config, ["optimizer.name", "lr"], 10) == "name=sgd"


def test_workers_are_ordered_as_people_count() -> None:
    assert sorted(["w10", "w2", "a11"], key=natural_order) == ["a11", "w2", "w10"]
