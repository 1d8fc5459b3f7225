"""Spaces that are functions, points of a space, and configurations that are found again in it."""

from __future__ import annotations

import pytest

from hopfleet.domain import space as spaces
from hopfleet.domain.space import Choice, Derived, Dimension, Float, Integer, Normal
from hopfleet.errors import SpaceError


def net(trial):
    depth = trial.suggest_int("depth", 1, 3)
    widths = [trial.suggest_categorical(f"width{layer}", [8, 16]) for layer in range(depth)]
    return {"lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True), "net": {"widths": widths}}


def flat(trial):
    if trial.suggest_categorical("kind", ["sgd", "adam"]) == "sgd":
        trial.suggest_float("momentum", 0.05, 0.5, step=0.1)
    trial.suggest_int("even", 2, 9, step=2)
    trial.suggest_int("size", 1, 64, log=True)
    assert trial.suggest_int("size", 1, 64, log=True) == trial.params["size"]


def draws(function, count=60, seed=0):
    return [spaces.configure(function, seed=seed, number=number) for number in range(count)]


def test_a_function_makes_configurations():
    configs = draws(net)
    assert configs == draws(net)
    assert configs != draws(net, seed=1)
    assert {len(config["net"]["widths"]) for config in configs} == {1, 2, 3}
    assert all(1e-4 <= config["lr"] <= 0.1 for config in configs)


def test_what_it_asked_for_is_the_configuration_where_it_returns_nothing():
    configs = draws(flat)
    assert {"momentum" in config for config in configs} == {True, False}
    assert all(("momentum" in config) == (config["kind"] == "sgd") for config in configs)
    assert {config["momentum"] for config in configs if "momentum" in config} <= {0.05, 0.15, 0.25, 0.35, 0.45}
    assert {config["even"] for config in configs} == {2, 4, 6, 8}
    assert {config["size"] for config in configs} <= set(range(1, 65))


def test_fixed_values_are_not_drawn():
    assert spaces.configure(net, seed=0, number=0, fixed={"depth": 1, "width0": 8, "lr": 0.1}) == {
        "lr": 0.1,
        "net": {"widths": [8]},
    }


def test_what_is_known_of_a_function():
    spaces.check(net)
    assert spaces.dimensions(net) == {}
    assert spaces.exhaustive_points(net) == [{}]
    assert spaces.describe(net) == "function net"


class Callable:
    def __call__(self, trial):
        return {}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda trial: [1], r"<lambda>: returned \[1\]; must return a dict"),
        (Callable(), "Callable: returned {}; must return a dict"),
        (lambda trial: 1 / 0, "raised ZeroDivisionError: division by zero after choosing {}"),
        (lambda trial: {"a": object()}, r"a=<builtins\.object>: a configuration holds"),
        (lambda trial: trial.suggest_float("a", 1, 0), r"suggest_float\[a\]\(1, 0\): both bounds"),
        (lambda trial: trial.suggest_float("a", 0, 1, log=True), "lower bound must be above 0"),
        (lambda trial: trial.suggest_float("a", 1, 2, log=True, step=1), "use either step or log"),
        (lambda trial: trial.suggest_float("a", 1, 2, step=0), "q must be a number above 0"),
        (lambda trial: trial.suggest_int("a", 1, 2, step=0), "step=0.: must be an integer of at least 1"),
        (lambda trial: trial.suggest_int("a", 1, 2, step=2, log=True), "and exactly 1 with log=True"),
        (lambda trial: trial.suggest_int("a", 1, 2.5), "both bounds must be integers"),
        (lambda trial: trial.suggest_int("a", 0, 2, log=True), "lower bound must be above 0"),
        (lambda trial: trial.suggest_categorical("a", []), r"suggest_categorical\[a\].*at least one"),
    ],
)
def test_functions_that_cannot_work(function, words):
    with pytest.raises(SpaceError, match=words):
        spaces.configure(function, seed=0, number=0)


@pytest.mark.parametrize(
    ("dimension", "inside", "outside"),
    [
        (Choice((1, "a", [2, 3], {"b": 1})), [1, 1.0, "a", [2, 3], {"b": 1}], [True, "b", [2]]),
        (Float(0.5, 1.0), [0.5, 1, 0.7], [0.4, 1.1, "1", True, float("nan")]),
        (Float(0.0, 1.0, step=0.1), [0.3, 0, 1.0], [0.35, 1.1]),
        (Integer(1, 5), [1, 4], [0, 5, 2.0, True]),
        (Integer(1, 6, step=2), [1, 3, 5], [2, 4, 6]),
        (Normal(0, 1), [5.0, -3], ["x", float("inf")]),
    ],
)
def test_what_a_dimension_contains(dimension, inside, outside):
    assert all(dimension.contains(value) for value in inside)
    assert not any(dimension.contains(value) for value in outside)


def test_some_contain_nothing():
    for dimension in (Dimension(), Derived(len)):
        with pytest.raises(SpaceError, match="contains nothing by itself"):
            dimension.contains(1)


SPACE = {
    "lr": spaces.loguniform(0.01, 1),
    "net": {"width": spaces.choice([8, 16]), "kind": "cnn"},
    "option": spaces.choice([{"a": 1}, {"a": 2}]),
    "twice": spaces.sample_from(lambda config: 2 * config["net"]["width"]),
}


def test_configurations_are_found_again():
    config = spaces.configure(SPACE, seed=0, number=0)
    found = spaces.find(SPACE, config)
    assert {name: value for name, (_, value) in found.items()} == {
        "lr": config["lr"],
        "net.width": config["net"]["width"],
        "option": config["option"],
    }
    assert found["lr"][0] == SPACE["lr"]


@pytest.mark.parametrize(
    "changes",
    [
        {"lr": 2.0},
        {"lr": None},
        {"net": {"width": 8, "kind": "mlp"}},
        {"net": {"width": 8}},
        {"net": 8},
        {"twice": 5},
        {"more": 1},
    ],
)
def test_others_are_not(changes):
    config = {"lr": 0.1, "net": {"width": 8, "kind": "cnn"}, "option": {"a": 1}, "twice": 16}
    assert spaces.find(SPACE, config) is not None
    assert spaces.find(SPACE, config | changes) is None


def test_configurations_of_functions_are_found_where_names_are_kept():
    config = draws(flat, 1)[0]
    assert {name: value for name, (_, value) in spaces.find(flat, config).items()} == config
    assert spaces.find(flat, config | {"size": 0}) is None
    assert spaces.find(flat, config | {"more": 0}) is None
    assert spaces.find(net, draws(net, 1)[0]) is None
    assert spaces.find(lambda trial: 1 / 0, {"a": 1}) is None


def test_points_are_completed():
    full = {"lr": 0.5, "net": {"width": 8, "kind": "cnn"}, "option": {"a": 2}, "twice": 16}
    assert spaces.complete(SPACE, full, seed=0, number=0) == full
    assert spaces.complete(SPACE, {"lr": 0.5, "net.width": 8, "option": {"a": 2}}, seed=0, number=0) == full
    partial = [spaces.complete(SPACE, {"net": {"width": 16}}, seed=0, number=number) for number in range(5)]
    assert all(config["net"] == {"width": 16, "kind": "cnn"} and config["twice"] == 32 for config in partial)
    assert len({config["lr"] for config in partial}) == 5
    assert partial[0] == spaces.complete(SPACE, {"net": {"width": 16}}, seed=0, number=0)
    assert spaces.complete(flat, {"kind": "adam", "even": 4, "size": 7}, seed=0, number=0) == {
        "kind": "adam",
        "even": 4,
        "size": 7,
    }


@pytest.mark.parametrize(
    ("space", "point", "words"),
    [
        (SPACE, {"rate": 1}, "the space has no rate; it has lr, net.width, net.kind, option, twice"),
        (SPACE, {"net": {"depth": 1}}, "the space has no net.depth"),
        (SPACE, {"lr": 2.0}, "point lr=2.0: is not in loguniform"),
        (SPACE, {"net": {"kind": "mlp"}}, "point net.kind='mlp': the space sets it to 'cnn'; leave it out"),
        (SPACE, {"twice": 1}, "point twice=1: the space sets it to"),
        (SPACE, 3, "point 3: must be a dict"),
        (flat, {"kind": "adam", "momentum": 0.1}, "the space has no momentum; it has kind, even, size"),
        (flat, {"even": 3}, "point even=3: is not in"),
    ],
)
def test_points_that_are_nowhere(space, point, words):
    with pytest.raises(SpaceError, match=words):
        spaces.complete(space, point, seed=0, number=0)


def test_widened():
    assert spaces.widened(net, {}) is net
    assert spaces.widened({"a": 1}, {"a": 2}) == {"a": 2}
    with pytest.raises(SpaceError, match="a space that is a function has no dimensions to change"):
        spaces.widened(net, {"a": 1})
