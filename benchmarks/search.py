"""The cost of a suggestion: random draws, and samplers of Optuna compared with bare Optuna on as many trials.

CPU time of this process is measured, so that other load on the machine matters little.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median

import optuna

from benchmarks.row import Row, milliseconds
from hopfleet.domain.space import choice, loguniform, randint, uniform
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.search.base import Goal, Search
from hopfleet.search.optuna import TPE
from hopfleet.search.random import Random

SPACE = {
    "lr": loguniform(1e-5, 1e-1),
    "decay": loguniform(1e-6, 1e-2),
    "dropout": uniform(0.0, 0.5),
    "width": randint(16, 513),
    "kind": choice(["relu", "gelu", "tanh"]),
}
RANDOM_BAR = 0.2e-3
OPTUNA_BAR = 1.2
#: Number of measurements of both sides, in turn; the median counts.
REPEATS = 5


def measure(quick: bool) -> list[Row]:
    return [*_random(200 if quick else 10_000), *_tpe((20,) if quick else (100, 300), 1 if quick else REPEATS)]


def _loss(config: Config) -> float:
    return float(abs(config["dropout"] - 0.2) + config["lr"] + config["width"] / 512)


def _random(count: int) -> list[Row]:
    part = count // 10
    times = _suggestions(Random(trials=count), count)
    first, last = sum(times[:part]) / part, sum(times[-part:]) / part
    middle = sum(times) / count
    kind = f"random, {count:,} trials, {len(SPACE)} dimensions"
    growth = f"first tenth {milliseconds(first)}, last tenth {milliseconds(last)}"
    return [
        Row("search", f"{kind}: one suggestion", milliseconds(middle), "", None, "< 0.2 ms", middle < RANDOM_BAR),
        # Allow a fifth for noise.
        Row("search", f"{kind}: growth", f"×{last / first:.2f}", growth, None, "no growth", last < 1.2 * first),
    ]


def _suggestions(search: Search, count: int) -> list[float]:
    """Return the seconds that each trial cost the search, from the suggestion to its end."""
    search.setup(SPACE, seed=0, goal=Goal("loss", "min"))
    times = []
    for number in range(count):
        start = time.process_time()
        suggestion = search.suggest(number)
        assert suggestion is not None
        trial = Trial(f"t{number}", number, suggestion.config, 0, 1)
        search.added(trial)
        search.observe(trial, 1, {"loss": _loss(suggestion.config)})
        search.ended(trial, TrialState.COMPLETED)
        times.append(time.process_time() - start)
    return times


def _tpe(counts: tuple[int, ...], repeats: int) -> list[Row]:
    rows = []
    for count in counts:
        ours, theirs = [], []
        for _ in range(repeats):
            ours.append(_timed(lambda: _suggestions(TPE(trials=count), count)))  # noqa: B023
            theirs.append(_timed(lambda: _bare(count)))  # noqa: B023
        mine, other = median(ours) / count, median(theirs) / count
        bar = f"<= {OPTUNA_BAR} × Optuna"
        what = f"TPE, {count} trials: one suggestion and its result"
        rows.append(
            Row("search", what, milliseconds(mine), f"bare Optuna {milliseconds(other)}", mine / other, bar,
                mine <= OPTUNA_BAR * other)
        )  # fmt: skip
    return rows


def _timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _bare(count: int) -> None:
    """Measure the same with Optuna alone, in memory."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = {
        "lr": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True),
        "decay": optuna.distributions.FloatDistribution(1e-6, 1e-2, log=True),
        "dropout": optuna.distributions.FloatDistribution(0.0, 0.5),
        "width": optuna.distributions.IntDistribution(16, 512),
        "kind": optuna.distributions.CategoricalDistribution(["relu", "gelu", "tanh"]),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True))
    for _ in range(count):
        trial = study.ask(kinds)
        study.tell(trial, _loss(trial.params))
