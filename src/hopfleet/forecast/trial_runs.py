"""Trial runs: what strategies gain on the devices at hand, from a few mini-batches of each, and which one to take.

A strategy is timed on few devices; its rates on more devices follow from FLEET's equation 5 (``planner.rates``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.domain.trial import Config
from hopfleet.planner.rates import Rates

CLEAR = 1.05
"""How much faster a team must be than fewer devices: short measurements vary by some percent."""


@dataclass(frozen=True, slots=True)
class TrialRun:
    """The measurements of one configuration with one strategy; a rate of 0 means that it failed."""

    config: Config
    shape: TeamShape
    rows_per_second: float = 0.0
    #: Bytes on each device at the peak, as far as known.
    memory: int = 0
    error: str = ""
    #: Seconds to build the model.
    open_seconds: float = 0.0
    #: Rows of a batch, which the members of a team share; 0 if unknown.
    batch: int = 0
    #: Seconds until the worker was ready; 0 if unknown.
    start_seconds: float = 0.0
    #: Whether the members of the team were on different nodes.
    apart: bool = False
    #: The sort of the node; empty if there is only one sort.
    sort: str = ""

    @property
    def seconds_per_batch(self) -> float:
        """The seconds of a mini-batch; 0 if it failed, or if the size of batches is unknown."""
        return self.batch / self.rows_per_second if self.rows_per_second else 0.0

    @property
    def failure(self) -> str:
        """Why it failed, for display; a model that is too large does not fit."""
        return f"does not fit: {self.error}" if "out of memory" in self.error.lower() else self.error

    def as_json(self) -> dict[str, Any]:
        """Return the measurements, ready for JSON."""
        names = ("rows_per_second", "seconds_per_batch", "memory", "error", "open_seconds", "batch", "start_seconds")
        figures = {name: getattr(self, name) for name in names}
        return {
            "config": dict(self.config),
            "parallelism": str(self.shape),
            **figures,
            "apart": self.apart,
            "sort": self.sort,
        }

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> TrialRun:
        """Return the measurements that ``as_json`` described."""
        strategy, _, devices = content["parallelism"].partition(":")
        others = ("config", "parallelism", "seconds_per_batch")
        figures = {key: value for key, value in content.items() if key not in others}
        return cls(content["config"], TeamShape(strategy, int(devices or 1)), **figures)


@dataclass(frozen=True, slots=True)
class Choice:
    """The strategy to take for a configuration; None if all failed."""

    config: Config
    shape: TeamShape | None
    rows_per_second: float
    why: str


def choose(runs: Iterable[TrialRun], *, trials: int, devices: int) -> list[Choice]:
    """Return the best strategy for each configuration if ``trials`` trials share ``devices`` devices evenly."""
    share = max(1, devices // max(1, trials))
    by_config: dict[str, list[TrialRun]] = {}
    for run in runs:
        by_config.setdefault(repr(run.config), []).append(run)
    return [_chosen(some, share, devices) for some in by_config.values()]


def _chosen(runs: Sequence[TrialRun], share: int, devices: int) -> Choice:
    config, works = runs[0].config, [run for run in runs if run.rows_per_second > 0]
    if not works:
        return Choice(config, None, 0.0, f"no strategy works: {runs[0].error}")
    options = sorted(_options(works, share), key=lambda option: option[0].devices)
    if not options:
        fewest = min(works, key=lambda run: (run.shape.devices, -run.rows_per_second))
        why = f"needs {fewest.shape.devices} devices, and each trial can have {share} of {devices}"
        return Choice(config, fewest.shape, fewest.rows_per_second, why)
    shape, rate, measured = options[0]
    first_shape, first = shape, rate
    for option in options[1:]:
        # Among equal numbers of devices, the faster; among different ones, the clearly faster.
        if option[1] > rate * (1.0 if option[0].devices == shape.devices else CLEAR):
            shape, rate, measured = option
    place = f"each trial can have {share} of {devices} devices"
    if shape.devices == first_shape.devices:
        others = "no larger team is clearly faster" if share > shape.devices else "no faster strategy on as many"
        return Choice(config, shape, rate, f"{place}; {others}")
    estimate = "" if measured else ", by estimate"
    return Choice(config, shape, rate, f"{place}; {rate / first:.2f} times as fast as {first_shape}{estimate}")


def _options(runs: Sequence[TrialRun], share: int) -> Iterator[tuple[TeamShape, float, bool]]:
    """Yield shapes of at most ``share`` devices, their rates, and whether these were measured."""
    found = {run.shape: run.rows_per_second for run in runs}
    yield from ((shape, rate, True) for shape, rate in found.items() if shape.devices <= share)
    for strategy in dict.fromkeys(shape.strategy for shape in found if shape.devices > 1):
        profiled = growing([found.get(SINGLE, 0.0), *_rates(found, strategy)])
        if len(profiled) > 1:
            rates = Rates(strategy, profiled)
            for count in range(len(profiled) + 1, share + 1):
                if TeamShape(strategy, count) not in found:
                    yield TeamShape(strategy, count), rates(count), False


def _rates(found: dict[TeamShape, float], strategy: str) -> Iterator[float]:
    count = 2
    while (rate := found.get(TeamShape(strategy, count))) is not None:
        yield rate
        count += 1


def growing(rates: Sequence[float]) -> tuple[float, ...]:
    """Return the rates up to the first that is not above the one before."""
    kept: list[float] = []
    for rate in rates:
        if rate <= (kept[-1] if kept else 0.0):
            break
        kept.append(rate)
    return tuple(kept)
