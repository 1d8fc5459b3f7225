"""What the tests of the command line share: outcomes of commands, and experiments to look at."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import hopfleet as hop
from hopfleet.testing.tasks import CountingTask

#: A file as a user writes it, with a task that needs no framework. {more} takes further arguments.
SCRIPT = """
import numpy as np

import hopfleet as hop
from hopfleet.testing.tasks import CountingTask


class Mine(CountingTask):
    pass


experiment = hop.Experiment(
    Mine(),
    train={{"x": np.arange(40.0)}},
    valid={{"x": np.arange(8.0)}},
    space={{"number": hop.grid_search([1, 2, 3])}},
    search=hop.Grid(max_epochs=2),
    partitions=4,
    batch_size=5,
    {more}
)
"""

#: The beginning of a file with a task in PyTorch; an experiment follows.
NET = """
import numpy as np
import torch
import hopfleet as hop

class Net(hop.TorchTask):
    def build(self, config):
        model = torch.nn.Linear(4, config["width"])
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model, batch):
        return model(batch["x"]).square().mean()
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Outcome]


def fitted(name: str, space: Mapping[str, Any] | None = None, **more: Any) -> hop.Results:
    """A finished experiment in the home folder. Its warnings do not count as output of a command."""
    with contextlib.redirect_stderr(io.StringIO()):
        return counting(name, space, **more).fit(quiet=True)


def counting(name: str, space: Mapping[str, Any] | None = None, **more: Any) -> hop.Experiment:
    return hop.Experiment(
        CountingTask(),
        space=dict(space or {"number": hop.grid_search([1, 2, 3])}),
        **{
            "train": {"x": np.arange(40.0)},
            "valid": {"x": np.arange(8.0)},
            "search": hop.Grid(max_epochs=2),
            "partitions": 4,
            "batch_size": 5,
            "backend": "inline",
            "name": name,
            **more,
        },
    )


FAULTY = {"fault": hop.grid_search([False, True])}
