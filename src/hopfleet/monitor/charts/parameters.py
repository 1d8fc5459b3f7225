"""The hyper-parameters that tell trials apart, each with a scale: which values are numbers, logarithms or categories.

The journal has configurations and not the space that they came from, so a scale follows from the values. Parallel
coordinates, importances and lineages share it, so that a learning rate is logarithmic in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any, Literal

from hopfleet.monitor.history import History, TrialHistory
from hopfleet.monitor.wording import flatten, natural_order, number, short

_LOG_RATIO = 8.0  #: values that spread less than this are never logarithmic
_FEW = 7  #: so many different numbers have a tick each
_APART = 0.045  #: of the axis: ticks are not closer than this
_FAR_OUT = 3.0  #: interquartile ranges from the quartiles: Tukey's "far out"


@dataclass(frozen=True, slots=True)
class Scale:
    """Where values lie between 0 and 1."""

    kind: Literal["linear", "log", "category"]
    low: float = 0.0
    high: float = 1.0
    options: tuple[str, ...] = ()  #: the categories, as they read
    keys: tuple[str, ...] = ()  #: the same, as they are told apart
    points: tuple[float, ...] = ()  #: the numbers, if they are few

    def place(self, value: Any) -> float:
        """0 is the lowest value or the first category, 1 the highest or the last; beyond them it is cut off."""
        if self.kind == "category":
            return (self.keys.index(repr(value)) + 0.5) / len(self.keys)
        low, high, here = (self._turn(each) for each in (self.low, self.high, value))
        return 0.5 if low == high else min(1.0, max(0.0, (here - low) / (high - low)))

    def ticks(self) -> list[tuple[float, str]]:
        """Places and labels, none too close to another."""
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
    """One flattened name, its scale, and the values of the trials that have it."""

    name: str
    scale: Scale
    values: dict[str, Any]  #: by trial

    def place(self, trial: str) -> float | None:
        """Where the trial's value lies; None if it has none."""
        return self.scale.place(self.values[trial]) if trial in self.values else None


def parameters(trials: Iterable[TrialHistory]) -> list[Parameter]:
    """What differs between trials, in the order of their configurations.

    Constants are left out; so is a parameter that has one value wherever it is set, if another one says where that is.
    """
    listed = list(trials)
    configs = {trial.id: flatten(trial.config) for trial in listed}
    names = dict.fromkeys(name for config in configs.values() for name in config)
    columns = {name: {trial: config[name] for trial, config in configs.items() if name in config} for name in names}
    told: list[str] = []
    for name, values in sorted(columns.items(), key=lambda item: len({repr(v) for v in item[1].values()}) == 1):
        alone = len({repr(value) for value in values.values()}) == 1
        if alone and (len(values) == len(listed) or any(_tells(columns[other], values, configs) for other in told)):
            continue
        told.append(name)
    return [Parameter(name, scale_of(columns[name].values()), columns[name]) for name in columns if name in told]


def _tells(other: dict[str, Any], values: dict[str, Any], trials: Collection[str]) -> bool:
    """Whether the other's value, or that it has none, says if this one is set."""
    seen: dict[str, bool] = {}
    for trial in trials:
        key = repr(other[trial]) if trial in other else ""
        if seen.setdefault(key, trial in values) != (trial in values):
            return False
    # Nearly a value for every trial would tell anything.
    return len(seen) <= len(trials) / 2


def scale_of(values: Iterable[Any]) -> Scale:
    """The scale on which these values are spread most evenly."""
    listed = list(values)
    if not all(_is_number(value) for value in listed):
        keys = {repr(value): short(value) for value in listed}
        order = sorted(keys, key=lambda key: natural_order(keys[key]))
        return Scale("category", options=tuple(keys[key] for key in order), keys=tuple(order))
    distinct = tuple(sorted({float(value) for value in listed}))
    whole = all(isinstance(value, int) for value in listed)
    points = distinct if len(distinct) <= _FEW and (whole or len(distinct) <= len(listed) / 2) else ()
    return Scale("log" if _log_like(listed) else "linear", distinct[0], distinct[-1], points=points)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _log_like(values: Sequence[float]) -> bool:
    low, high = min(values), max(values)
    if low <= 0 or high / low < _LOG_RATIO:
        return False
    return _unevenness(values, math.log) < _unevenness(values, float)


def _unevenness(values: Sequence[float], turn: Callable[[float], float]) -> float:
    """How far the values are from an even spread between their ends (the Kolmogorov-Smirnov distance)."""
    turned = sorted(turn(value) for value in values)
    low, width, count = turned[0], turned[-1] - turned[0], len(turned)
    return max(
        max(abs((value - low) / width - index / count), abs((value - low) / width - (index + 1) / count))
        for index, value in enumerate(turned)
    )


def fences(values: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest value that are not far out; one diverged trial must not flatten all others."""
    if len(values) < 4:
        return min(values), max(values)
    first, _, third = quantiles(values, n=4, method="inclusive")
    reach = _FAR_OUT * (third - first)
    near = [value for value in values if first - reach <= value <= third + reach]
    return min(near), max(near)


def metric_values(history: History, metric: str | None = None, epoch: int | None = None) -> dict[str, float]:
    """The finite values of a metric by trial: at each trial's best epoch, or all at the same one."""
    metric = metric or history.metric
    found: dict[str, float] = {}
    for trial in history.trials.values():
        row = trial.best if epoch is None else next((row for row in trial.epochs_done if row.epoch == epoch), None)
        value = row.metrics.get(metric, math.nan) if row else math.nan
        if math.isfinite(value):
            found[trial.id] = value
    return found


def _steps(low: float, high: float) -> list[float]:
    """Round numbers, about five of them."""
    rough = (high - low) / 5
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough)
    return [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them where there are few."""
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
