"""Values of other libraries in a space: what users are told to write instead."""

from __future__ import annotations

import inspect

import numpy as np
import optuna
import pytest

from hopfleet.domain import space as spaces
from hopfleet.domain.space.foreign import ray_grid, replacement
from hopfleet.errors import SpaceError
from hopfleet.phrases import listed, nearest, shown

distributions = optuna.distributions


def of_ray(kind: str, sampler: str = "_Uniform", *, step: float | None = None, **fields: object) -> object:
    """A stand-in for a dimension of Ray, whose import takes seconds."""
    drawn = type(sampler, (), {key: fields.pop(key) for key in ("mean", "sd") if key in fields})()
    if step is not None:
        drawn = type("Quantized", (), {"sampler": drawn, "q": step})()
    return type(kind, (), {"__module__": "ray.tune.search.sample", "sampler": drawn, **fields})()


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ([0.1, 0.01], "hop.choice([0.1, 0.01])"),
        (range(2, 5), "hop.choice(range(2, 5))"),
        ({3, 1}, "hop.choice([1, 3])"),
        (np.array([1, 2]), "hop.choice([1, 2])"),
        (spaces.loguniform, "hop.loguniform(...)"),
        (of_ray("Float", lower=0, upper=1), "hop.uniform(0, 1)"),
        (of_ray("Float", "_LogUniform", lower=1e-4, upper=0.1), "hop.loguniform(0.0001, 0.1)"),
        (of_ray("Float", lower=0, upper=1, step=0.1), "hop.quniform(0, 1, 0.1)"),
        (of_ray("Float", "_Normal", lower=0, upper=1, mean=1, sd=2), "hop.normal(1, 2)"),
        (of_ray("Integer", lower=1, upper=5), "hop.randint(1, 5)"),
        (of_ray("Integer", "_LogUniform", lower=1, upper=5), "hop.lograndint(1, 5)"),
        (of_ray("Integer", lower=2, upper=10, step=2), "hop.choice(range(2, 11, 2))"),
        (of_ray("Categorical", categories=["a", "b"]), "hop.choice(['a', 'b'])"),
        (of_ray("Function", func=len), "hop.sample_from(lambda config: ...)"),
        (of_ray("Domain"), ""),
        (distributions.FloatDistribution(1e-4, 0.1, log=True), "hop.loguniform(0.0001, 0.1)"),
        (distributions.FloatDistribution(0, 1, step=0.25), "hop.quniform(0.0, 1.0, 0.25)"),
        (distributions.IntDistribution(1, 4), "hop.randint(1, 5)"),
        (distributions.IntDistribution(1, 9, step=2), "hop.choice(range(1, 10, 2))"),
        (distributions.CategoricalDistribution(["a", "b"]), "hop.choice(['a', 'b'])"),
        ((0.9, 0.999), ""),
        (np.float32(0.5), ""),
        ("relu", ""),
        (len, ""),
    ],
)
def test_a_dimension_of_another_library_has_a_replacement(value: object, meant: str) -> None:
    assert replacement(value) == meant


def test_a_distribution_of_scipy_has_a_replacement() -> None:
    import scipy.stats  # which takes seconds

    assert replacement(scipy.stats.uniform(1, 3)) == "hop.uniform(1.0, 4.0)"
    assert replacement(scipy.stats.loguniform(1e-4, 0.1)) == "hop.loguniform(0.0001, 0.1)"
    assert replacement(scipy.stats.randint(1, 5)) == "hop.randint(1, 5)"
    assert replacement(scipy.stats.norm(1, 2)) == "hop.normal(1.0, 2.0)"
    assert replacement(scipy.stats.expon()) == ""
    assert replacement(scipy.stats.uniform) == ""


@pytest.mark.slow
def test_stand_ins_are_like_ray() -> None:
    from ray import tune

    assert replacement(tune.uniform(0, 1)) == "hop.uniform(0, 1)"
    assert replacement(tune.loguniform(1e-4, 0.1)) == "hop.loguniform(0.0001, 0.1)"
    assert replacement(tune.quniform(0, 1, 0.1)) == "hop.quniform(0, 1, 0.1)"
    assert replacement(tune.randn(1, 2)) == "hop.normal(1, 2)"
    assert replacement(tune.randint(1, 5)) == "hop.randint(1, 5)"
    assert replacement(tune.lograndint(1, 5)) == "hop.lograndint(1, 5)"
    assert replacement(tune.qrandint(2, 10, 2)) == "hop.choice(range(2, 11, 2))"
    assert replacement(tune.choice(["a", "b"])) == "hop.choice(['a', 'b'])"
    assert replacement(tune.sample_from(len)) == "hop.sample_from(lambda config: ...)"
    assert ray_grid(tune.grid_search([1, 2])) == "hop.grid_search([1, 2])"


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"lr": [0.1, 0.01]}, r"lr=\[0.1, 0.01\]: .*hop.choice\(\[0.1, 0.01\]\).*a tuple, \(0.1, 0.01\)"),
        ({"net": {"lr": {"grid_search": [1, 2]}}}, r"net.lr=.*is a grid of Ray; write hop.grid_search\(\[1, 2\]\)"),
        ({"lr": of_ray("Float", lower=0, upper=1)}, r"lr=<ray.tune.search.sample.Float>: .*write hop.uniform\(0, 1\)"),
    ],
)
def test_a_space_names_the_replacement(space: spaces.Space, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        spaces.check(space)
    spaces.check({"betas": (0.9, 0.999), "grid_search": 3, "net": {"grid_search": 1, "depth": 2}})


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (
            lambda: spaces.choice(1, 2, 3),
            r"choice\(1, 2, 3\): must be one list of options; write choice\(\[1, 2, 3\]\)",
        ),
        (lambda: spaces.grid_search("a", "b"), r"write grid_search\(\['a', 'b'\]\)"),
        (lambda: spaces.choice({1, 2}), r"choice\({1, 2}\): must be a list of options, e.g."),
        (lambda: spaces.choice([spaces.uniform(0, 1), 2]), r"choice\(\[uniform\(0, 1\), ...\]\): an option cannot be"),
        (lambda: spaces.loguniform(-4, -1), "the lower bound must be above 0.*not their exponents"),
        (
            lambda: spaces.configure(lambda trial: trial.suggest_loguniform("lr", 1, 2), seed=0, number=0),
            r"trial.suggest_loguniform: .*suggest_float\(name, low, high, log=True\) only",
        ),
        (
            lambda: spaces.configure(lambda trial: {"lr": trial.number}, seed=0, number=0),
            "trial.number: .*suggest_float, suggest_int or suggest_categorical only",
        ),
    ],
)
def test_what_other_libraries_allow_is_refused_with_the_remedy(ask: object, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        ask()  # type: ignore[operator]


def test_numbers_of_numpy_are_numbers() -> None:
    assert spaces.uniform(np.float32(0), np.float64(1)) == spaces.uniform(0.0, 1.0)
    assert spaces.randint(np.int64(1), np.int32(5)) == spaces.randint(1, 5)
    assert spaces.quniform(0, 1, np.float64(0.5)) == spaces.quniform(0, 1, 0.5)
    assert spaces.choice(np.array([1, 2])) == spaces.choice([1, 2])


def test_a_chooser_can_be_inspected() -> None:
    chooser = spaces.Chooser(lambda name, dimension: 0)
    assert not hasattr(chooser, "__len__")
    assert inspect.isclass(type(chooser))


def test_phrases() -> None:
    assert nearest("Random", ["grid", "random"]) == "random"
    assert nearest(3, ["grid"]) == ""
    assert listed("acuracy", ["loss", "accuracy"]) == "accuracy, loss"
    assert listed("x", []) == "none"
    assert listed("x", [f"metric{number}" for number in range(30)]).endswith("metric19 and 10 more")
    assert shown(object()) == "<builtins.object>"
    assert shown(test_phrases) == "<function test_phrases>"
    assert len(shown("x" * 1000)) == 200
    assert shown(np.zeros((2, 2))) == "array([[0., 0.], [0., 0.]])"
