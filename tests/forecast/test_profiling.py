"""Profiling before a run: which configurations are tried, for how long, and what the others are taken for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hopfleet.domain.trial import Config, Trial
from hopfleet.forecast import rehearsal as rehearsals
from hopfleet.forecast.profiling import BATCHES, MOST, Profiles, profile_trials
from hopfleet.forecast.rehearsal import UNIT_SECONDS, Outline, Rehearsal, measure, predict, worth_profiling
from hopfleet.worker.spec import Profile
from tests.helpers.previews import SECOND, configs, outline


class Probing:
    """A worker that takes ``costs[number]`` seconds to try a trial, on a clock of its own."""

    def __init__(
        self, costs: dict[int, float] | None = None, *, failing: tuple[int, ...] = (), row: float | None = None
    ) -> None:
        self.costs, self.failing, self.row = costs or {}, failing, row
        self.time = 0.0
        self.tried: list[int] = []

    def __call__(self, trial: Trial, batches: int) -> Profile:
        assert batches == BATCHES
        self.tried.append(trial.number)
        self.time += self.costs.get(trial.number, 0.1)
        if trial.number in self.failing:
            return Profile(error="no luck")
        return dataclasses.replace(SECOND, seconds_per_row=self.row or 0.01 * (1 + trial.number))

    def clock(self) -> float:
        return self.time


def foresee(
    probe: Any, configs: dict[int, Config], outline: Outline, known: dict[int, Profile], *clock: Any
) -> tuple[Profiles, Rehearsal | None]:
    found = measure(probe, configs, outline, known, *clock)
    return found, predict(outline, found, *clock)


def tried(probing: Probing, configs: dict[int, Config], budget: float = 1e9, **more: Any) -> Profiles:
    more = {"seed": 0, "known": {}, **more}
    return profile_trials(probing, configs, budget=lambda found: budget, clock=probing.clock, **more)


def test_profiling_tries_all_of_a_few_and_some_of_many() -> None:
    assert tried(Probing(), configs(3)).found.keys() == {0, 1, 2}
    many = tried(Probing(), configs(100))
    assert many.tried == len(many.found) == MOST
    # Neither the first ones nor every so-manieth: a grid would show one side of itself.
    assert max(many.found) > 2 * MOST
    assert many.found.keys() != tried(Probing(), configs(100), seed=1).found.keys()


def test_equal_configurations_are_tried_once() -> None:
    probing = Probing()
    found = tried(probing, {number: {"lr": number % 2} for number in range(50)})
    assert len(probing.tried) == found.tried == 2
    assert found.found.keys() == set(range(50))


def test_profiling_keeps_to_its_budget() -> None:
    probing = Probing()
    found = tried(probing, configs(16), budget=0.55)
    assert probing.time == pytest.approx(0.5)
    assert found.seconds == pytest.approx(0.5)
    assert found.tried == 5
    # At least one: without any nothing is known, not even what profiling may take.
    assert tried(Probing(), configs(16), budget=0.0).tried == 1


def test_the_slowest_so_far_says_whether_there_is_time_for_one_more() -> None:
    slow = dict.fromkeys(range(16), 3.0)
    assert tried(Probing(slow), configs(16), budget=5.0).tried == 1
    assert tried(Probing(slow), configs(16), budget=6.0).tried == 2


def test_what_was_found_before_is_not_tried_again() -> None:
    probing = Probing()
    found = tried(probing, configs(3), known={1: SECOND})
    assert sorted(probing.tried) == [0, 2]
    assert found.found[1] == SECOND


def test_what_fails_is_told_apart() -> None:
    found = tried(Probing(failing=(1,)), configs(3))
    assert found.found.keys() == {0, 2}
    assert found.failed.keys() == {1}
    assert found.of(1).seconds_per_row == pytest.approx(0.02)


def test_others_are_like_the_mean() -> None:
    found = Profiles({0: SECOND, 1: dataclasses.replace(SECOND, seconds_per_row=0.03, size=2001)})
    assert found.of(0) == SECOND
    assert found.of(7).seconds_per_row == pytest.approx(0.02)
    assert found.of(7).size == 1500
    assert found.of(7).metrics == ()


def test_failures_cost_no_more_than_findings() -> None:
    probing = Probing(dict.fromkeys(range(64), 0.9), failing=tuple(range(64)))
    found, rehearsal = foresee(probing, configs(64), outline(trials=64), {}, probing.clock)
    assert found.tried == 2
    assert (found.found, rehearsal) == ({}, None)


def test_a_million_trials_are_no_trouble() -> None:
    many = outline(trials=10**9)
    assert many.lower_bound(Profiles({3: SECOND, 10**10: SECOND})) == pytest.approx(10**9 / 2 * 6 * (1 + UNIT_SECONDS))


def test_a_backend_that_trains_nothing_gives_no_times() -> None:
    assert (
        profile_trials(lambda trial, batches: Profile(), configs(2), seed=0, known={}, budget=lambda found: 1.0).found
        == {}
    )


@pytest.mark.parametrize(
    ("changes", "batch_size", "worth"),
    [
        ({}, 1, True),
        ({"workers": 1}, 1, False),  # there is nothing to choose
        ({"workers": 4}, 1, False),  # every trial has a worker of its own
        ({}, 100, False),  # the whole run has few batches
    ],
)
def test_when_profiling_is_worth_it(changes: dict[str, Any], batch_size: int, worth: bool) -> None:
    assert worth_profiling(outline(**changes), batch_size) is worth


@pytest.mark.parametrize(
    ("row", "spent"),
    [
        (0.02, 1.6),  # 192 s on each worker: time for all of the 16
        (0.01, 1.0),  # and not longer than a unit
        (0.001, 0.4),  # 5% of 10 s, and not a probe more
        (0.00001, 0.1),  # the one that it takes to know
    ],
)
def test_fit_spends_a_small_part_of_the_run(row: float, spent: float) -> None:
    probing = Probing(row=row)
    found, _ = foresee(probing, configs(64), outline(trials=64, workers=4), {}, probing.clock)
    assert found.seconds == pytest.approx(spent)


@pytest.mark.slow
def test_units_that_are_short_leave_time_for_a_prediction() -> None:
    probing = Probing(row=0.001)
    found, rehearsal = foresee(probing, configs(640), outline(trials=640), {}, probing.clock)
    assert found.tried == rehearsals.ENOUGH
    assert rehearsal is not None


@pytest.mark.parametrize(("seconds", "tried"), [(0.0, 5), (0.25, 3), (0.5, 1)])
def test_what_was_timed_already_counts(seconds: float, tried: int) -> None:
    known = {0: dataclasses.replace(SECOND, seconds_per_row=0.001, seconds=seconds)}
    probing = Probing(row=0.001)
    found, _ = foresee(probing, configs(64), outline(trials=64, workers=4), known, probing.clock)
    assert found.tried == tried


def test_too_few_findings_make_no_prediction() -> None:
    def foreseen(trials: int, cost: float) -> Rehearsal | None:
        probing = Probing(dict.fromkeys(range(64), cost), row=0.1)
        found, rehearsal = foresee(probing, configs(trials), outline(trials=trials, epochs=1), {}, probing.clock)
        assert len(found.found) < rehearsals.ENOUGH
        return rehearsal

    assert foreseen(64, 1.0) is None
    assert foreseen(4, 0.1) is not None
    assert foresee(lambda trial, batches: Profile(), configs(4), outline(), {})[1] is None


def test_too_many_units_make_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsals, "PREDICTING", 1e9)
    assert foresee(Probing(), configs(4), outline(), {})[1] is not None
    monkeypatch.setattr(rehearsals, "SIMULATED", 23)
    assert foresee(Probing(), configs(4), outline(), {})[1] is None
