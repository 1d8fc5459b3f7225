"""A small experiment for an environment in which Hopfleet was installed without any extra."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

import hopfleet as hop
from hopfleet.testing.tasks import CountingTask


def main() -> None:
    place = Path(hop.__file__).resolve()
    assert place.is_relative_to(Path(sys.prefix).resolve()), f"{place} is not the installed package"
    assert version("hopfleet") == hop.__version__, version("hopfleet")
    data = hop.partition({"x": np.arange(40.0)}, "data", partitions=2)
    results = hop.Experiment(
        CountingTask(),
        train=data,
        valid={"x": np.arange(8.0)},
        space={"number": hop.grid_search([1, 2])},
        search=hop.Grid(max_epochs=2),
        batch_size=5,
        workers=2,
        backend="local",
        name="smoke",
    ).fit(quiet=True)
    assert results.finished
    assert results.verify().ok
    print(hop.__version__, len(results.trials))


if __name__ == "__main__":
    main()
