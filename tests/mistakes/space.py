"""Mistakes in the space of configurations."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import optuna
import torch

import hopfleet as hop
from hopfleet.errors import SpaceError, UsageError
from tests.helpers.mistakes import Mistake, Warned, experiment, fit, shown, task

optuna_float = optuna.distributions.FloatDistribution
optuna_int = optuna.distributions.IntDistribution
optuna_choice = optuna.distributions.CategoricalDistribution


def space(name: str, made: Any, *says: str) -> Mistake:
    """An experiment with a space that is refused at once."""
    return Mistake(name, lambda: experiment(space=made), SpaceError, says)


def of_scipy(name: str, key: str, distribution: str, *numbers: float, says: tuple[str, ...]) -> Mistake:
    """An experiment with a distribution of SciPy, which takes seconds to import."""

    def make() -> object:
        import scipy.stats

        return experiment(space={key: getattr(scipy.stats, distribution)(*numbers)})

    return Mistake(name, make, SpaceError, says)


def asked(name: str, function: Any, *says: str) -> Mistake:
    """An experiment whose space is a function that fails when it is called."""
    return Mistake(name, lambda: fit(space=function), SpaceError, says)


def dimension(name: str, make: Any, *says: str) -> Mistake:
    return Mistake(name, make, SpaceError, says)


def build_with_default(self: Any, config: Any) -> Any:
    model = torch.nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config.get("momentum", 0.0))


MISTAKES = [
    space("an empty space", {}, "space={}", "is empty", "hop.loguniform"),
    space("no space at all", None, "space=None", "must be a dict"),
    space("a space of pairs", [("lr", 0.1)], "space=[('lr', 0.1)]", "must be a dict"),
    space("a namespace of arguments", Namespace(lr=0.1), "space=Namespace(lr=0.1)", "must be a dict"),
    space("a name that is a number", {1: 0.1}, "space key 1", "must be a non-empty string"),
    space("the same name twice", {"a.b": 1, "a": {"b": 2}}, "'a.b'", "occurs twice", "rename"),
    # As in scikit-learn and Keras
    space("a list", {"lr": [0.1, 0.01]}, "lr=[0.1, 0.01]", "hop.choice([0.1, 0.01])", "a tuple, (0.1, 0.01)"),
    space("a list in a nested space", {"net": {"width": [8, 16]}}, "net.width=[8, 16]", "hop.choice([8, 16])"),
    space("a range", {"width": range(2, 5)}, "width=range(2, 5)", "hop.choice(range(2, 5))"),
    space("a set", {"lr": {0.1, 0.01}}, "lr={0.1, 0.01}", "hop.choice([0.01, 0.1])"),
    space("numpy's linspace", {"lr": np.linspace(0, 1, 3)}, "lr=array(", "hop.choice([0.0, 0.5, 1.0])"),
    space("torch's linspace", {"lr": torch.linspace(0, 1, 3)}, "lr=tensor(", "hop.choice([0.0, 0.5, 1.0])"),
    of_scipy("scipy's uniform", "lr", "uniform", 1, 3, says=("lr=<scipy", "hop.uniform(1.0, 4.0)")),
    of_scipy("scipy's loguniform", "lr", "loguniform", 1e-4, 0.1, says=("hop.loguniform(0.0001, 0.1)",)),
    of_scipy("scipy's randint", "width", "randint", 1, 5, says=("hop.randint(1, 5)",)),
    # As in Ray Tune and Optuna; Ray's dimensions are in tests/domain/test_foreign.py
    space("Ray's grid_search", {"lr": {"grid_search": [1, 2]}}, "grid of Ray", "hop.grid_search([1, 2])"),
    space("Optuna's float", {"lr": optuna_float(1e-4, 0.1, log=True)}, "hop.loguniform(0.0001, 0.1)"),
    space("Optuna's integer", {"width": optuna_int(1, 4)}, "hop.randint(1, 5)"),
    space("Optuna's categories", {"act": optuna_choice(["relu", "tanh"])}, "hop.choice(['relu', 'tanh'])"),
    asked(
        "Optuna's suggest_loguniform", lambda trial: trial.suggest_loguniform("lr", 1, 2), "suggest_float(", "log=True"
    ),
    asked("Optuna's trial.number", lambda trial: {"lr": trial.number}, "trial.number", "suggest_float"),
    asked("a space function without argument", lambda: {"lr": 0.1}, "space=<lambda>", "0 positional arguments"),
    asked("a space function that returns nothing", lambda trial: None, "returned None", "must return a dict"),
    asked("a space function that returns a list", lambda trial: [0.1], "returned [0.1]", "must return a dict"),
    asked("a space function that fails", lambda trial: {"lr": trial.params["wd"]}, "KeyError: 'wd'", "choosing {}"),
    asked("integers between floats", lambda trial: trial.suggest_int("width", 1.5, 3), "(1.5, 4)", "must be integers"),
    # Objects
    space("a class", {"lr": 1, "act": torch.nn.ReLU}, "act=<class", "ReLU", "use a name here"),
    space("a module", {"lr": 1, "act": torch.nn.ReLU()}, "act=ReLU()", "look the object up in build()"),
    space("a torch.dtype", {"lr": 1, "dtype": torch.float32}, "dtype=torch.float32", "use a name here"),
    space("a function", {"lr": lambda: 0.1}, "lr=<function <lambda>>", "numbers, strings"),
    space("a dimension that is not called", {"lr": hop.loguniform}, "lr=<function loguniform>", "hop.loguniform(...)"),
    dimension("a choice of classes", lambda: hop.choice([torch.nn.ReLU]), "ReLU", "use a name here"),
    dimension(
        "a choice of dimensions", lambda: hop.choice([hop.uniform(0, 1)]), "uniform(0, 1)", "function of a trial"
    ),
    # Arguments
    space("an object as the space", object(), "space=<", "must be a dict"),
    Mistake("one bound", lambda: hop.uniform(0.1), TypeError, ("'high'", "uniform(low, high)")),  # type: ignore[call-arg]
    Mistake("a base", lambda: hop.loguniform(1, 2, base=10), TypeError, ("'base'", "it takes low, high")),  # type: ignore[call-arg]
    dimension("a choice without a list", lambda: hop.choice(1, 2, 3), "choice(1, 2, 3)", "choice([1, 2, 3])"),
    dimension("a choice of nothing", lambda: hop.choice([]), "choice([])", "at least one option"),
    dimension("a choice of a word", lambda: hop.choice("relu"), "choice('relu')", "a list of options"),
    dimension("a choice of a dict", lambda: hop.choice({"a": 1}), "choice({'a': 1})", "a list of options"),
    dimension("bounds in the wrong order", lambda: hop.uniform(1, 0), "uniform(1, 0)", "the first below the second"),
    dimension("bounds as text", lambda: hop.uniform("0", "1"), "uniform('0', '1')", "must be finite numbers"),
    dimension("a range to infinity", lambda: hop.uniform(0, float("inf")), "uniform(0, inf)", "finite"),
    dimension("exponents as bounds", lambda: hop.loguniform(-4, -1), "loguniform(-4, -1)", "above 0", "such as 1e-4"),
    dimension("a logarithm of 0", lambda: hop.loguniform(0, 1), "loguniform(0, 1)", "above 0"),
    dimension("floats for randint", lambda: hop.randint(1.0, 5.0), "randint(1.0, 5.0)", "must be integers"),
    dimension("no step", lambda: hop.quniform(0, 1, 0), "q=0", "above 0"),
    dimension("no deviation", lambda: hop.normal(0, 0), "normal(0, 0)", "sd a number above 0"),
    dimension("a constant for sample_from", lambda: hop.sample_from(3), "sample_from(3)", "must be a function"),
    asked("sample_from of a missing key", {"lr": hop.sample_from(lambda config: config["x"])}, "lr", "KeyError: 'x'"),
    # Names that have a meaning, and points to try first
    Mistake(
        "a batch size between two floats",
        lambda: fit(space={"lr": 0.1, "batch_size": hop.uniform(2, 8)}),
        UsageError,
        ("batch_size=", "must be an integer"),
    ),
    Mistake(
        "a batch size larger than a partition",
        lambda: fit(space={"lr": 0.1, "batch_size": hop.choice([512])}),
        UsageError,
        ("batch_size=512", "smallest partition (16 rows)", "smaller batches or fewer partitions"),
    ),
    Mistake(
        "a point with an unknown name",
        lambda: experiment(space={"width": hop.randint(1, 9)}, initial_configs=[{"widht": 3}]),
        SpaceError,
        ("no widht", "did you mean 'width'?"),
    ),
    Mistake(
        "a point outside of the space",
        lambda: experiment(space={"lr": hop.uniform(0, 1)}, initial_configs=[{"lr": 5}]),
        SpaceError,
        ("lr=5", "is not in uniform(0, 1)"),
    ),
    Mistake(
        "a point without a list",
        lambda: experiment(space={"lr": hop.uniform(0, 1)}, initial_configs={"lr": 0.5}),
        UsageError,
        ("initial_configs={'lr': 0.5}", "must be a list"),
    ),
    Mistake(
        "a key that no method reads",
        lambda: shown(space={"lr": 0.1, "momentum": 0.9}),
        Warned,
        ("config['momentum']", "never read", "remove it from the space"),
    ),
    Mistake(
        "a key that is misspelt in the space",
        lambda: shown(task(build=build_with_default), space={"lr": 0.1, "momentun": 0.9}),
        Warned,
        ("config['momentun']", "never read", "it asked for momentum instead"),
    ),
]
