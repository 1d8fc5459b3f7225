"""What every policy must do. Derive ``PolicySuite`` in a test file and override ``make``:

    class TestMyPolicy(PolicySuite):
        def make(self):
            return my_policy

The suite runs whole experiments in virtual time, with the controller of real experiments: workers that read all
partitions, one partition each or some with replicas; units of equal and of very different length; trials that fail,
workers that are lost, requests and restarts. Every choice is checked, and every experiment must end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from hopfleet.extend import Assignment, Policy, Search
from hopfleet.scheduler.schedule import Schedule
from hopfleet.search.random import Random
from hopfleet.testing.searches import SearchSuite
from hopfleet.testing.virtual import Run, VirtualExperiment

EXPERIMENTS = 12
"""Experiments for each test of the suite."""

CHEAP_SECONDS = 0.1
"""Most seconds of processor time that a choice may take on average."""

HELD: tuple[Sequence[Sequence[int]] | None, ...] = (
    None,
    ((0,), (1,), (2,)),
    ((0, 1), (1, 2), (2, 0)),
    ((0, 1, 2), (0,), (1,)),
)
"""The partitions that each of three workers reads: all, one each, two each, and one worker that reads all."""


class PolicySuite:
    """The tests. ``experiments`` and ``cheap_seconds`` may be changed for policies that compute much."""

    experiments = EXPERIMENTS
    cheap_seconds = CHEAP_SECONDS

    def make(self) -> Policy:
        raise AssertionError("override make()")

    def test_calm_experiments_end(self) -> None:
        for setting in self._settings(troubles=0):
            self._run(setting)

    def test_troubled_experiments_end(self) -> None:
        for setting in self._settings(troubles=6):
            self._run(setting)

    def test_one_worker_is_enough(self) -> None:
        for seed in range(self.experiments // 4):
            self._run(VirtualExperiment.made(seed, troubles=seed % 4, workers=1, partitions=3))

    def test_the_same_seed_gives_the_same_experiment(self) -> None:
        for setting in self._settings(troubles=4):
            assert self._run(setting).journal() == self._run(setting).journal(), f"another experiment for {setting}"

    def test_choices_are_cheap(self) -> None:
        setting = VirtualExperiment(workers=3, partitions=3, held=HELD[1], steady=False)
        checked = self._run(setting, Random(trials=24, max_epochs=2)).checked
        mean = checked.seconds / checked.choices
        assert mean <= self.cheap_seconds, f"{mean:.3g} seconds per choice"

    def _settings(self, troubles: int) -> list[VirtualExperiment]:
        """Return settings with every layout, and with as many workers and partitions as the layout has."""
        return [
            VirtualExperiment.made(seed, troubles, workers=3, partitions=3, held=HELD[seed % len(HELD)])
            for seed in range(self.experiments)
        ]

    def _run(self, setting: VirtualExperiment, search: Search | None = None) -> _PolicyRun:
        run = _PolicyRun(self, setting, search or Random(trials=7, max_epochs=3))
        run.go()
        return run


class _PolicyRun(Run):
    """An experiment that asks the policy under test."""

    def __init__(self, suite: PolicySuite, setting: VirtualExperiment, search: Search) -> None:
        self._make = suite.make
        super().__init__(_Searches(search), setting)

    def _policy(self) -> Policy:
        self.checked = _Checked(self._make())
        return self.checked


class _Searches(SearchSuite):
    """Experiments with one search."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def make(self) -> Search:
        return self._search


class _Checked:
    """The policy under test; every choice is compared with what the schedule allows."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.choices = 0
        self.seconds = 0.0

    def __call__(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        before, global_state = _seen(schedule), random.getstate()
        began = time.process_time()
        choice = self._policy(schedule, rng)
        self.seconds += time.process_time() - began
        self.choices += 1
        assert _seen(schedule) == before, "the policy changed the schedule; a policy only reads the schedule"
        assert random.getstate() == global_state, "the policy drew from the module random; draw from rng instead"
        if choice is not None:
            _check(schedule, choice)
        return choice


def _seen(schedule: Schedule) -> Any:
    """Return what a policy must not change."""
    trials = {name: (progress.version, *sorted(progress.todo)) for name, progress in schedule.trials.items()}
    return list(schedule.ready), list(schedule.idle), trials


def _check(schedule: Schedule, choice: Assignment) -> None:
    slot, progress = schedule.idle.get(choice.worker), schedule.ready.get(choice.unit.trial)
    assert slot is not None, f"{choice}: the worker is not idle; choose from schedule.idle"
    assert progress is not None, f"{choice}: the trial cannot start now; choose from schedule.ready"
    assert choice.unit.trains, f"{choice}: a policy chooses training units only"
    assert choice.unit.epoch == progress.epoch, f"{choice}: the trial is in epoch {progress.epoch}"
    options = sorted(schedule.options(progress, slot))
    assert choice.unit.partition in options, f"{choice}: the worker can start the partitions {options} of this trial"
