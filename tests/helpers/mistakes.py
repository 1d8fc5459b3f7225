"""What the table of mistakes is made of: a row, and the ways in which a mistake shows."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import hopfleet as hop
from hopfleet.cli import main
from hopfleet.store.folder import home


@dataclass(frozen=True)
class Mistake:
    """Something that users do: ``run`` raises ``expect``, and the message contains all words of ``says``."""

    #: Unique, and worded as the user's action: "a list in the space".
    name: str
    run: Callable[[], object]
    #: An exception of Hopfleet, or one of the three below.
    expect: type[BaseException]
    #: The value, the constraint and the remedy.
    says: tuple[str, ...]


class TrialFailed(Exception):
    """A trial failed; the text is the error as tables show it."""


class Warned(Exception):
    """A run finished and said something in the terminal."""


class CommandFailed(Exception):
    """A command had an exit code other than 0; the text is what it wrote to stderr."""


def rows(count: int = 16, seed: int = 0) -> dict[str, np.ndarray]:
    """The columns ``x`` (4 numbers) and ``y`` (0 or 1)."""
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(count, 4)).astype("float32"), "y": rng.integers(0, 2, count)}


class Right(hop.TorchTask):
    """A task without mistakes; each mistake overrides one method."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Linear(4, 2)
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def task(**methods: Callable[..., Any]) -> hop.TorchTask:
    """A task with some methods replaced."""
    made: hop.TorchTask = type("Mine", (Right,), methods)()
    return made


def experiment(mine: Any = None, **changes: Any) -> hop.Experiment:
    """The smallest experiment, with some arguments changed."""
    given: dict[str, Any] = {
        "train": rows(),
        "valid": rows(8, seed=1),
        "space": {"lr": 0.1},
        "search": hop.Random(trials=1, max_epochs=1),
        "name": "e",
        "backend": "inline",
        "workers": 1,
        "partitions": 1,
        "batch_size": 8,
        "run_options": hop.RunOptions(all_failed="return"),
        **changes,
    }
    return hop.Experiment(Right() if mine is None else mine, **given)


def fit(mine: Any = None, **changes: Any) -> hop.Results:
    """Train. Raise TrialFailed with the error of the first trial that failed."""
    results = experiment(mine, **changes).fit(quiet=True)
    for trial in results.trials:
        if trial.error is not None:
            raise TrialFailed(trial.error.partition("\n\nTraceback")[0])
    return results


@functools.cache
def finished() -> hop.Results:
    """The results of a run without mistakes, which all rows share."""
    return fit()


def copy_finished() -> None:
    """Put the finished run into the home folder of this test, under the name ``e``."""
    target = home() / "e"
    if finished().folder.path != target:
        shutil.copytree(finished().folder.path, target)


def shown(mine: Any = None, **changes: Any) -> None:
    """Train, and raise Warned with what the terminal shows from its first warning on."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        experiment(mine, **changes).fit()
    printed = " ".join((out.getvalue() + err.getvalue()).split())
    # Workers in this process log to the standard error; others report to the view.
    if len(parts := re.split(r"warning: |hopfleet\.batches: ", printed, maxsplit=1)) == 2:
        raise Warned(parts[1].partition("[ ")[0])


def command(*arguments: str) -> None:
    """Run a command. Raise CommandFailed unless its exit code is 0."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(arguments)
    if code:
        raise CommandFailed(err.getvalue())
