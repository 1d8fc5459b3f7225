"""Workers of unequal speed that read all partitions: whole searches, and who runs what."""

from __future__ import annotations

from statistics import mean

import pytest

from benchmarks.unequal import SEARCHES, Cluster, Outcome, cluster, run
from hopfleet.scheduler.policies import unequal
from tests.helpers.marks import long


def one(trials: int, speeds: tuple[float, ...], *, partitions: int = 4, epochs: int = 3) -> Cluster:
    return Cluster(0, "random", speeds, trials, partitions, epochs)


def test_one_trial_stays_on_the_fastest_worker() -> None:
    """It took four times as long: nodes with 2 devices of speed 0.5, and 4 of speed 2."""
    found = run(one(1, (0.5, 0.5, 2.0, 2.0, 2.0, 2.0)))
    assert found.ratio == pytest.approx(1.0)
    assert found.units["w1"] == found.units["w2"] == 0


@pytest.mark.parametrize(
    "seeds",
    [(12, 13), pytest.param((16,), marks=pytest.mark.slow), pytest.param((18,), marks=[pytest.mark.slow, long])],
)
def test_random_clusters_are_near_the_bound(seeds: tuple[int, ...]) -> None:
    ratios = [run(cluster(seed, "random")).ratio for seed in seeds]
    assert mean(ratios) <= 1.03 and max(ratios) <= 1.1


@pytest.mark.parametrize("search", sorted(SEARCHES.keys() - {"tpe"}))
def test_all_searches_end(search: str) -> None:
    found = run(Cluster(1, search, (1.0, 1.0, 4.0), 6, 4, 2), informed=False)
    assert 1 - 1e-9 <= found.ratio < 2.5


def test_an_idle_worker_is_tried_out_where_nothing_is_expected() -> None:
    """The only trial begins on the slow worker, which cannot be known."""
    found = run(one(1, (1.0, 4.0), partitions=8), informed=False)
    assert found.units["w1"] <= 2


def test_a_worker_that_becomes_slow_is_left() -> None:
    found = run(one(1, (2.0, 1.0), partitions=8, epochs=4), slowed=lambda worker, now: 8.0 if worker == "w1" else 1.0)
    assert found.units["w1"] <= 3


def test_equal_workers_keep_their_trials() -> None:
    found = run(one(2, (1.0, 1.0, 1.0)))
    assert found.units["w3"] == 0


@pytest.mark.parametrize("seed", [11, 21, 336])
def test_brackets_with_the_most_rungs_do_not_end_alone(seed: int) -> None:
    """Trials with little left in their rung started last, and what followed was done alone: up to 1.10 of the bound."""
    assert run(cluster(seed)).ratio < 1.02


def test_brackets_on_equal_workers() -> None:
    assert run(cluster(328)).ratio < 1.02


def test_a_population_on_equal_workers() -> None:
    """It counted as trials that are added as others end, so the longest may have begun last: 1.167 of the bound."""
    assert run(Cluster(5, "pbt", (1.0,) * 6, 24, 4, 4)).ratio < 1.02


def test_many_trials_and_many_units_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Outcome] = {}
    for name, value in (("MANY", 1), ("UNITS", 30)):
        with monkeypatch.context() as patched:
            patched.setattr(unequal, name, value)
            found[name] = run(one(8, (1.0, 2.0, 4.0)))
    assert max(each.ratio for each in found.values()) < 1.3


@pytest.mark.parametrize("units", [30, unequal.UNITS])
def test_noise_is_met_by_placing_units_anew(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unequal, "LOOSE", -1.0)
    monkeypatch.setattr(unequal, "UNITS", units)
    assert run(one(5, (1.0, 2.0, 4.0))).ratio < 1.2
