"""Experiments in files that commands load: without training, with options of a command line, or to resume a run."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from hopfleet.errors import HopfleetError
from hopfleet.runs.results import Results

if TYPE_CHECKING:
    from hopfleet.experiment.experiment import Experiment

RESUME = "HOPFLEET_RESUME"
"""Environment variable that ``hopfleet resume`` sets while it runs a script again: the name of the experiment."""

PREVIEW = "HOPFLEET_PREVIEW"
"""Environment variable that commands set while they load a file: ``fit`` must not train.

Its value is ``ANY``, or the run folder of the experiment that the command looks for.
"""

ANY = "any"

Adjust = Callable[["Experiment"], tuple[bool, bool]]
"""Changes an experiment before it trains, and returns whether to overwrite an earlier one and whether to be quiet."""

ADJUST: ContextVar[Adjust | None] = ContextVar("ADJUST", default=None)
"""What a command does to each experiment that a user's file fits by itself."""


class FitAvoided(HopfleetError):
    """A file called ``fit`` while it was loaded without training."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(f"{experiment.name}: fit() was called while the file was loaded without training")
        self.experiment = experiment


def avoided(experiment: Experiment, wanted: str) -> Results:
    """Return the results of a finished experiment whose run folder is not ``wanted``; raise FitAvoided otherwise."""
    if wanted not in (ANY, str(experiment.folder.path)) and experiment.folder.exists:
        results = Results(experiment.folder, task=experiment.task)
        if results.finished:
            return results
    raise FitAvoided(experiment)
