"""What searches find on learning curves that others have recorded, in virtual time on 8 workers.

``python -m benchmarks.curves FOLDER`` reads tables of TaskSet: files ``*.json.gz``, each with about 1,000
configurations of an optimizer and the validation loss after each of 50 steps. A search chooses from the same space; a
configuration has the curve of the nearest one in the table. *Regret* after the time of some full trainings is that of
the best loss seen so far: 0 for the best of the table, 1 for the median configuration.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import hopfleet as hop
from benchmarks.virtual import hopping, sharing
from hopfleet.domain.trial import Config
from hopfleet.search.base import Search

WORKERS = 8
STEPS = 50
MANY = 4000
TIMES = (1, 3, 8)
"""Full trainings after whose time regret is measured."""


@dataclass(frozen=True)
class Table:
    """Configurations and their losses after each step; rows are normalised logarithms of the settings."""

    name: str
    settings: Mapping[str, tuple[float, float]]
    rows: Any  #: (configurations, settings)
    losses: Any  #: (configurations, steps + 1); infinite where training diverged

    @classmethod
    def read(cls, path: Path) -> Table:
        found = json.loads(gzip.decompress(path.read_bytes()))
        raw = np.array([[each["hp"][name] for name in found[0]["hp"]] for each in found])
        curves = [next(iter(each["valid"].values())) for each in found]
        losses = np.array([[*curve, *[math.nan] * (STEPS + 1 - len(curve))][: STEPS + 1] for curve in curves], float)
        settings = {name: (float(raw[:, k].min()), float(raw[:, k].max())) for k, name in enumerate(found[0]["hp"])}
        return cls(
            path.name.split(".")[0], settings, _scaled(raw, settings), np.where(np.isfinite(losses), losses, math.inf)
        )

    @property
    def space(self) -> dict[str, Any]:
        return {name: hop.loguniform(low, high) for name, (low, high) in self.settings.items()}

    def nearest(self, config: Config) -> int:
        wanted = _scaled(np.array([[config[name] for name in self.settings]]), self.settings)
        return int(((self.rows - wanted) ** 2).sum(axis=1).argmin())

    def regret(self, loss: float) -> float:
        finals = self.losses.min(axis=1)
        return float((loss - finals.min()) / (np.median(finals) - finals.min()))


def _scaled(raw: Any, settings: Mapping[str, tuple[float, float]]) -> Any:
    low, high = (np.log([bounds[end] for bounds in settings.values()]) for end in (0, 1))
    return (np.log(raw) - low) / (high - low)


class World:
    """The configurations of a table as models: accuracies are negative losses."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._rows: dict[str, int] = {}

    def start(self, trial: str, parent: str = "", epoch: int = 0) -> None:
        pass

    def accuracy(self, trial: str, config: Config, epoch: int) -> float:
        if trial not in self._rows:
            self._rows[trial] = self._table.nearest(config)
        return -float(self._table.losses[self._rows[trial], epoch])


def searches() -> Mapping[str, Callable[[], Search]]:
    return {
        "random": lambda: hop.Random(trials=MANY, max_epochs=STEPS),
        "ASHA": lambda: hop.ASHA(trials=MANY, max_epochs=STEPS),
        "ASHA with TPE": lambda: hop.ASHA(trials=MANY, max_epochs=STEPS, sampler=hop.TPE()),
        "FreezeThaw": lambda: hop.FreezeThaw(trials=MANY, max_epochs=STEPS),
        "Hyperband": lambda: hop.Hyperband(max_epochs=STEPS),
        "Hyperband with TPE": lambda: hop.Hyperband(max_epochs=STEPS, sampler=hop.TPE()),
    }


def regrets(name: str, table: Table, seed: int, quick: bool = False) -> list[float]:
    """Return the regret of a search on a table after the time of 1, 3 and 8 full trainings."""
    search, until, live = searches()[name](), float(TIMES[-1] * STEPS), 2 * WORKERS
    if quick:
        log = sharing(search, table.space, World(table), workers=WORKERS, until=until, seed=seed, live=live)
    else:
        log = hopping(
            search,
            table.space,
            World(table),
            lambda config: 1.0,
            workers=WORKERS,
            until=until,
            seed=seed,
            max_live=live,
        )
    found = []
    for time in TIMES:
        seen = [-value for when, _, _, value in log.epochs if when <= time * STEPS and value == value]
        found.append(table.regret(min(seen, default=math.inf)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tables", type=int, help="the number of tables, all if left out")
    parser.add_argument("--only", nargs="*", choices=[*searches()], default=[*searches()])
    parser.add_argument("--quick", action="store_true", help="without the controller; not for Hyperband")
    asked = parser.parse_args()
    tables = [Table.read(path) for path in sorted(asked.folder.glob("*.json.gz"))[: asked.tables]]
    print(f"{len(tables)} tables, {asked.seeds} seeds, {WORKERS} workers: mean regret after 1, 3, 8 full trainings")
    for name in asked.only:
        found = [regrets(name, table, seed, asked.quick) for table in tables for seed in range(asked.seeds)]
        print(f"{name:24}", *(f"{mean(column):.3f}" for column in zip(*found, strict=True)), flush=True)


if __name__ == "__main__":
    main()
