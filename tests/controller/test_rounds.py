"""Same seed, same experiment: with rounds, nothing depends on the speed of the workers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

import hopfleet as hop
from hopfleet.domain import messages as m
from hopfleet.testing.virtual import Run, VirtualExperiment
from tests.helpers.marks import LONG


@dataclass(frozen=True)
class Timed(VirtualExperiment):
    """An experiment whose metrics follow from the configurations, at a speed of its own."""

    speed: int = 0

    def metrics(self, trial, epoch):
        level = abs(math.log10(trial.config["lr"]) + 2.5)
        if trial.config["lr"] > 0.08:
            return {"loss": math.nan}
        return {"loss": level + math.exp(-epoch) + 0.1 * self.draw("noise", trial.config["lr"], epoch).random()}

    def seconds(self, command, trial):
        return self.draw(self.speed, trial.number, command.unit.epoch).choice((0.0, 0.3, 1.0, 5.0))


class Suite:
    def __init__(self, make):
        self.make = make
        self.space = {"lr": hop.loguniform(1e-4, 1e-1), "width": hop.choice([1, 2, 3])}


def outcome(make, setting):
    """Return every configuration, every epoch with its metrics, and every end."""
    run = Run(Suite(make), setting).go()
    told = {}
    for message in run.messages:
        match message:
            case m.TrialAdded():
                told[message.trial] = [message.config, message.parent, message.visits]
            case m.EpochEnded():
                told[message.trial] += [repr(message.metrics), message.epoch]
            case m.TrialEnded():
                told[message.trial] += [message.state, message.reason]
    return told


def differing(make, seeds, deterministic):
    """Count the seeds with which other speeds, a lost worker or a restart give another experiment."""
    count = 0
    for seed in range(seeds):
        size = {"seed": seed, "workers": 2, "partitions": 2, "failing": 0.1 * (seed % 3), "steady": False}
        calm = Timed(**size, deterministic=deterministic)
        troubled = replace(calm, speed=1, lost=1, troubles={20: "restart"})
        count += outcome(make, calm) != outcome(make, troubled)
    return count


SEARCHES = {
    "tpe": lambda: hop.TPE(trials=8, max_epochs=2, n_startup_trials=2),
    "pbt": lambda: hop.PBT(population=4, max_epochs=4, explore=["lr"]),
    "asha": lambda: hop.ASHA(trials=12, max_epochs=4, eta=2),
    "budget": lambda: hop.Stopping(hop.ASHA(trials=None, max_epochs=4, eta=2), [hop.Budget(epochs=13), hop.Median()]),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_the_speed_of_workers_changes_nothing(name):
    assert differing(SEARCHES[name], 6, deterministic=True) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_the_speed_of_workers_changes_nothing_with_many_seeds(name):
    assert differing(SEARCHES[name], 50 if LONG else 15, deterministic=True) == 0


def test_with_a_fixed_concurrency_the_number_of_workers_changes_nothing():
    def make():
        return hop.ASHA(trials=12, max_epochs=4, eta=2, concurrency=5)

    for seed in range(3):
        setting = Timed(seed=seed, deterministic=True)
        assert outcome(make, replace(setting, workers=1)) == outcome(make, replace(setting, workers=4, speed=1))


def test_a_budget_of_epochs_is_exact_in_rounds():
    run = Run(Suite(SEARCHES["budget"]), Timed(workers=3, deterministic=True)).go()
    assert sum(isinstance(message, m.EpochEnded) for message in run.messages) == 13
    assert sum(isinstance(message, m.UnitFinished) and message.unit.trains for message in run.messages) == 26


def test_a_search_that_does_not_listen_needs_no_rounds():
    deterministic = VirtualExperiment(deterministic=True)
    assert not Run(Suite(lambda: hop.Random(trials=2)), deterministic).controller.state.in_rounds
    assert Run(Suite(SEARCHES["asha"]), deterministic).controller.state.in_rounds


@pytest.mark.parametrize("name", SEARCHES)
def test_without_rounds_the_speed_matters(name):
    assert differing(SEARCHES[name], 4, deterministic=False) > 0
