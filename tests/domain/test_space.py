"""The search space: what it yields, what it refuses, and that it always yields the same."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.domain import space as spaces
from hopfleet.domain.space import (
    choice,
    configure,
    grid_search,
    lograndint,
    loguniform,
    normal,
    qloguniform,
    quniform,
    randint,
    sample_from,
    uniform,
)
from hopfleet.errors import SpaceError

quick = settings(deadline=None, max_examples=60)

seeds = st.integers(0, 2**32 - 1)
numbers = st.integers(0, 10_000)
floats = st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: round(value, 6))
positives = st.floats(1e-8, 1e6)
steps = st.sampled_from([1e-4, 0.001, 0.1, 0.25, 1, 3, 50])


def sample(dimension: spaces.Dimension, seed: int):
    return dimension.sample(random.Random(seed))


def two(values):
    """Two different values in order."""
    return st.tuples(values, values).filter(lambda pair: pair[0] != pair[1]).map(sorted)


# ------------------------------------------------------------------------------------------- dimensions


@quick
@given(two(floats), seeds)
def test_uniform_is_within_its_bounds(bounds, seed):
    value = sample(uniform(*bounds), seed)
    assert isinstance(value, float)
    assert bounds[0] <= value <= bounds[1]


@quick
@given(two(positives), seeds)
def test_loguniform_is_within_its_bounds(bounds, seed):
    assert bounds[0] <= sample(loguniform(*bounds), seed) <= bounds[1]


@quick
@given(two(positives), steps, seeds, st.booleans())
def test_quantized_are_multiples_or_a_bound(bounds, q, seed, log):
    low, high = bounds
    value = sample((qloguniform if log else quniform)(low, high, q), seed)
    assert low <= value <= high
    assert value in bounds or math.isclose(value, round(value / q) * q, rel_tol=1e-9, abs_tol=1e-12)


def test_quantized_has_no_floating_point_noise():
    values = {sample(quniform(0, 1, 0.1), seed) for seed in range(300)}
    assert values == {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0}


@quick
@given(two(st.integers(-(10**9), 10**9)), seeds)
def test_randint_excludes_its_upper_bound(bounds, seed):
    value = sample(randint(*bounds), seed)
    assert isinstance(value, int)
    assert bounds[0] <= value < bounds[1]


@quick
@given(two(st.integers(1, 10**9)), seeds)
def test_lograndint_excludes_its_upper_bound(bounds, seed):
    value = sample(lograndint(*bounds), seed)
    assert isinstance(value, int)
    assert bounds[0] <= value < bounds[1]


@pytest.mark.parametrize("dimension", [randint(3, 6), lograndint(3, 6), choice([3, 4, 5])])
def test_every_value_comes_up(dimension):
    assert {sample(dimension, seed) for seed in range(200)} == {3, 4, 5}


def test_logarithmic_draws_favour_small_values():
    assert sum(sample(loguniform(1e-4, 1), seed) < 1e-2 for seed in range(1000)) in range(430, 570)
    assert sum(sample(lograndint(1, 10_000), seed) < 100 for seed in range(1000)) in range(430, 570)


def test_normal_has_its_mean_and_spread():
    values = np.array([sample(normal(3, 2), seed) for seed in range(2000)])
    assert abs(values.mean() - 3) < 0.2
    assert abs(values.std() - 2) < 0.2


def test_derived_cannot_be_sampled_by_itself():
    with pytest.raises(SpaceError, match="cannot be sampled by itself"):
        sample(sample_from(len), 0)


WRONG = [
    (lambda: uniform(1, 1), r"uniform\(1, 1\): both bounds must be finite numbers, the first below the second"),
    (lambda: uniform("a", 2), r"uniform\('a', 2\): both bounds must be finite numbers"),
    (lambda: uniform(0, math.inf), r"uniform\(0, inf\): both bounds must be finite numbers"),
    (lambda: uniform(False, True), r"uniform\(False, True\): both bounds must be finite numbers"),
    (lambda: loguniform(0, 1), r"loguniform\(0, 1\): the lower bound must be above 0"),
    (lambda: quniform(0, 1, 0), r"quniform\(..., q=0\): q must be a number above 0"),
    (lambda: quniform(0, 1, None), r"quniform\(..., q=None\): q must be a number above 0"),
    (lambda: qloguniform(0, 1, 0.1), r"qloguniform\(0, 1\): the lower bound must be above 0"),
    (lambda: qloguniform(1, 2, -1), r"qloguniform\(..., q=-1\): q must be a number above 0"),
    (lambda: randint(0.5, 2), r"randint\(0.5, 2\): both bounds must be integers, the first below the second"),
    (lambda: randint(2, 2), r"randint\(2, 2\): both bounds must be integers"),
    (lambda: lograndint(0, 5), r"lograndint\(0, 5\): the lower bound must be above 0"),
    (lambda: lograndint(1, 5.5), r"lograndint\(1, 5.5\): both bounds must be integers"),
    (lambda: normal(0, 0), r"normal\(0, 0\): mean must be a number and sd a number above 0"),
    (lambda: normal(None, 1), r"normal\(None, 1\): mean must be a number"),
    (lambda: choice([]), r"choice\(\[\]\): needs at least one option"),
    (lambda: choice("abc"), r"choice\('abc'\): must be a list of options"),
    (lambda: grid_search(3), r"grid_search\(3\): must be a list of options"),
    (lambda: choice([len]), r"choice=<built-in function len>: .*use a name here and look the object up in build"),
    (lambda: sample_from(3), r"sample_from\(3\): must be a function of the configuration"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_work_says_why(make, message):
    with pytest.raises(SpaceError, match=message):
        make()


# ------------------------------------------------------------------------------------------- whole spaces


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ([1], r"space=\[1\]: must be a dict of names"),
        ({}, "is empty; name at least one hyper-parameter"),
        ({"": 1}, "space key '': must be a non-empty string"),
        ({"a": {3: 1}}, "space key 3: must be a non-empty string"),
        ({"a": {"b": object}}, r"a.b=<class 'object'>: a configuration holds .*; use a name here"),
        ({"a": (choice([1]),)}, r"a=choice.*: a configuration holds"),
        ({"a.b": 1, "a": {"b": 2}}, "space key 'a.b': occurs twice, nested and with a dot; rename one"),
    ],
)
def test_wrong_spaces(space, message):
    with pytest.raises(SpaceError, match=message):
        spaces.check(space)


def test_right_space():
    spaces.check({"lr": uniform(0, 1), "net": {"width": choice([1, 2]), "act": None, "empty": {}}, "names": ("a", 2)})


SPACE = {
    "lr": loguniform(1e-4, 1e-1),
    "net": {"width": randint(8, 65), "drop": quniform(0, 1, 0.25), "head": {"bias": choice([True, False])}},
    "noise": normal(0, 1),
    "fixed": (1, "two", {"three": None}),
    "empty": {},
}


@quick
@given(seeds, numbers)
def test_a_configuration_depends_on_seed_and_number_alone(seed, number):
    first = configure(SPACE, seed=seed, number=number)
    assert first == configure(SPACE, seed=seed, number=number)
    assert list(first) == list(SPACE)
    assert first["fixed"] == [1, "two", {"three": None}]
    assert first["empty"] == {}


def test_known_draw():
    """Published configurations must never change: this one is pinned."""
    space = {"lr": loguniform(1e-4, 1e-1), "net": {"width": randint(8, 65)}, "opt": choice(["sgd", "adam"])}
    assert configure(space, seed=7, number=3) == {"lr": 0.00027783114797186613, "net": {"width": 28}, "opt": "sgd"}


def test_numbers_and_seeds_matter():
    draws = [configure({"x": uniform(0, 1)}, seed=seed, number=number)["x"] for seed in (0, 1) for number in range(50)]
    assert len(set(draws)) == 100


@quick
@given(seeds, numbers, st.sets(st.sampled_from(["lr", "noise", "fixed", "empty"])), st.booleans())
def test_dimensions_are_independent(seed, number, removed, reverse):
    """Adding, removing and reordering dimensions leaves the values of all others as they were."""
    whole = spaces.flatten(configure(SPACE, seed=seed, number=number))
    names = [name for name in SPACE if name not in removed]
    part = {name: SPACE[name] for name in (reversed(names) if reverse else names)} | {"more": uniform(0, 1)}
    drawn = spaces.flatten(configure(part, seed=seed, number=number))
    del drawn["more"]
    assert drawn.items() <= whole.items()


def test_equal_dimensions_at_other_paths_differ():
    config = configure({"a": uniform(0, 1), "b": uniform(0, 1), "c": {"a": uniform(0, 1)}}, seed=0, number=0)
    assert len({config["a"], config["b"], config["c"]["a"]}) == 3


@quick
@given(seeds, numbers)
def test_configurations_are_plain_json(seed, number):
    config = configure(SPACE | {"derived": sample_from(lambda c: (c["lr"], np.int64(3)))}, seed=seed, number=number)
    assert json.loads(json.dumps(config)) == config


def test_sample_from_sees_the_rest_and_earlier_ones():
    space = {
        "double": sample_from(lambda config: config["net"]["width"] * 2),
        "net": {"width": choice([4]), "quad": sample_from(lambda config: config["double"] * 2)},
        "early": sample_from(lambda config: config["late"]),
        "late": sample_from(lambda config: 1),
    }
    config = configure(space, seed=0, number=0)
    assert config == {"double": 8, "net": {"width": 4, "quad": 16}, "early": None, "late": 1}


def test_sample_from_must_yield_plain_values():
    with pytest.raises(SpaceError, match=r"net.f=<built-in function len>: a configuration holds"):
        configure({"net": {"f": sample_from(lambda config: len)}}, seed=0, number=0)


def test_given_values_win():
    fixed = {"a.b": 3, "c": 4}
    config = configure({"a": {"b": uniform(0, 1)}, "c": sample_from(len), "d": 5}, seed=0, number=0, fixed=fixed)
    assert config == {"a": {"b": 3}, "c": 4, "d": 5}


def test_grid_crosses_all_choices_the_last_fastest():
    space = {"a": choice([1, 2]), "b": {"c": grid_search(["x", "y"])}, "d": uniform(0, 1), "e": 3}
    points = [(1, "x"), (1, "y"), (2, "x"), (2, "y")]
    assert spaces.grid(space) == [{"a": a, "b.c": c} for a, c in points]
    assert spaces.exhaustive_points(space) == [{"b.c": "x"}, {"b.c": "y"}]
    assert spaces.grid({"e": 3}) == [{}]


@quick
@given(st.lists(st.lists(st.integers(-(2**63), 2**63), min_size=1, max_size=4), min_size=1, max_size=4))
def test_grid_has_every_combination_once(options):
    space = {f"d{index}": choice(values) for index, values in enumerate(options)}
    points = spaces.grid(space)
    assert len(points) == math.prod(map(len, options))
    assert all(point[f"d{index}"] in values for point in points for index, values in enumerate(options))


def test_dimensions_by_path():
    assert spaces.dimensions({"a": 1, "b": {"c": choice([1])}}) == {"b.c": choice([1])}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        ((1, (2, [3])), [1, [2, [3]]]),
        ({1: (2,)}, {"1": [2]}),
        (None, None),
    ],
)
def test_plain_values(value, expected):
    result = spaces.plain(value)
    assert result == expected
    assert type(result) is type(expected)


def test_plain_names_what_it_was_given():
    with pytest.raises(SpaceError, match=r"^value=\{1\}: "):
        spaces.plain({1})
    with pytest.raises(SpaceError, match=r"^lr"):
        spaces.plain(10**3000, ["lr"])


def test_flatten():
    assert spaces.flatten({"a": 1, "b": {"c": {"d": 2}, "e": {}}}) == {"a": 1, "b.c.d": 2, "b.e": {}}


def test_describe_can_be_compared():
    described = spaces.describe({"a": uniform(0, 1), "b": {"c": (1, 2)}, "d": sample_from(len), "e": {}})
    assert described == {
        "a": "uniform(0, 1)",
        "b": {"c": [1, 2]},
        "d": "sample_from(len)",
        "e": {},
    }
    assert json.loads(json.dumps(described)) == described
    assert spaces.describe({"x": choice([np.float64(1.5)])}) == spaces.describe({"x": choice([1.5])})


def test_a_sample_from_that_raises_is_named():
    with pytest.raises(SpaceError, match=r"a\.b: sample_from raised ZeroDivisionError: division by zero for"):
        configure({"a": {"b": sample_from(lambda config: 1 / 0)}}, seed=0, number=0)


@given(seeds, numbers)
def test_values_make_the_configuration_again(seed, number):
    space = {
        "a": {"b": uniform(0, 1), "c": choice([{"name": "x"}, {"name": "y"}])},
        "d.e": randint(0, 9),
        "f": sample_from(lambda config: config["d.e"] + 1),
        "g": 5,
    }
    config = configure(space, seed=seed, number=number)
    values = spaces.values(space, config)
    assert set(values) == {"a.b", "a.c", "d.e"}
    assert configure(space, seed=seed + 1, number=0, fixed=values) == config


@quick
@given(two(floats), steps, st.floats(-1e7, 1e7))
def test_nearest_is_something_that_the_dimension_may_yield(bounds, step, value):
    dimension = quniform(*bounds, step)
    nearest = dimension.nearest(value)
    assert bounds[0] <= nearest <= bounds[1]
    assert nearest in bounds or nearest == round(round(value / step) * step, 12)
    whole = randint(2, 7)
    assert whole.nearest(value) == min(max(round(value), 2), 6)


DIMENSIONS = [
    choice([1, "two", None, [3, 4.5], {"a": True}]),
    grid_search(["adam", "sgd"]),
    uniform(0, 1.5),
    loguniform(1e-5, 1e-2),
    quniform(0.0, 0.5, 0.1),
    qloguniform(0.1, 10.0, 0.1),
    randint(-3, 4),
    lograndint(1, 1000),
    normal(0.0, 1.0),
]


@pytest.mark.parametrize("dimension", DIMENSIONS, ids=repr)
def test_a_dimension_reads_as_it_is_written(dimension):
    assert spaces.parse({"x": repr(dimension), "y": {"z": repr(dimension)}}) == {"x": dimension, "y": {"z": dimension}}


def test_a_function_cannot_be_read():
    with pytest.raises(SpaceError, match="a function cannot be written as text"):
        spaces.parse({"x": repr(sample_from(len))})


def test_a_space_takes_other_dimensions_where_it_has_some():
    space = {"lr": uniform(0, 1), "net": {"width": 3, "depth": 2}, "a.b": 1}
    wider = spaces.widened(space, {"lr": uniform(0, 2), "net.width": choice([3, 4]), "net": {"depth": 5}, "a.b": 2})
    assert wider == {"lr": uniform(0, 2), "net": {"width": choice([3, 4]), "depth": 5}, "a.b": 2}
    assert space == {"lr": uniform(0, 1), "net": {"width": 3, "depth": 2}, "a.b": 1}
    with pytest.raises(SpaceError, match=r"momentum=0.9: the space has no 'momentum'; it has lr, net.width"):
        spaces.widened(space, {"momentum": 0.9})


def test_a_configuration_takes_other_values_where_it_has_some():
    config = {"lr": 0.1, "net": {"width": 3}, "a.b": 1}
    changed = spaces.changed(config, {"lr": np.float64(0.5), "net.width": (4, 5), "a.b": None})
    assert changed == {"lr": 0.5, "net": {"width": [4, 5]}, "a.b": None}
    assert config == {"lr": 0.1, "net": {"width": 3}, "a.b": 1}
    with pytest.raises(SpaceError, match=r"net=4: the configuration has no 'net'; it has lr, net.width, a.b"):
        spaces.changed(config, {"net": 4})


def test_text_that_is_no_dimension():
    assert spaces.parse({"a": "relu(x)", "b": "plain", "c": 3}) == {"a": "relu(x)", "b": "plain", "c": 3}
    for text in ("uniform(low, 1)", "uniform()"):
        with pytest.raises(SpaceError, match=r"x=uniform.*must be plain numbers and lists"):
            spaces.parse({"x": text})
    with pytest.raises(SpaceError, match=r"x=uniform\(1, 2, 3, 4\): .*takes 2 positional"):
        spaces.parse({"x": "uniform(1, 2, 3, 4)"})
