"""The teams that a run starts with and may change to: chosen by dry runs, from the rates of trial runs.

A dry run simulates the experiment with the controller of real runs. It starts with one device for each trial, or with
a team for each trial where trials are fewer than devices; in both, idle devices join as teams when trials run out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.domain.trial import Config
from hopfleet.forecast.profiling import architecture
from hopfleet.forecast.scenario import Scenario, SimulatedNode
from hopfleet.forecast.trial_runs import CLEAR, TrialRun, growing
from hopfleet.monitor.wording import describe, makespan, size
from hopfleet.planner.fleet.rates import Rates
from hopfleet.planner.teams import Scaling, even_teams

DRY_UNITS = 2_000
"""Units of a dry run at most, about; longer experiments are simulated with fewer epochs and trials."""


WIDTH = 60
"""Characters of a configuration in the table of trial runs."""

ALONE, TEAMS = "one device for each trial", "a team for each trial"
"""How a run can start."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of an experiment, for dry runs."""

    #: Configurations of the first trials, as far as known.
    configs: Sequence[Config]
    trials: int
    epochs: int
    rows: int
    partitions: int
    #: Rows of the smallest batch; each member of a team takes a share of it.
    batch: int


@dataclass(frozen=True, slots=True)
class TeamChoice:
    """How the workers of a run train, and why."""

    #: How workers train, in turn.
    shapes: tuple[TeamShape, ...]
    why: str
    #: The number of workers; 0 if this choice does not concern it.
    workers: int = 0
    #: How fast teams are, if idle devices may join as teams when trials run out.
    scaling: Scaling | None = None
    runs: tuple[TrialRun, ...] = ()
    #: Seconds of each dry run.
    dry_runs: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the trial runs, the dry runs and the choice, ready for JSON."""
        chosen = {"shapes": [str(shape) for shape in self.shapes], "why": self.why, "switch": self.scaling is not None}
        return chosen | {"dry_runs": dict(self.dry_runs), "trial_runs": [run.as_json() for run in self.runs]}

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield names and values for display: the table of trial runs, the dry runs and the choice."""
        for number, run in enumerate(self.runs):
            rate = f"{run.rows_per_second:,.0f} rows/s, {size(run.memory)}" if run.rows_per_second else run.error
            which = describe(run.config, list(run.config), WIDTH)
            yield "" if number else "trial runs", f"{str(run.shape).ljust(8)}{rate} ({which})"
        for number, (name, seconds) in enumerate(self.dry_runs.items()):
            yield "" if number else "dry runs", f"{name}: {makespan(seconds)}"
        names = " + ".join(map(str, self.shapes)) + ", then teams: " if self.scaling is not None else ""
        yield "parallelism", names + self.why


def choose_teams(runs: Sequence[TrialRun], extent: Size, devices: int, form_seconds: float) -> TeamChoice:
    """Choose how an experiment trains on some devices, from trial runs of its classes of configurations.

    ``form_seconds`` pass until the processes of a new team have met; building the model comes on top.
    """
    given = tuple(runs)
    rates = _rates(given)
    if SINGLE not in rates:
        return _necessary(given, rates, devices)
    scaling = _scaling(given, rates, extent.batch, form_seconds)
    if scaling is None:
        return TeamChoice((SINGLE,), _no_gain(given, rates), devices, runs=given)
    sizes = even_teams(extent.trials, devices, scaling)
    gain = f"{scaling.shape(2)} is {scaling.speed(2):.2f} times as fast as one device"
    alone = _dry_run(given, extent, devices, (1,) * devices, scaling)
    dry_runs = {ALONE: alone}
    if max(sizes) > 1:
        dry_runs[TEAMS] = together = _dry_run(given, extent, devices, sizes, scaling)
        if together < alone:
            found = f"a dry run takes {makespan(together)} with {TEAMS}, {makespan(alone)} with {ALONE}"
            shapes = tuple(map(scaling.shape, sizes))
            return TeamChoice(shapes, f"{found}; {gain}", len(sizes), scaling, given, dry_runs)
    why = f"{extent.trials} trials keep {devices} devices busy; when fewer are left, teams may form, since {gain}"
    return TeamChoice((SINGLE,), why, devices, scaling, given, dry_runs)


def _rates(runs: Sequence[TrialRun]) -> dict[TeamShape, float]:
    """Return rows per second of the shapes that train every class: all classes after another, with as many rows."""
    by_shape: dict[TeamShape, list[float]] = {}
    for run in runs:
        by_shape.setdefault(run.shape, []).append(run.rows_per_second)
    return {shape: 1 / fmean(1 / rate for rate in found) for shape, found in by_shape.items() if min(found) > 0}


def _necessary(runs: tuple[TrialRun, ...], rates: Mapping[TeamShape, float], devices: int) -> TeamChoice:
    """Return the choice if some class does not train on one device."""
    failed = next(run for run in runs if run.shape == SINGLE and not run.rows_per_second)
    if not rates:
        why = f"one device each, since no strategy trains every class of configurations: {failed.error}"
        return TeamChoice((SINGLE,), why, devices, runs=runs)
    shape = max(rates, key=lambda shape: rates[shape] / shape.devices)
    why = f"{shape}, since a class of configurations does not train on one device: {failed.error}"
    return TeamChoice((shape,), why, max(1, devices // shape.devices), runs=runs)


def _scaling(
    runs: Sequence[TrialRun], rates: Mapping[TeamShape, float], most: int, form_seconds: float
) -> Scaling | None:
    """Return how fast teams of the best strategy are; None if two devices are not clearly faster than one."""
    pairs = {shape: rate for shape, rate in rates.items() if shape.devices == 2}
    best = max(pairs, key=lambda shape: pairs[shape], default=SINGLE)
    profiled = growing([rates[SINGLE], pairs.get(best, 0.0)])
    if len(profiled) < 2 or profiled[1] < CLEAR * profiled[0]:
        return None
    opening = max(run.open_seconds for run in runs if run.shape == best)
    return Scaling(best.strategy, Rates(best.strategy, profiled), form_seconds + opening, most)


def _no_gain(runs: Sequence[TrialRun], rates: Mapping[TeamShape, float]) -> str:
    """Return why no team is of use."""
    if pairs := [shape for shape in rates if shape.devices > 1]:
        best = max(pairs, key=lambda shape: rates[shape])
        return f"one device each: {best} is only {rates[best] / rates[SINGLE]:.2f} times as fast as one device"
    failed = next((run for run in runs if run.shape != SINGLE), None)
    return "one device each" if failed is None else f"one device each: {failed.shape} failed: {failed.error}"


def _dry_run(runs: Sequence[TrialRun], extent: Size, devices: int, teams: tuple[int, ...], scaling: Scaling) -> float:
    """Return the makespan of an experiment that starts with these teams."""
    alone = {architecture(run.config): run.rows_per_second for run in runs if run.shape == SINGLE}
    trials = min(extent.trials, max(4 * devices, DRY_UNITS // (extent.partitions * extent.epochs)))
    usual = fmean(alone.values())
    known = [alone.get(architecture(config), usual) for config in extent.configs[:trials]]
    epochs = max(1, min(extent.epochs, DRY_UNITS // (trials * extent.partitions)))
    node = SimulatedNode("this machine", sum(teams), teams=teams)
    scenario = Scenario(
        (node,),
        (*known, *[usual] * (trials - len(known))),
        extent.rows,
        extent.partitions,
        epochs,
        fuse=False,
        scaling=scaling.rates.profiled,
        form=scaling.form_seconds,
        most=scaling.most,
    )
    return scenario.simulate().simulation.makespan * (extent.trials * extent.epochs) / (trials * epochs)
