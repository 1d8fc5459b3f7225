"""Every policy and every stopping rule passes the suite that third parties pass."""

from __future__ import annotations

import random

import pytest

import hopfleet as hop
from hopfleet.domain.unit import Unit, Work
from hopfleet.scheduler.policies import POLICIES
from hopfleet.scheduler.policies import exact as exact_policy
from hopfleet.scheduler.policies import portfolio as portfolio_policy
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.slots import Assignment
from hopfleet.testing.policies import PolicySuite


@pytest.fixture(autouse=True)
def quick_solver(monkeypatch):
    monkeypatch.setattr(exact_policy, "SECONDS", 0.02)
    monkeypatch.setattr(portfolio_policy, "FIRST_EFFORT", 2_000)


@pytest.mark.parametrize("name", POLICIES)
class TestPolicies(PolicySuite):
    experiments = 4
    cheap_seconds = 0.5

    @pytest.fixture(autouse=True)
    def choose(self, name):
        self.make = POLICIES[name]


def suite(policy):
    class Suite(PolicySuite):
        experiments = 4

        def make(self):
            return policy

    return Suite()


def changing(**fields):
    """A policy that is right but for some fields of its choice."""

    def policy(schedule, rng):
        choice = longest_remaining(schedule, rng)
        if choice is None:
            return None
        unit = {"trial": choice.unit.trial, "epoch": choice.unit.epoch, "partition": choice.unit.partition} | fields
        worker = unit.pop("worker", choice.worker)
        return Assignment(worker, Unit(**unit))

    return policy


def meddling(schedule, rng):
    schedule.ready.popitem()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (lambda schedule, rng: None, "nothing runs"),
        (changing(worker="w9"), "the worker is not idle"),
        (changing(trial="t9999"), "the trial cannot start now"),
        (changing(epoch=7), "the trial is in epoch 1"),
        (changing(partition=7), "the worker can start the partitions"),
        (changing(work=Work.EVALUATE), "training units only"),
        (lambda schedule, rng: random.random() and longest_remaining(schedule, rng), "draw from rng instead"),
        (meddling, "only reads the schedule"),
    ],
)
def test_the_suite_notices_a_policy_that(policy, words):
    with pytest.raises(AssertionError, match=words):
        suite(policy).test_calm_experiments_end()


def test_the_suite_notices_a_slow_policy():
    with pytest.raises(AssertionError, match="seconds per choice"):
        slow = suite(longest_remaining)
        slow.cheap_seconds = 0.0
        slow.test_choices_are_cheap()


def test_make_must_be_overridden():
    with pytest.raises(AssertionError, match="override make"):
        PolicySuite().make()
    assert hop.simulate(policy="random").ratio >= 1
