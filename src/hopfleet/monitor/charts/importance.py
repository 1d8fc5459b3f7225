"""Importance of hyper-parameters: permutation importance on a small forest, with an error bar.

Some trials are held out, a forest of random trees learns the metric from the others, and one parameter at a time is
shuffled among the held-out trials. Half of the increase of the squared error, as a fraction of the metric's variance,
estimates how much of the variance depends on the parameter, alone or together with others (Sobol's total index). A
forest that has seen few trials smooths too much, so the estimates tend to be too low; their order is more reliable
than their size.

The procedure is repeated with other trials held out. Because repetitions share trials, their spread underestimates the
error; the error bar includes the correction of Nadeau and Bengio (2003). A conditional parameter is shuffled only among
the trials that have it, so that it is not credited with the effect of the parameter that enables it.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopfleet.errors import UsageError
from hopfleet.monitor.charts.canvas import dress, paper, save
from hopfleet.monitor.charts.colors import HIGHLIGHTS, INK, MUTED, OTHERS
from hopfleet.monitor.charts.parameters import Parameter, fences, metric_values, parameters
from hopfleet.monitor.history import History
from hopfleet.monitor.wording import plural, shorten

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Array = np.ndarray[Any, np.dtype[Any]]

FEWEST = 10
"""Trials with a value; below this number no importances are computed."""

MOST = 250
"""Trials that the forest learns from; of more, as many are drawn. A page computes importances again and again."""

_REPETITIONS = 12
_SHUFFLES = 4  #: shuffles of each parameter in each repetition
_TREES = 24
_LEAF = 3  #: trials; a node with fewer than twice this number is not split
_THRESHOLDS = 4  #: random thresholds per column and node
_ASIDE = 1 / 4  #: fraction of the trials held out
_WEAK = 0.1  #: explained variance of held-out trials; below this, the importances are not trustworthy


@dataclass(frozen=True, slots=True)
class Importance:
    """The fraction of the metric's variance that depends on a parameter, and its standard error."""

    name: str
    importance: float
    error: float

    @property
    def clear(self) -> bool:
        """Whether the importance exceeds twice its standard error."""
        return self.importance > 2 * self.error


@dataclass(frozen=True, slots=True)
class Importances:
    """The importances of all parameters that differ between trials, the most important first."""

    metric: str
    trials: int  #: number of trials with a value
    epoch: int | None  #: the epoch at which trials are compared; None for each trial's best epoch
    parameters: list[Importance]
    explained: float | None  #: variance of held-out trials explained by the forest; None with too few trials
    notes: list[str]  #: caveats


def importance_data(
    history: History, metric: str | None = None, epoch: int | None = None, seed: int = 0
) -> Importances:
    """Return the importance of all parameters for ``metric``, by default the experiment's; deterministic by ``seed``.

    ``epoch`` compares all trials after that epoch, which is fairer if some trials were stopped early. Raise UsageError
    for a metric or an epoch that no trial has.
    """
    metric = history.reported(metric)
    values = metric_values(history, metric, epoch)
    if epoch is not None and not values:
        last = max((row.epoch for trial in history.trials.values() for row in trial.epochs_done), default=0)
        raise UsageError(
            f"epoch={epoch}: no trial has a value of {metric} after that epoch; choose one from 1 to {last}"
        )
    trials = [trial for trial in history.trials.values() if trial.id in values]
    differing = parameters(trials)
    notes = _notes(history, values, epoch, differing)
    if len(trials) < FEWEST or not differing:
        return Importances(metric, len(trials), epoch, [], None, notes)
    names = [trial.id for trial in trials]
    if len(names) > MOST:
        notes.append(f"computed from {MOST} of {len(names)} trials, drawn at random")
        names = sorted(random.Random(seed).sample(names, MOST))
    explained, drops = _measure([_encode(parameter, names) for parameter in differing], values, names, seed)
    found = [
        Importance(parameter.name, *_estimate(column))
        for parameter, column in zip(differing, zip(*drops, strict=True), strict=True)
    ]
    if explained < _WEAK:
        known = f"{max(0.0, explained):.0%}"
        notes.append(f"the forest explains {known} of the variance of held-out trials: too little to trust this chart")
    found.sort(key=lambda entry: -entry.importance)
    return Importances(metric, len(trials), epoch, found, explained, notes)


def _notes(history: History, values: dict[str, float], epoch: int | None, differing: Sequence[Parameter]) -> list[str]:
    if len(values) < FEWEST:
        return [f"{plural(len(values), 'trial')} with a value: at least {FEWEST} are needed"]
    if not differing:
        return ["all trials have the same configuration"]
    notes = []
    if len(values) < 5 * len(differing):
        notes.append(f"{len(values)} trials are few for {plural(len(differing), 'parameter')}")
    lengths = {len(history.trials[trial].epochs_done) for trial in values}
    if epoch is None and max(lengths) > 1.5 * min(lengths):
        notes.append(
            f"trials trained for {min(lengths)} to {max(lengths)} epochs: epoch={min(lengths)} makes them comparable"
        )
    return notes


def _estimate(drops: Sequence[float]) -> tuple[float, float]:
    """Return the mean over repetitions and its standard error, corrected for trials shared by repetitions."""
    mean = math.fsum(drops) / len(drops)
    variance = math.fsum((drop - mean) ** 2 for drop in drops) / (len(drops) - 1)
    return mean, math.sqrt(variance * (1 / len(drops) + _ASIDE / (1 - _ASIDE)))


# ---------------------------------------------------------------------------------------------------- computation


@dataclass(frozen=True, slots=True)
class _Block:
    """The columns of one parameter, and a mask of the trials that have the parameter."""

    columns: Array  #: trials by columns: a place from 0 to 1, or an indicator for each category
    present: Array


def _encode(parameter: Parameter, trials: Sequence[str]) -> _Block:
    """Encode a parameter. A missing value becomes the median, so that the forest cannot see that it is missing."""
    import numpy as np

    places = np.array([math.nan if (p := parameter.place(trial)) is None else p for trial in trials])
    present = ~np.isnan(places)
    known = np.sort(places[present])
    alone = known[0] == known[-1]
    if alone:
        # With a single value, the only information is whether the parameter is set.
        return _Block(present[:, None].astype(float), np.ones(len(trials), bool))
    places = np.where(present, places, known[len(known) // 2])
    if parameter.scale.kind != "category":
        return _Block(places[:, None], present)
    options = np.unique(places)
    return _Block((places[:, None] == options).astype(float), present)


def _measure(
    blocks: Sequence[_Block], values: dict[str, float], trials: Sequence[str], seed: int
) -> tuple[float, list[list[float]]]:
    """Return the explained variance of held-out trials, and the importance by repetition and parameter."""
    import numpy as np

    target = np.clip([values[trial] for trial in trials], *fences([values[trial] for trial in trials]))
    table = np.hstack([block.columns for block in blocks])
    edges = np.cumsum([0, *(block.columns.shape[1] for block in blocks)])
    variance = float(np.var(target)) or 1.0
    aside = max(2, round(_ASIDE * len(trials)))
    explained, drops = [], []
    for repetition in range(_REPETITIONS):
        rng = np.random.default_rng((seed, repetition))
        order = rng.permutation(len(trials))
        test, train = order[:aside], order[aside:]
        forest = _Forest(table[train], target[train], rng)
        error = float(np.mean((forest.predict(table[test]) - target[test]) ** 2))
        explained.append(1 - error / variance)
        row = []
        for index, block in enumerate(blocks):
            columns = slice(edges[index], edges[index + 1])
            grown = [
                np.mean((forest.predict(_shuffled(table[test], columns, block.present[test], rng)) - target[test]) ** 2)
                for _ in range(_SHUFFLES)
            ]
            row.append((float(np.mean(grown)) - error) / (2 * variance))
        drops.append(row)
    return math.fsum(explained) / len(explained), drops


def _shuffled(table: Array, columns: slice, present: Array, rng: np.random.Generator) -> Array:
    """Return a copy of the rows, with one parameter's columns shuffled among the rows that have the parameter."""
    shuffled = table.copy()
    rows = present.nonzero()[0]
    shuffled[rows, columns] = table[rng.permutation(rows), columns]
    return shuffled


class _Forest:
    """A forest of randomised trees: each node tries a few random thresholds per column and keeps the best."""

    def __init__(self, table: Array, target: Array, rng: np.random.Generator) -> None:
        import numpy as np

        grown = [_grow(table, target, rng) for _ in range(_TREES)]
        size = max(len(tree) for tree in grown)
        # Columns of a node: column, threshold, left, right, value. A leaf is its own child.
        packed = np.zeros((_TREES, size, 5))
        for index, tree in enumerate(grown):
            packed[index, : len(tree)] = tree
        self._columns = packed[:, :, 0].astype(int)
        self._thresholds = packed[:, :, 1]
        self._children = packed[:, :, 2:4].astype(int)
        self._values = packed[:, :, 4]

    def predict(self, table: Array) -> Array:
        import numpy as np

        trees = np.arange(_TREES)[:, None]
        rows = np.arange(len(table))[None, :]
        at = np.zeros((_TREES, len(table)), int)
        while True:
            right = table[rows, self._columns[trees, at]] > self._thresholds[trees, at]
            below = self._children[trees, at, right.astype(int)]
            if np.array_equal(below, at):
                return np.asarray(self._values[trees, at].mean(axis=0))
            at = below


def _grow(table: Array, target: Array, rng: np.random.Generator) -> list[list[float]]:
    """Grow one tree and return its nodes, the root first."""
    import numpy as np

    nodes: list[list[float]] = [[]]
    todo = [(0, np.arange(len(target)))]
    while todo:
        here, rows = todo.pop()
        inside, wanted = table[rows], target[rows]
        nodes[here] = [0, 0.0, here, here, float(wanted.mean())]
        split = _split(inside, wanted, rng) if len(rows) >= 2 * _LEAF else None
        if split is None:
            continue
        column, threshold = split
        right = inside[:, column] > threshold
        left_child, right_child = len(nodes), len(nodes) + 1
        nodes += [[], []]
        nodes[here] = [column, threshold, left_child, right_child, 0.0]
        todo += [(left_child, rows[~right]), (right_child, rows[right])]
    return nodes


def _split(table: Array, target: Array, rng: np.random.Generator) -> tuple[int, float] | None:
    """Return the best of a few random thresholds per column, or None if no threshold separates the rows."""
    import numpy as np

    low, high = table.min(axis=0), table.max(axis=0)
    thresholds = low + (high - low) * rng.random((_THRESHOLDS, table.shape[1]))
    right = table[:, None, :] > thresholds
    above = right.sum(axis=0)
    below = len(target) - above
    splits = (above > 0) & (below > 0)
    if not splits.any() or target.min() == target.max():
        return None
    sums = np.tensordot(target, right, axes=1)
    gains = sums**2 / np.maximum(above, 1) + (target.sum() - sums) ** 2 / np.maximum(below, 1)
    best = np.unravel_index(np.argmax(np.where(splits, gains, -np.inf)), gains.shape)
    return int(best[1]), float(thresholds[best])


# ------------------------------------------------------------------------------------------------------- drawing

_WIDTH, _TOP, _BOTTOM, _ROW = 9.0, 1.1, 0.75, 0.42  #: inches


def draw_importance(
    history: History,
    path: str | os.PathLike[str] | None = None,
    metric: str | None = None,
    epoch: int | None = None,
    seed: int = 0,
) -> Figure:
    """Draw a bar per parameter, the most important on top. ``path`` ends in .png, .svg or .pdf."""
    data = importance_data(history, metric, epoch, seed)
    names = [shorten(entry.name, 28) for entry in data.parameters]
    left = max(0.9, 0.35 + 0.085 * max(map(len, names), default=0))
    below = _BOTTOM + 0.22 * len(data.notes)
    height = _TOP + below + max(1.0, _ROW * len(names))
    figure = paper(_WIDTH, height, history.name, _facts(data), left=0.35)
    axes = figure.add_axes((left / _WIDTH, below / height, 1 - (left + 0.9) / _WIDTH, 1 - (_TOP + below) / height))
    if names:
        _draw_bars(axes, data, names)
    else:
        axes.axis("off")
        axes.text(0.5, 0.5, "not enough data yet", transform=axes.transAxes, ha="center", color=MUTED)
    for line, note in enumerate(reversed(data.notes)):
        figure.text(0.35 / _WIDTH, (0.14 + 0.22 * line) / height, note, fontsize=8.5, color=MUTED, parse_math=False)
    save(figure, path)
    return figure


def _facts(data: Importances) -> list[str]:
    where = "at the best epoch" if data.epoch is None else f"after epoch {data.epoch}"
    facts = [f"importance for {data.metric} {where}", plural(data.trials, "trial")]
    if data.explained is not None:
        facts.append(f"the forest explains {max(0.0, data.explained):.0%} of held-out variance")
    return facts


def _draw_bars(axes: Axes, data: Importances, names: Sequence[str]) -> None:
    from matplotlib.ticker import PercentFormatter

    dress(axes, grid="x")
    entries, trusted = data.parameters, (data.explained or 0.0) >= _WEAK
    rows = range(len(entries))
    axes.barh(
        rows,
        [max(0.0, entry.importance) for entry in entries],
        height=0.62,
        color=[HIGHLIGHTS[0] if entry.clear and trusted else OTHERS for entry in entries],
    )
    for row, entry in zip(rows, entries, strict=True):
        ends = [max(0.0, entry.importance + sign * entry.error) for sign in (-1, 1)]
        axes.plot(ends, [row, row], color=INK, linewidth=1.1, solid_capstyle="butt")
        axes.annotate(
            f"{max(0.0, entry.importance):.0%} ± {entry.error:.0%}", (ends[1], row), (7, 0),
            textcoords="offset points", va="center", fontsize=8.5, color=INK if entry.clear and trusted else MUTED,
            annotation_clip=False,
        )  # fmt: skip
    axes.set_yticks(rows, names, color=INK, parse_math=False)
    axes.set_ylim(len(entries) - 0.5, -0.5)
    axes.set_xlim(0, 1.05 * max(0.05, *(entry.importance + entry.error for entry in entries)))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("fraction of the variance that depends on the parameter, with standard error", fontsize=9)
    axes.tick_params(axis="y", length=0)
