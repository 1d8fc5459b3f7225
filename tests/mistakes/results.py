"""Mistakes in reading the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hopfleet as hop
from hopfleet.errors import NotFound, UsageError
from tests.helpers.mistakes import Mistake, Right, copy_finished, experiment, finished, task


def attribute(name: str, owner: Callable[[], Any], *says: str) -> Mistake:
    """A name that another library has."""
    return Mistake(
        f"the attribute {name}", lambda: getattr(owner(), name), AttributeError, (f"attribute '{name}'", *says)
    )


def division(self: Any, config: Any) -> Any:
    return 1 / 0


def best_of_none() -> object:
    return experiment(task(build=division)).fit(quiet=True).best


MISTAKES = [
    Mistake("a trial that does not exist", lambda: finished()["t0009"], NotFound, ("'t0009'", "no such trial")),
    Mistake("a trial by its position", lambda: finished()[0], NotFound, ("0: no such trial", "results.trials[0]")),  # type: ignore[index]
    Mistake("a misspelt trial", lambda: finished()["t001"], NotFound, ("'t001'", "did you mean 't0001'?")),
    Mistake("the best of failed trials", best_of_none, NotFound, ("the trial failed", "results.trials[0].error")),
    Mistake("results of an unknown name", lambda: (copy_finished(), hop.load("f")), NotFound, ("'f'", "there are: e")),
    Mistake("results before any run", lambda: hop.load("digits"), NotFound, ("'digits'", "there are: none")),
    Mistake(
        "a model for another task's class",
        lambda: finished().best.model(Right),  # type: ignore[arg-type]
        UsageError,
        ("Right", "must be an instance, Right()"),
    ),
    Mistake(
        "a misspelt chart", lambda: finished().plot("curve"), UsageError, ("'curve'", "did you mean 'curves'?", "gantt")
    ),
    Mistake(
        "a chart of an unknown metric", lambda: finished().plot(metric="acc"), UsageError, ("'acc'", "loss, train_loss")
    ),
    Mistake(
        "an unknown option of a chart",
        lambda: finished().plot(color="red"),
        UsageError,
        ("'red'", "takes metric"),
    ),
    Mistake(
        "a picture without a format", lambda: finished().plot(path="a.xyz"), UsageError, ("'a.xyz'", ".pdf, .png, .svg")
    ),
    Mistake(
        "a front of one metric",
        lambda: finished().plot("pareto"),
        UsageError,
        ("two or three", "metrics=['loss'"),
    ),
    attribute("best_params", finished, "results.best.config"),
    attribute("best_trial", finished, "results.best"),
    attribute("get_best_result", finished, "results.best"),
    attribute("trials_dataframe", finished, "results.dataframe()"),
    attribute("params", lambda: finished().best, "trial.config"),
    attribute("value", lambda: finished().best, "trial.metrics"),
    attribute("optimize", experiment, "results = experiment.fit()"),
    attribute("best", experiment, "experiment.fit(), then results.best"),
    Mistake(
        "the weights of an empty folder",
        lambda: hop.state_dict("."),
        UsageError,
        ("best/model.safetensors", "hop.load"),
    ),
    Mistake("the weights of a number", lambda: hop.state_dict(3), UsageError, ("state_dict(3)", "pass a file")),
]
