"""What searches find, and how soon, in virtual time on 8 workers.

*Exploring*: how many configurations ASHA (R = 9, eta = 3) explores in 16 hours, with networks as expensive as the 35
CNNs of the Cerebro paper: ours, which resumes promoted trials, against tasks that start from the beginning. The paper
counted 83 against 67 in its own 24 hours.

*Time to target*: on the synthetic learning curves of ``landscape``, the time until the first model is as good as the
best hundredth of fully trained models. Ray Tune's ASHA and Optuna's pruners are driven by their own code, if installed.
``python -m benchmarks.searching --charts FOLDER`` draws the best accuracy over time.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median

import hopfleet as hop
from benchmarks.landscape import SPACE, Landscape, epoch_seconds
from benchmarks.row import Row, table
from benchmarks.virtual import Log, OptunaPruner, Patient, RayASHA, Restarting, Tuner, hopping, task_parallel
from hopfleet.domain.space import Space, configure
from hopfleet.domain.trial import Config
from hopfleet.planner.costs import cnns
from hopfleet.search.base import Search

WORKERS = 8
HOURS = 16
EPOCHS = 27
TARGET = 0.968
UNTIL = 12_000.0
MANY = 4000


def measure(quick: bool) -> list[Row]:
    seeds, hours, until = (range(1), 2, UNTIL / 20) if quick else (range(8), HOURS, UNTIL)
    return [*exploring(seeds, hours), *_time_to_target(seeds, until)]


# ------------------------------------------------------------------------------------------------------ exploring


def exploring(seeds: Sequence[int], hours: int = HOURS) -> list[Row]:
    ours, theirs = [], []
    for seed in seeds:
        rng = random.Random(seed)
        costs = [row[0] for row in cnns(MANY, 1, rng)]
        # An epoch of the mean network takes about a quarter of an hour, so some 500 of them fit into the time.
        scale = 900.0 / mean(costs)
        space = {"cost": hop.choice([cost * scale for cost in sorted(set(costs))]), "lr": hop.loguniform(1e-4, 1.0)}

        def config(number: int, space: Space = space, seed: int = seed) -> Config:
            return configure(space, seed=seed, number=number)

        until = hours * 3600.0
        search = hop.ASHA(trials=MANY, max_epochs=9, eta=3)
        ours.append(hopping(search, space, _Guess(seed), _cost, workers=WORKERS, until=until, seed=seed).explored())
        tuner = Restarting(config, (1, 3, 9))
        task_parallel(tuner, _Guess(seed), _cost, workers=WORKERS, until=until)
        theirs.append(tuner.explored())
    ratio = mean(ours) / mean(theirs)
    what = f"configurations that ASHA explores in {hours} simulated hours, {WORKERS} workers, {len(seeds)} seeds"
    said = "ratio ≥ 1.2 (the paper: 83 / 67)"
    return [Row("searching", what, f"{mean(ours):.0f}", f"tasks: {mean(theirs):.0f}", ratio, said, ratio >= 1.2)]


def _cost(config: Config) -> float:
    return float(config["cost"])


class _Guess:
    """Accuracies that follow from the configuration, with noise; quality is independent of cost."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def start(self, trial: str, parent: str = "", epoch: int = 0) -> None:
        pass

    def accuracy(self, trial: str, config: Config, epoch: int) -> float:
        quality = random.Random(f"{self.seed} {sorted(config.items())}").random()
        return quality * (1 - 0.5**epoch) + random.Random(f"{self.seed} {trial} {epoch}").gauss(0, 0.02)


# ------------------------------------------------------------------------------------------------- time to target


def searches() -> Mapping[str, Callable[[int], Search]]:
    """Return our searches by name. Each takes a seed."""
    found: dict[str, Callable[[int], Search]] = {
        "random": lambda seed: hop.Random(trials=MANY, max_epochs=EPOCHS),
        "Hyperband": lambda seed: hop.Hyperband(max_epochs=EPOCHS),
        "ASHA": lambda seed: hop.ASHA(trials=MANY, max_epochs=EPOCHS),
        "PBT": lambda seed: hop.PBT(population=16, max_epochs=EPOCHS * 2),
    }
    if importlib.util.find_spec("optuna"):
        found["ASHA with TPE"] = lambda seed: hop.ASHA(trials=MANY, max_epochs=EPOCHS, sampler=hop.TPE())
    return found


def run(name: str, seed: int, until: float) -> Log:
    """Run one search, ours or another library's, on one landscape."""
    world = Landscape(seed)
    if name in searches():
        search = searches()[name](seed)
        live = 2 * WORKERS
        return hopping(search, SPACE, world, epoch_seconds, workers=WORKERS, until=until, seed=seed, max_live=live)

    def config(number: int) -> Config:
        return configure(SPACE, seed=seed, number=number)

    tuners: dict[str, Callable[[], Tuner]] = {
        "random, tasks": lambda: Patient(config, EPOCHS),
        "Ray Tune's ASHA": lambda: RayASHA(config, EPOCHS),
        "Optuna's TPE, median pruner": lambda: OptunaPruner(SPACE, EPOCHS, "median", seed),
        "Optuna's TPE, halving pruner": lambda: OptunaPruner(SPACE, EPOCHS, "halving", seed),
    }
    return task_parallel(tuners[name](), world, epoch_seconds, workers=WORKERS, until=until)


def others() -> list[str]:
    names = ["random, tasks"]
    if importlib.util.find_spec("ray"):
        names.append("Ray Tune's ASHA")
    if importlib.util.find_spec("optuna"):
        names += ["Optuna's TPE, median pruner", "Optuna's TPE, halving pruner"]
    return names


def _time_to_target(seeds: Sequence[int], until: float) -> list[Row]:
    rows = []
    base = _times("random, tasks", seeds, until)
    for name in [*searches(), *others()[1:]]:
        times = _times(name, seeds, until)
        missed = sum(time >= until for time in times)
        ours = f"median {median(times):,.0f} s" + (f", {missed} of {len(times)} missed it" if missed else "")
        what = f"time to {TARGET:.1%}: {name}"
        rows.append(Row("searching", what, ours, f"random, tasks: {median(base):,.0f} s", median(times) / median(base)))
    return rows


def _times(name: str, seeds: Sequence[int], until: float) -> list[float]:
    return [run(name, seed, until).first(TARGET) or until for seed in seeds]


# ---------------------------------------------------------------------------------------------------------- chart


def draw(folder: Path, seeds: Sequence[int], until: float) -> Path:
    """Draw the best accuracy so far, as the median over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    grid = [until * (step + 1) / 200 for step in range(200)]
    for index, name in enumerate([*searches(), *others()]):
        bests = [run(name, seed, until).best() for seed in seeds]
        line = [median([_at(best, time) for best in bests]) for time in grid]
        style = "-" if name in searches() else "--"
        axes.plot([time / 3600 for time in grid], line, style, label=name, color=f"C{index}", linewidth=1.8)
    axes.axhline(TARGET, color="0.6", linewidth=0.8, linestyle=":")
    axes.set(xlabel="hours of 8 workers, simulated", ylabel="best accuracy so far", ylim=(0.9, 0.985))
    axes.set_title(f"Searches on made-up learning curves: median of {len(seeds)} seeds", loc="left")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "searching.svg"
    figure.savefig(path)
    figure.savefig(path.with_suffix(".png"), dpi=120)
    return path


def _at(best: Sequence[tuple[float, float]], time: float) -> float:
    return max((value for when, value in best if when <= time), default=0.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--charts", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    if options.charts:
        print(draw(options.charts, range(options.seeds), UNTIL))
    else:
        print(table(measure(False)))
