"""Mistakes in reading the results."""

from __future__ import annotations

import hopfleet as hop
from hopfleet.errors import NotFound, UsageError
from tests.helpers.mistakes import Mistake, fit

MISTAKES = [
    Mistake(
        "a chart that does not exist",
        lambda: fit().plot("curve"),
        UsageError,
        ("kind='curve'", "did you mean 'curves'?", "curves, gantt, importance"),
    ),
    Mistake(
        "a file in place of the kind of a chart",
        lambda: fit().plot("curves.png"),
        UsageError,
        ("kind='curves.png'", "to name a file, give path='curves.png'"),
    ),
    Mistake(
        "a chart in a format that cannot be written",
        lambda: fit().plot("curves", "curves.jpg"),
        UsageError,
        ("path='curves.jpg'", "must end in one of .pdf, .png, .svg"),
    ),
    Mistake(
        "a chart of a metric that no trial reports",
        lambda: fit().plot("curves", metric="los"),
        UsageError,
        ("metric='los'", "no trial reports it", "loss"),
    ),
    Mistake(
        "a chart with an option of another one",
        lambda: fit().plot("gantt", metric="loss"),
        UsageError,
        ("metric='loss'", "not an option of kind='gantt'", "remove it"),
    ),
    Mistake(
        "rungs without promotions",
        lambda: fit().plot("rungs"),
        UsageError,
        ("kind='rungs'", "no trial of this experiment was promoted", "kind='curves'"),
    ),
    Mistake(
        "a lineage without clones",
        lambda: fit().plot("lineage"),
        UsageError,
        ("kind='lineage'", "has no clones", "kind='curves'"),
    ),
    Mistake(
        "a front of one metric",
        lambda: fit().plot("pareto"),
        UsageError,
        ("kind='pareto'", "needs two or three metrics, not loss", "metrics="),
    ),
    Mistake(
        "parallel coordinates of equal configurations",
        lambda: fit().plot("parallel"),
        UsageError,
        ("kind='parallel'", "at least two trials with different configurations"),
    ),
    Mistake("a trial that does not exist", lambda: fit()["t0009"], NotFound, ("'t0009'", "no such trial", "t0001")),
    Mistake(
        "the weights of an empty folder",
        lambda: hop.state_dict("."),
        UsageError,
        ("best/model.safetensors", "hop.load"),
    ),
    Mistake("the weights of a number", lambda: hop.state_dict(3), UsageError, ("state_dict(3)", "pass a file")),
]
