"""What estimates learn from units."""

from __future__ import annotations

import math
import random

import pytest

from hopfleet.scheduler.estimates import Estimates

pytestmark = pytest.mark.usefixtures("quick_solver")


def learned(prior, spread, rounds=8, sigma=0.2):
    """Estimates of eight trials whose true costs are ``spread`` apart, and those costs."""
    rng = random.Random(3)
    estimates = Estimates([1] * 4, prior=prior)
    costs = [math.exp(rng.gauss(0.0, spread)) for _ in range(8)]
    for visit in range(rounds):
        for number, cost in enumerate(costs):
            partition = (number + visit) % 4
            seconds = cost * rng.lognormvariate(0.0, sigma)
            estimates.measured(f"t{number}", number, f"w{partition}", partition, seconds)
    return estimates, costs


def test_a_prior_that_holds_is_kept():
    """What trials differ by is no more than chance."""
    estimates, _ = learned(lambda number, worker, partition: 1.0, 0.0)
    times = [estimates.expected(f"t{number}", number, "w0", 0) for number in range(8)]
    assert max(times) / min(times) < 1.1
    assert estimates.noise == pytest.approx(0.2, rel=0.3)


@pytest.mark.parametrize("prior", [None, lambda number, worker, partition: 1.0])
def test_what_stands_out_is_learned(prior):
    estimates, costs = learned(prior, 1.0)
    for number, cost in enumerate(costs):
        assert estimates.expected(f"t{number}", number, "w0", 0) == pytest.approx(cost, rel=0.4)


def test_surprises_of_long_ago_are_forgotten():
    estimates = Estimates([1], prior=lambda number, worker, partition: 1.0)
    for seconds in [9.0] * 4 + [1.0] * 1000:
        estimates.measured("t1", 0, "w1", 0, seconds)
    assert estimates.noise < 0.05


def test_a_trial_that_ended_says_nothing_of_others():
    estimates = Estimates([1])
    estimates.measured("t1", 0, "w1", 0, 5.0)
    assert estimates.expected("t2", 1, "w1", 0) == pytest.approx(5.0)
    estimates.forget("t1")
    estimates.forget("t1")
    assert estimates.expected("t2", 1, "w1", 0) == 1.0
