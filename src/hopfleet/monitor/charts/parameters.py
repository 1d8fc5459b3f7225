"""The hyper-parameters that differ between trials, each with a linear, logarithmic or categorical scale.

The journal holds configurations but not their space, so scales are derived from the values. Parallel coordinates,
importances and lineages share these scales, so that a learning rate is logarithmic in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any, Literal

from hopfleet.monitor.history import History, TrialHistory
from hopfleet.monitor.wording import flatten, natural_order, number, short

_LOG_RATIO = 8.0  #: largest over smallest value; a scale is linear below this ratio
_FEW = 7  #: distinct numbers; up to this count, each gets a tick of its own
_APART = 0.045  #: smallest distance between two ticks, as a fraction of the axis
_ODD = 1 / 3  #: fraction of the values that may be no numbers on an axis of numbers
_FEWEST = 3  #: distinct numbers; with fewer, values that are no numbers make an axis of categories
_LARGEST = 1e100  #: magnitude of a number that can be drawn
_EXTREME = 3.0  #: powers of ten beyond the quartiles; a number further out does not stretch the axis
_FAR_OUT = 3.0  #: interquartile ranges from the quartiles: Tukey's "far out"


@dataclass(frozen=True, slots=True)
class Scale:
    """A mapping of values to places between 0 and 1."""

    kind: Literal["linear", "log", "category"]
    low: float = 0.0
    high: float = 1.0
    options: tuple[str, ...] = ()  #: the labels of the categories
    keys: tuple[str, ...] = ()  #: the categories' values as ``repr``, in the same order
    points: tuple[float, ...] = ()  #: the numbers, if they are few

    def place(self, value: Any) -> float:
        """Return the place of a value: 0 for the lowest number, 1 for the highest; numbers outside are clipped."""
        if self.kind == "category":
            return (self.keys.index(repr(value)) + 0.5) / len(self.keys)
        low, high, here = (self._turn(each) for each in (self.low, self.high, value))
        return 0.5 if low == high else min(1.0, max(0.0, (here - low) / (high - low)))

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and labels, leaving out labels that would overlap."""
        if self.kind == "category":
            named = [((index + 0.5) / len(self.options), option) for index, option in enumerate(self.options)]
            return _thinned(named)
        if self.low == self.high:
            return [(0.5, number(self.low))]
        values = self.points or (_decades if self.kind == "log" else _steps)(self.low, self.high)
        return _thinned([(self.place(value), number(value)) for value in values])

    def _turn(self, value: float) -> float:
        return math.log(value) if self.kind == "log" else float(value)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One hyper-parameter: its flattened name, its scale, and its values in the trials that have it."""

    name: str
    scale: Scale
    values: dict[str, Any]  #: by trial

    def place(self, trial: str) -> float | None:
        """Return the place of the trial's value, or None if the trial lacks the parameter or its value is no number."""
        if trial not in self.values or (self.scale.kind != "category" and not drawable(self.values[trial])):
            return None
        return self.scale.place(self.values[trial])


def parameters(trials: Iterable[TrialHistory]) -> list[Parameter]:
    """Return the parameters that differ between trials, in the order of the configurations.

    Constants are left out. So is a conditional parameter with a single value, if another parameter determines whether
    it is set.
    """
    listed = list(trials)
    configs = {trial.id: flatten(trial.displayed) for trial in listed}
    names = dict.fromkeys(name for config in configs.values() for name in config)
    columns = {name: {trial: config[name] for trial, config in configs.items() if name in config} for name in names}
    chosen: list[str] = []
    for name, values in sorted(columns.items(), key=lambda item: len({repr(v) for v in item[1].values()}) == 1):
        alone = len({repr(value) for value in values.values()}) == 1
        if alone and (
            len(values) == len(listed) or any(_determines(columns[other], values, configs) for other in chosen)
        ):
            continue
        chosen.append(name)
    return [Parameter(name, scale_of(columns[name].values()), columns[name]) for name in columns if name in chosen]


def _determines(other: dict[str, Any], values: dict[str, Any], trials: Collection[str]) -> bool:
    """Whether the other parameter determines which trials have ``values``."""
    seen: dict[str, bool] = {}
    for trial in trials:
        key = repr(other[trial]) if trial in other else ""
        if seen.setdefault(key, trial in values) != (trial in values):
            return False
    # A parameter with a different value in nearly every trial would determine anything.
    return len(seen) <= len(trials) / 2


def scale_of(values: Iterable[Any]) -> Scale:
    """Return the scale on which the values are spread most evenly.

    A few values that are no numbers, such as NaN or a word, do not turn an axis of numbers into categories, and a
    number far beyond all others does not flatten them.
    """
    listed = list(values)
    numbers = [value for value in listed if drawable(value)]
    if len(numbers) < len(listed) * (1 - _ODD) or (len(numbers) < len(listed) and len(set(numbers)) < _FEWEST):
        keys = {repr(value): short(value) for value in listed}
        order = sorted(keys, key=lambda key: natural_order(keys[key]))
        return Scale("category", options=tuple(keys[key] for key in order), keys=tuple(order))
    near = _without_extremes(numbers)
    distinct = tuple(sorted({float(value) for value in near}))
    whole = all(isinstance(value, int) for value in near)
    points = distinct if len(distinct) <= _FEW and (whole or len(distinct) <= len(near) / 2) else ()
    return Scale("log" if _log_like(near) else "linear", distinct[0], distinct[-1], points=points)


def drawable(value: Any) -> bool:
    """Whether a value is a number that an axis can show."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST


def _without_extremes(numbers: Sequence[float]) -> list[float]:
    """Return the numbers without those whose magnitude is far beyond that of the others."""
    sizes = [math.log10(abs(each)) for each in numbers if each]
    if len(sizes) < 4:
        return list(numbers)
    first, _, third = quantiles(sizes, n=4, method="inclusive")
    reach = max(_EXTREME, _FAR_OUT * (third - first))
    return [each for each in numbers if not each or first - reach <= math.log10(abs(each)) <= third + reach]


def _log_like(values: Sequence[float]) -> bool:
    low, high = min(values), max(values)
    if low <= 0 or high / low < _LOG_RATIO:
        return False
    return _unevenness(values, math.log) < _unevenness(values, float)


def _unevenness(values: Sequence[float], turn: Callable[[float], float]) -> float:
    """Return the Kolmogorov-Smirnov distance of the values from an even spread between their ends."""
    turned = sorted(turn(value) for value in values)
    low, width, count = turned[0], turned[-1] - turned[0], len(turned)
    return max(
        max(abs((value - low) / width - index / count), abs((value - low) / width - (index + 1) / count))
        for index, value in enumerate(turned)
    )


def fences(values: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest value that is not far out: a diverged trial must not flatten the rest."""
    if len(values) < 4:
        return min(values), max(values)
    first, _, third = quantiles(values, n=4, method="inclusive")
    reach = _FAR_OUT * (third - first)
    near = [value for value in values if first - reach <= value <= third + reach]
    return min(near), max(near)


def metric_values(history: History, metric: str | None = None, epoch: int | None = None) -> dict[str, float]:
    """Return the finite values of a metric by trial, at each trial's best epoch or all at ``epoch``."""
    metric = metric or history.metric
    found: dict[str, float] = {}
    for trial in history.trials.values():
        row = trial.best if epoch is None else next((row for row in trial.epochs_done if row.epoch == epoch), None)
        value = row.metrics.get(metric, math.nan) if row else math.nan
        if drawable(value):
            found[trial.id] = value
    return found


def _steps(low: float, high: float) -> list[float]:
    """Return about five round numbers between two values."""
    rough = (high - low) / 5
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough)
    return [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Return the powers of ten between two values; over a short range also 2 and 5 times these powers."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if math.log10(high / low) >= 2.5 else (1, 2, 5)
    values = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    return [value for value in values if low <= value <= high]


def _thinned(ticks: list[tuple[float, str]]) -> list[tuple[float, str]]:
    kept: list[tuple[float, str]] = []
    for place, label in ticks:
        if not kept or place - kept[-1][0] >= _APART:
            kept.append((place, label))
    return kept
