"""Mistakes in the choice of a search, its goal and its stopping rules."""

from __future__ import annotations

from typing import Any

import optuna

import hopfleet as hop
from hopfleet.errors import SpaceError, UsageError
from tests.helpers.mistakes import Mistake, experiment, fit


def refused(mistake: str, make: Any, *says: str) -> Mistake:
    return Mistake(mistake, make, UsageError, says)


def chosen(mistake: str, search: Any, *says: str) -> Mistake:
    return refused(mistake, lambda: experiment(search=search), *says)


def stopped(mistake: str, stop: Any, *says: str) -> Mistake:
    return refused(mistake, lambda: experiment(stop=stop), *says)


class Sampler:
    """Looks like a sampler of Optuna."""

    def sample_relative(self) -> None: ...


def misspelt(mistake: str, make: Any, *says: str) -> Mistake:
    """An argument that another library has."""
    return Mistake(mistake, make, TypeError, says)


LR = {"lr": hop.uniform(0, 1)}

MISTAKES = [
    chosen("a search that does not exist", "magic", "search='magic'", "asha", "random"),
    chosen("a misspelt search", "randm", "search='randm'", "did you mean 'random'?"),
    chosen("a search with a capital", "Random", "search='Random'", "did you mean 'random'?"),
    chosen("the class of a search", hop.ASHA, "ASHA", "hop.ASHA(...)"),
    chosen("no search", None, "search=None", "hop.Random(trials=16)"),
    refused("no trials", lambda: hop.Random(trials=0), "trials=0", "at least 1"),
    refused("trials as text", lambda: hop.Random(trials="8"), "trials='8'", "must be an integer"),  # type: ignore[arg-type]
    refused("trials as a float", lambda: hop.Random(trials=8.0), "trials=8.0", "must be an integer"),  # type: ignore[arg-type]
    refused("no epochs", lambda: hop.Grid(max_epochs=0), "max_epochs=0", "at least 1"),
    refused("half an epoch", lambda: hop.Grid(max_epochs=1.5), "max_epochs=1.5", "must be an integer"),  # type: ignore[arg-type]
    refused("halving that keeps everything", lambda: hop.ASHA(eta=1), "eta=1", "at least 2", "the best third"),
    refused(
        "a first rung after the last",
        lambda: hop.ASHA(max_epochs=9, min_epochs=20),
        *("min_epochs=20", "at most max_epochs=9", "raise max_epochs or lower min_epochs"),
    ),
    refused("a sampler by name", lambda: hop.ASHA(sampler="tpe"), "sampler='tpe'", "must be a search"),  # type: ignore[arg-type]
    refused("an Optuna sampler by name", lambda: hop.Optuna("tpe"), "sampler='tpe'", "TPESampler("),
    refused("a budget of nothing", lambda: hop.Budget(), "Budget()", "set seconds, epochs, trials or target"),
    refused("a negative budget", lambda: hop.Budget(epochs=-1), "epochs=-1", "at least 1"),
    refused("no patience", lambda: hop.Patience(epochs=0), "epochs=0", "at least 1"),
    misspelt("Optuna's name of trials", lambda: hop.Random(n_trials=8), "Random()", "'n_trials'", "mean 'trials'?"),
    misspelt("Ray's name of trials", lambda: hop.Random(num_samples=8), "'num_samples'", "did you mean 'trials'?"),
    misspelt("epochs of a search", lambda: hop.Random(epochs=8), "'epochs'", "did you mean 'max_epochs'?"),
    misspelt("Ray's longest time", lambda: hop.ASHA(max_t=8), "ASHA()", "'max_t'", "did you mean 'max_epochs'?"),
    misspelt("Ray's grace period", lambda: hop.ASHA(grace_period=2), "ASHA()", "did you mean 'min_epochs'?"),
    misspelt("Ray's reduction factor", lambda: hop.ASHA(reduction_factor=2), "ASHA()", "did you mean 'eta'?"),
    misspelt("Ray's interval", lambda: hop.PBT(perturbation_interval=2), "PBT()", "did you mean 'interval'?"),
    misspelt("Optuna's time limit", lambda: hop.Budget(timeout=60), "Budget()", "did you mean 'seconds'?"),
    misspelt("Keras's patience", lambda: hop.Patience(patience=3), "Patience()", "did you mean 'epochs'?"),
    misspelt("trials of a grid", lambda: hop.Grid(trials=3), "Grid()", "'trials'", "it takes max_epochs"),
    refused("Optuna's name of trials for TPE", lambda: hop.TPE(n_trials=8), "TPE", "'n_trials'", "mean 'trials'?"),
    refused("one dimension to explore", lambda: hop.PBT(explore="lr"), "explore='lr'", "a list of dimensions"),
    refused("one factor to perturb by", lambda: hop.PBT(perturb=0.8), "perturb=0.8", "(0.8, 1.2) is usual"),
    refused("rules for a name", lambda: hop.Stopping("random", []), "search='random'", "hop.Random(trials=16)"),  # type: ignore[arg-type]
    stopped("Ray's stopping rule", {"loss": 0.1}, "stop={'loss': 0.1}", "not a dict", "hop.Budget(target=...)"),
    chosen("a sampler as the search", Sampler(), "Sampler", "must be a search", "hop.Optuna(sampler, trials=16)"),
    chosen("a study of Optuna", optuna.create_study(), "Study", "hop.Optuna(study.sampler, trials=16)"),
    stopped("a pruner of Optuna", optuna.pruners.MedianPruner(), "MedianPruner", "hop.Median()"),
    chosen("Bayesian search by name", "bayesian", "search='bayesian'", "gp", "tpe"),
    misspelt("a budget in hours", lambda: hop.Budget(hours=1), "Budget()", "'hours'", "it takes seconds, epochs"),
    refused("a budget with a unit", lambda: hop.Budget(seconds="1h"), "seconds='1h'", "must be a number"),  # type: ignore[arg-type]
    Mistake(
        "a population with one configuration",
        lambda: experiment(space={"lr": 0.1}, search=hop.PBT()),
        SpaceError,
        ("PBT has nothing to explore", "at least one dimension"),
    ),
    Mistake(
        "a constraint without return",
        lambda: fit(space=LR, constraints=[lambda config: None]),
        SpaceError,
        ("returned None", "must return True or False"),
    ),
    Mistake(
        "a constraint on a missing key",
        lambda: fit(space=LR, constraints=[lambda config: config["wd"] < 1]),
        SpaceError,
        ("KeyError: 'wd'", "{'lr': "),
    ),
    stopped("a stopping rule that is a number", 3, "stop=3", "must be a stopping rule", "hop.Median()"),
    stopped("the class of a stopping rule", hop.Patience, "Patience", "must be an instance, Patience()"),
    stopped("a misspelt stopping rule", "medain", "stop='medain'", "did you mean 'median'?"),
    Mistake(
        "a grid over a range",
        lambda: experiment(space=LR, search=hop.Grid()),
        SpaceError,
        ("lr=uniform(0, 1)", "hop.grid_search([...])", "hop.Random(trials=...)"),
    ),
    Mistake(
        "a grid over a function",
        lambda: experiment(space=lambda trial: {"lr": trial.suggest_float("lr", 0, 1)}, search=hop.Grid()),
        SpaceError,
        ("a grid cannot enumerate", "hop.Random(trials=...)"),
    ),
    Mistake(
        "constraints that exclude everything",
        lambda: experiment(space=LR, constraints=[lambda config: False], initial_configs=[{}]),
        SpaceError,
        ("no ", "1000 draws", "make the constraints looser"),
    ),
]
