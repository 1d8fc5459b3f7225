"""Expected unit times, against sums done by hand and against the statistics of all measurements at once."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from hopfleet.scheduler.estimates import Estimates, _Effects


def flat(number: int, worker: str, partition: int) -> float:
    return 1.0


def logs(estimates: Estimates, *trials: str) -> list[float]:
    return [math.log(estimates.expected(name, 0, "w1", 0)) for name in trials]


def test_nothing_is_known_at_first():
    estimates = Estimates([1, 3], lambda number, worker, partition: 2.0 + partition)
    assert (estimates.noise, estimates.judged, estimates.slowness("w1")) == (0.0, 0, 1.0)
    assert [estimates.expected("t1", 0, "w1", partition) for partition in (0, 1)] == [2.0, 3.0]
    assert (estimates.beforehand(0, "w1"), Estimates([1]).beforehand(0, "w1")) == (2.5, None)


def test_without_a_prior_units_are_as_long_as_their_partitions():
    estimates = Estimates([10, 30])
    assert [estimates.size(partition) for partition in (0, 1)] == [0.5, 1.5]
    assert [estimates.expected("t1", 0, "w1", partition) for partition in (0, 1)] == [0.5, 1.5]


def test_a_unit_without_a_duration_took_a_microsecond():
    estimates = Estimates([1])
    estimates.measured("t1", 0, "w1", 0, 0.0)
    assert estimates.expected("t1", 0, "w1", 0) == pytest.approx(1e-6)


def test_the_first_units_of_trials_differ_by_the_trials():
    """Nothing tells of noise yet: a trial's unit is its cost, and another trial costs the (geometric) mean."""
    estimates = Estimates([1])
    estimates.measured("t1", 0, "w1", 0, 2.0)
    estimates.measured("t2", 0, "w1", 0, 8.0)
    assert (estimates.judged, estimates.noise) == (0, 0.0)
    found = [estimates.expected(name, 0, "w1", 0) for name in ("t1", "t2", "t3")]
    assert found == pytest.approx([2.0, 8.0, 4.0])


def test_trials_that_cost_the_same_have_no_effects_of_their_own():
    estimates = Estimates([1])
    for name in ("t1", "t2"):
        estimates.measured(name, 0, "w1", 0, 2.0)
    assert estimates.expected("t1", 0, "w1", 0) == pytest.approx(2.0)


def test_with_a_prior_the_first_units_tell_of_noise():
    """Errors 1, then 2 (from the 1 that was expected by then): their variance explains all that the trials differ."""
    estimates = Estimates([1], flat)
    estimates.measured("t1", 0, "w1", 0, math.e)
    assert (estimates.judged, estimates.noise) == (1, pytest.approx(1.0))
    estimates.measured("t2", 0, "w1", 0, math.exp(3))
    assert (estimates.judged, estimates.noise) == (2, pytest.approx(math.sqrt(2.5)))
    assert logs(estimates, "t1", "t2") == pytest.approx([2.0, 2.0])


def test_an_effect_counts_as_far_as_it_stands_out():
    """Ten errors, eight of them 0, one 1, one -2: variance 0.5. Of the variance of the means, 2, 1.5 is left."""
    estimates = Estimates([1], flat)
    for number in range(8):
        estimates.measured(f"a{number}", 0, "w1", 0, 1.0)
        estimates.forget(f"a{number}")
    estimates.measured("t1", 0, "w1", 0, math.e)
    estimates.measured("t2", 0, "w1", 0, 1 / math.e)
    assert estimates.noise == pytest.approx(math.sqrt(0.5))
    assert logs(estimates, "t1", "t2", "t3") == pytest.approx([0.75, -0.75, 0.0])


def test_a_slow_worker_is_told_from_a_costly_trial():
    estimates = Estimates([1])
    for _ in range(20):
        for name, cost in (("t1", 1.0), ("t2", 3.0)):
            for worker, slow in (("w1", 1.0), ("w2", 2.0)):
                estimates.measured(name, 0, worker, 0, cost * slow)
    assert estimates.slowness("w2") / estimates.slowness("w1") == pytest.approx(2.0, rel=0.02)
    for _ in range(20):
        estimates.measured("t3", 0, "w2", 0, 8.0)
    assert estimates.expected("t3", 0, "w1", 0) == pytest.approx(4.0, rel=0.05)
    assert estimates.expected("t3", 0, "w2", 0) == pytest.approx(8.0, rel=0.05)


def test_times_are_compared_with_the_prior():
    estimates = Estimates([1, 1], lambda number, worker, partition: 4.0)
    estimates.measured("t1", 0, "w1", 0, 8.0)
    assert estimates.noise == pytest.approx(math.log(2.0))
    assert estimates.expected("t1", 0, "w1", 1) == pytest.approx(8.0)


def test_noise_is_what_neither_trial_nor_worker_explains():
    """Trials of 1 and 3 seconds, a worker that takes twice as long, and nothing else."""
    estimates = Estimates([1])
    for _ in range(100):
        for name, cost in (("t1", 1.0), ("t2", 3.0)):
            for worker, slow in (("w1", 1.0), ("w2", 2.0)):
                estimates.measured(name, 0, worker, 0, cost * slow)
    assert estimates.noise < 0.1
    assert estimates.judged == 128


def test_the_noise_is_that_of_recent_units():
    """Error 2 in the first unit of 128, and as often as it took since then, some 1/128 of it is forgotten."""
    estimates = Estimates([1], flat)
    squares = 0.0
    for number in range(130):
        estimates.measured(f"t{number}", 0, "w1", 0, math.exp(2.0 if number == 0 else 0.0))
        estimates.forget(f"t{number}")
        squares = (squares * 127 / 128 if number >= 128 else squares) + (4.0 if number == 0 else 0.0)
        assert estimates.judged == min(number + 1, 128)
    assert estimates.noise == pytest.approx(math.sqrt(squares / 128))


@pytest.mark.parametrize("seed", range(4))
def test_effects_learned_one_by_one_are_those_of_all_values_at_once(seed):
    rng, effects, values = random.Random(seed), _Effects(), dict[str, list[float]]()
    for number in range(12):
        name = f"n{number % 5 if number < 8 else 0}"
        values.setdefault(name, []).append(rng.gauss(number % 5, 0.7))
        effects.learn(name, values[name][-1])
    freedom = sum(len(each) - 1 for each in values.values())
    squares = [(value - statistics.fmean(each)) ** 2 for each in values.values() for value in each]
    assert (effects.within, effects.repeated) == (pytest.approx(sum(squares)), freedom)
    effects.forget("n3")
    effects.forget("unknown")
    del values["n3"]
    means = {name: statistics.fmean(each) for name, each in values.items()}
    middle = statistics.fmean(means.values())
    for variance in (0.0, 0.5, 2.0, 9.0):
        chance = variance * statistics.fmean(1 / len(each) for each in values.values())
        between = max(0.0, statistics.variance(means.values()) - chance)
        for name, each in values.items():
            weight = between * len(each) / (between * len(each) + variance)
            assert effects.of(name, variance) == pytest.approx(middle + weight * (means[name] - middle))
        assert effects.of("unknown", variance) == pytest.approx(middle)


def test_a_team_is_as_much_faster_as_it_is_expected_to_be() -> None:
    estimates = Estimates([1])
    for worker, pace in (("one", 1.0), ("four", 4.0)):
        estimates.joins(worker, pace)
    assert estimates.expected("a", 1, "one", 0) == 4 * estimates.expected("a", 1, "four", 0)
    estimates.measured("a", 1, "one", 0, 8.0)
    assert estimates.expected("a", 1, "four", 0) == pytest.approx(2.0)
    assert estimates.table([("a", 1)], ["one", "four"]) == [pytest.approx([8.0, 2.0])]
    estimates.joins("four", 2.0)  # another team of that name
    assert estimates.table([("a", 1)], ["one", "four"]) == [pytest.approx([8.0, 4.0])]


def test_what_was_expected_of_a_worker_is_not_expected_of_another_one_of_that_name() -> None:
    estimates = Estimates([1], lambda number, worker, partition: 8.0)
    for _ in range(2):
        estimates.joins("team", 1.0)
        assert estimates.table([("a", 1)], ["team"]) == [[8.0]]
    estimates.joins("team", 4.0)
    assert estimates.table([("a", 1)], ["team"]) == [[2.0]]


def test_a_worker_as_fast_as_one_device_takes_as_long_as_its_rows() -> None:
    estimates = Estimates([1, 3])
    estimates.joins("one", 1.0)
    assert [estimates.expected("a", 1, "one", partition) for partition in (0, 1)] == [0.5, 1.5]


def test_a_forgotten_trial_costs_what_is_usual() -> None:
    estimates = Estimates([1])
    for name, seconds in (("a", 9.0), ("b", 1.0), ("c", 1.0)):
        estimates.measured(name, 1, "w1", 0, seconds)
    estimates.forget("a")
    assert estimates.table([("a", 1)], ["w1"]) == [[pytest.approx(1.0)]]


# ---------------------------------------------------------------------------------------------- classes


def paired(slow: float, measured: float = 1.0, noise: float = 0.0, *, prior: bool = True) -> Estimates:
    """Return estimates of w1 and w2, which is expected to be ``slow``, and was measured to be slower than that."""
    estimates = Estimates([1], (lambda number, worker, partition: slow if worker == "w2" else 1.0) if prior else None)
    estimates.speeds._slowness = {"w2": math.log(measured)}
    estimates.speeds._errors.append(noise)
    return estimates


@pytest.mark.parametrize(
    ("estimates", "number"),
    [
        (paired(1.03), 2),
        (paired(0.97), 2),  # the first one is the slower
        (paired(1.02, 1.03), 1),  # exactly 2% are slight, and 5% of chance with them
        (paired(1.03, 1.03), 2),
        (paired(1.0, 1.05, prior=False), 1),
        (paired(1.0, 1.15, prior=False), 2),
        (paired(1.0, 1.15, 0.05, prior=False), 1),  # up to e^0.2
        (paired(1.0, 1.25, 0.05, prior=False), 2),
    ],
)
def test_slight_differences_tell_workers_apart_if_they_were_expected(estimates: Estimates, number: int) -> None:
    assert len(estimates.classes(["w1", "w2"], [1])) == number


def test_a_worker_alone_is_a_class() -> None:
    assert paired(1.0).classes(["w1"], [1]) == (("w1",),)
    assert paired(1.0).classes([], [1]) == ((),)
