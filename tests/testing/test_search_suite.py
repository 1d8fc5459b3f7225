"""Every search passes the suite that third parties use, and keeps its own promises in all its experiments."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict

import pytest

import hopfleet as hop
from hopfleet.domain import messages as m
from hopfleet.testing.searches import SearchSuite
from hopfleet.testing.virtual import Run, VirtualExperiment

SIX = {"a": hop.choice([1, 2]), "b": hop.grid_search([3, 4, 5])}
"""A space of six points."""


class TestRandom(SearchSuite):
    def make(self):
        return hop.Random(trials=5, max_epochs=3)


class TestGrid(SearchSuite):
    space = SIX
    experiments = 20

    def make(self):
        return hop.Grid(max_epochs=2)


def costs_at(run: Run) -> dict[int, dict[str, float]]:
    """What the trials that the search suggested reported, by epoch."""
    found = defaultdict(dict)
    for message in run.messages:
        if isinstance(message, m.EpochEnded) and run.known[message.trial].origin == "search":
            found[message.epoch][message.trial] = run.setting.goal.cost(message.metrics)
    return found


class TestASHA(SearchSuite):
    def make(self):
        return hop.ASHA(trials=12, max_epochs=9)

    def check(self, run):
        """A trial in the best third of a rung at the end has gone on, unless it diverged or ended."""
        for level, reports in costs_at(run).items():
            if level in (1, 3):
                best = sorted(reports, key=lambda trial: (reports[trial], trial))[: len(reports) // 3]
                waiting = [trial for trial in best if run.known[trial].state == "paused" and reports[trial] < math.inf]
                assert all(run.known[trial].trained > level for trial in waiting)
        if not run.setting.troubles:
            resumed = [message for message in run.messages if isinstance(message, m.TrialResumed)]
            assert Counter(message.epochs for message in resumed).keys() <= {3, 9}
            assert all(known.trained in (1, 3, 9) for known in run.known.values() if known.state == "paused")


class TestASHAWithOptions(TestASHA):
    """A grid that runs dry, as many trials as workers."""

    space = SIX
    experiments = 20

    def make(self):
        return hop.ASHA(trials=12, max_epochs=9, sampler=hop.Grid(), concurrency="workers")


class Bracketed(SearchSuite):
    """What successive halving and Hyperband promise."""

    def check(self, run):
        for bracket in run.search._brackets:
            assert not bracket.open or run.search.sample(run.search._begun) is None
            # Every rung is decided: no trial waits for another.
            last = bracket.rung == len(bracket.levels) - 1
            assert last or not bracket.members
            assert len(bracket.members) <= max(1, bracket.begun // bracket.eta**bracket.rung)
        if not run.setting.troubles and not run.setting.failing and not run.setting.diverging:
            began = Counter(bracket.levels[0] for bracket in run.search._brackets for _ in range(bracket.begun))
            expected = Counter()
            for bracket in filter(lambda bracket: bracket.begun, run.search._brackets):
                for rung, level in enumerate(bracket.levels):
                    kept = max(1, bracket.begun // bracket.eta**rung)
                    further = rung + 1 < len(bracket.levels) and max(1, bracket.begun // bracket.eta ** (rung + 1))
                    expected[level] += kept - int(further)
            assert sum(began.values()) == sum(expected.values()) == len(run.known)
            assert Counter(known.trained for known in run.known.values()) == expected


class TestSuccessiveHalving(Bracketed):
    def make(self):
        return hop.SuccessiveHalving(trials=10, max_epochs=9)


class TestHyperband(Bracketed):
    def make(self):
        return hop.Hyperband(max_epochs=4, eta=2)


class TestHyperbandWithADrySampler(Bracketed):
    space = SIX
    experiments = 20

    def make(self):
        return hop.Hyperband(max_epochs=9, sampler=hop.Grid(), concurrency=2)


class TestPBT(SearchSuite):
    def make(self):
        return hop.PBT(population=5, max_epochs=5)

    def check(self, run):
        """Every clone of its own took the place of one trial, and no place changed hands too often."""
        replaced = {}
        for message in run.messages:
            if isinstance(message, m.TrialStopped) and message.reason.startswith("replaced by "):
                clone = message.reason.removeprefix("replaced by ")
                assert clone not in replaced
                replaced[clone] = message.trial
        assert set(replaced) == {name for name, known in run.known.items() if known.origin == "clone"}
        for clone in replaced:
            place, times = clone, 0
            while place in replaced:
                place, times = replaced[place], times + 1
            assert run.known[place].origin == "search"
            assert times <= 5
        assert all(run.search._members[name].trial.id == name for name in run.search._members)
        assert not run.search._awaited.keys() - run.search._members.keys()


class TestPBTOfTwo(TestPBT):
    experiments = 20

    def make(self):
        return hop.PBT(population=2, max_epochs=5, quantile=0.5, resample=1.0)


class TestFreezeThaw(SearchSuite):
    def make(self):
        return hop.FreezeThaw(trials=10, max_epochs=5)

    def check(self, run):
        """Each trial trains a step at a time, and the best one that can is trained to its end."""
        own = {name: known for name, known in run.known.items() if known.origin == "search"}
        if not run.setting.troubles:
            assert len(own) == 10
            finite = {name for costs in costs_at(run).values() for name, cost in costs.items() if math.isfinite(cost)}
            completed = [name for name, known in own.items() if known.trained == 5]
            assert completed or not finite or run.setting.diverging or run.setting.failing


class TestFreezeThawWithOptions(SearchSuite):
    """A space with a grid, steps of two epochs, and as many trials as workers."""

    space = SIX
    experiments = 20

    def make(self):
        return hop.FreezeThaw(trials=12, max_epochs=7, step=2, concurrency="workers")


class TestRules(SearchSuite):
    def make(self):
        return hop.Stopping(hop.Random(trials=8, max_epochs=4), [hop.Median(), hop.Patience(2), hop.Budget(epochs=20)])

    def check(self, run):
        trained = sum(isinstance(message, m.EpochEnded) for message in run.messages)
        # What ran when the budget was spent is finished, one epoch for each trial at most.
        assert trained < 20 + len(run.known)


class TestRulesOverASHA(SearchSuite):
    experiments = 20

    def make(self):
        search = hop.ASHA(trials=None, max_epochs=4, eta=2)
        return hop.Stopping(search, [hop.Budget(seconds=20.0), hop.Budget(trials=9), hop.Patience(epochs=1)])


# ------------------------------------------------------------------------------------------ the suite can fail


class Forgetful(hop.Random):
    """Broken in one way or another."""

    def __init__(self, fault):
        super().__init__(trials=4, max_epochs=3)
        self.fault, self.asked = fault, 0

    @property
    def trials(self):
        return 2 if self.fault == "trials" else super().trials

    def suggest(self, number):
        self.asked += 1
        suggestion = super().suggest(number)
        if suggestion is not None and self.fault == "epochs":
            return hop.Suggestion(suggestion.config, 4)
        if suggestion is not None and self.fault == "config":
            return hop.Suggestion({**suggestion.config, "kind": "d"}, 3)
        if suggestion is not None and self.fault == "again":
            return hop.Suggestion(suggestion.config, 1 + self.asked % 2)
        if self.fault == "endless":
            return hop.Suggestion({**super().suggest(0).config}, 1)
        return suggestion

    def setup(self, space, *, seed, goal):
        if self.fault == "seed":
            seed = self.first = getattr(self, "first", seed)
        if self.fault == "goal":
            goal = self.first = getattr(self, "first", goal)
        super().setup(space, seed=seed, goal=goal)
        if self.fault != "left":
            self.observed = 0

    def observe(self, trial, epoch, metrics):
        self.asked += 1
        self.observed = getattr(self, "observed", 0) + 1
        match self.fault:
            case "left" if self.observed > 12:
                return [hop.Stop(trial.id, "counts the observations of all experiments")]
            case "goal" if self.goal.cost(metrics) > 0.5:
                return [hop.Stop(trial.id, "bad by the goal of the first experiment")]
            case "stranger":
                return [hop.Stop("t9999", "why not")]
            case "silent":
                return [hop.Stop(trial.id, "")]
            case "longer":
                return [hop.Train(trial.id, 4)]
            case "memory" if self.asked % 3 == 0:
                return [hop.Stop(trial.id, "counts suggestions")]
            case "clones":
                return [hop.Clone(trial.id, trial.config)] if epoch == 1 else []
        return []

    def describe(self):
        return {"fault": {1, 2}} if self.fault == "json" else super().describe()


FAULTS = {
    "trials": "trials instead of 2",
    "epochs": "max_epochs is 3",
    "config": "is not an option",
    "again": "another answer",
    "endless": "trials instead of 4|does not end",
    "stranger": "unknown trial",
    "silent": "give a reason",
    "longer": "max_epochs is 3",
    "memory": "after a restart|another experiment",
    "clones": "trials instead of 4",
    "json": "not JSON serializable",
    "seed": "after another setup",
    "goal": "after another setup",
    "left": "after another setup",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_suite_finds_what_is_broken(fault, monkeypatch):
    monkeypatch.setattr("hopfleet.testing.virtual.MANY_STEPS", 500)

    class Broken(SearchSuite):
        experiments = 20

        def make(self):
            return Forgetful(fault)

    suite = Broken()
    tests = [getattr(suite, name) for name in dir(suite) if name.startswith("test_")]
    with pytest.raises((AssertionError, TypeError), match=FAULTS[fault]):
        for test in tests:
            test()


def test_settings_contain_everything():
    settings = [VirtualExperiment.made(seed, troubles=6) for seed in range(200)]
    kinds = {kind for setting in settings for kind in setting.troubles.values()}
    assert kinds == {"add", "clone", "delete", "extend", "prioritise", "restart", "resume", "stop"}
    assert {setting.workers for setting in settings} == {1, 2, 3, 5, 40}
    assert any(setting.lost and setting.failing and setting.diverging for setting in settings)


@pytest.mark.slow
def test_runs_contain_everything():
    """What the suite is about really happens in its experiments."""
    kinds = Counter()
    for seed in range(40):
        run = Run(TestPBT(), VirtualExperiment.made(seed, troubles=6)).go()
        kinds.update(json.loads(text)[0] for text in run.journal())
        kinds.update(message.state for message in run.messages if isinstance(message, m.TrialEnded))
    wanted = {"UnitFailed", "WorkerLost", "OperatorAsked", "VersionLost", "CopyVersion", "TrialRolledBack"}
    assert wanted | {hop.TrialState.FAILED, hop.TrialState.STOPPED, hop.TrialState.COMPLETED} <= kinds.keys()
