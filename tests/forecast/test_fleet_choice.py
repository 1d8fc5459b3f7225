"""What policy="fleet" knows about rates before a run."""

from __future__ import annotations

import json

import pytest

from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.domain.trial import Trial
from hopfleet.errors import UsageError
from hopfleet.forecast.fleet_choice import choose_fleet
from hopfleet.forecast.team_choice import Size
from hopfleet.forecast.trial_runs import TrialRun

PAIR = TeamShape("ddp", 2)
EXTENT = Size([], 3, 1, rows=100, partitions=2, batch=8)
SMALL, LARGE, OTHER = {"width": 1, "net": "a"}, {"width": 9, "net": "a"}, {"width": 1, "net": "b"}
RUNS = [
    TrialRun(SMALL, SINGLE, 100.0),
    TrialRun(SMALL, PAIR, 101.0, open_seconds=2.0),
    TrialRun(LARGE, SINGLE, 50.0),
    TrialRun(LARGE, PAIR, 90.0),
    TrialRun(OTHER, SINGLE, 0.0, error="ValueError: no"),
]


def seconds(config: object, runs: list[TrialRun] = RUNS) -> list[float]:
    chosen = choose_fleet(runs, EXTENT, 2, 0.5)
    assert chosen.fleet is not None
    return chosen.fleet.epoch_seconds(Trial("t", 0, config, 0, 1), 2)  # type: ignore[arg-type]


def test_each_configuration_has_its_own_rates() -> None:
    assert seconds(LARGE) == pytest.approx([2.0, 100 / 90])
    assert seconds(SMALL) == [1.0, 1.0], "two devices are not clearly faster"


def test_others_are_like_the_mean_of_their_class() -> None:
    assert seconds({"width": 5, "net": "a"}) == pytest.approx([1.5, (1 + 100 / 90) / 2])
    assert seconds(OTHER) == pytest.approx(seconds({"width": 5, "net": "a"}))


def test_a_configuration_from_a_journal_is_the_same() -> None:
    odd = {"layers": (3, 3), "lr": 0.1}
    runs = [*RUNS, TrialRun(odd, SINGLE, 10.0)]
    assert seconds(json.loads(json.dumps(odd)), runs)[0] == 10.0


def test_how_the_run_starts() -> None:
    chosen = choose_fleet(RUNS, EXTENT, 4, 0.5)
    assert (chosen.shapes, chosen.workers) == ((SINGLE,), 4)
    assert chosen.scaling is not None
    assert (chosen.scaling.strategy, chosen.scaling.form_seconds, chosen.scaling.most) == ("ddp", 2.5, 8)
    assert chosen.why == "FLEET's rounds; two devices are 1.00 to 1.80 times as fast as one"


def test_no_configuration_trains() -> None:
    with pytest.raises(UsageError, match="none does: does not fit: CUDA out of memory; use policy='auto'"):
        choose_fleet([TrialRun(SMALL, SINGLE, error="CUDA out of memory")], EXTENT, 2, 0.5)
