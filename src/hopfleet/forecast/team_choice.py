"""The teams that a run starts with and may change to: chosen by dry runs, from the rates of trial runs.

A dry run simulates the experiment with the controller of real runs. It starts with one device for each trial, or with
teams where trials are fewer than devices; in both, idle devices join as teams when trials run out. On a cluster, dry
runs tell how to divide the devices of each node, and whether the members of a team may be on several nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.domain.trial import Config
from hopfleet.forecast.profiling import architecture
from hopfleet.forecast.trial_runs import CLEAR, TrialRun, growing
from hopfleet.monitor.wording import describe, makespan, milliseconds, size
from hopfleet.planner.divisions import divisions
from hopfleet.planner.fleet.allocation import Fleet
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import Scaling, even_teams
from hopfleet.simulation import layouts
from hopfleet.simulation.layouts import DeviceGroups, simulate_scenario
from hopfleet.simulation.scenario import Scenario, SimulatedNode

DRY_UNITS = 2_000
"""Units of a dry run at most, about; longer experiments are simulated with fewer epochs and trials."""


NODE_UNITS = 240
"""Units of a dry run on several nodes at most, about: these are more dry runs, and each decision takes longer."""

RULE, MANY = "match-reserve", "longest-remaining"
"""Policies of dry runs on several nodes, where ``auto`` would take longer: of few trials, and of many."""

WIDTH = 60
"""Characters of a configuration in the table of trial runs."""

ALONE, TEAMS = "one device for each trial", "a team for each trial"
"""How a run can start."""

WITHIN, ACROSS = "within nodes", "across nodes"
"""Where the members of a team can be."""


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
    #: The node of each worker; empty if workers may be anywhere.
    homes: tuple[str, ...] = ()
    #: Whether all members of a team are on one node of a cluster.
    one_node: bool = False
    #: What is known about the rates of trials, if trials get numbers of devices in rounds.
    fleet: Fleet | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the trial runs, the dry runs and the choice, ready for JSON."""
        chosen = {"shapes": [str(shape) for shape in self.shapes], "why": self.why, "switch": self.scaling is not None}
        chosen["homes"] = list(self.homes)
        return chosen | {"dry_runs": dict(self.dry_runs), "trial_runs": [run.as_json() for run in self.runs]}

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield names and values for display: the table of trial runs, the dry runs and the choice."""
        for number, run in enumerate(self.runs):
            batch, rate = milliseconds(run.seconds_per_batch), f"{run.rows_per_second:,.0f} rows/s"
            told = f"{batch} a batch, {rate}, {size(run.memory)}" if run.rows_per_second else run.failure
            which = describe(run.config, list(run.config), WIDTH)
            told += (f", members {ACROSS}" if run.apart else "") + (f", on {run.sort}" if run.sort else "")
            yield "" if number else "trial runs", f"{str(run.shape).ljust(8)}{told} ({which})"
        for number, (name, seconds) in enumerate(self.dry_runs.items()):
            yield "" if number else "dry runs", f"{name}: {makespan(seconds)}"
        names = " + ".join(map(str, self.shapes)) + ", then teams: " if self.scaling is not None else ""
        yield "parallelism", names + self.why


@dataclass(frozen=True, slots=True)
class Nodes:
    """The devices of a machine, or of each node of a cluster."""

    devices: Mapping[str, int]
    #: Nodes that can read each partition; 0 for all.
    replicas: int = 0
    #: The sort of each node; nodes of one sort are equally fast.
    sorts: Mapping[str, str] = field(default_factory=dict)
    #: How fast a device of each sort is, compared with one of the sort on which teams were tried.
    speeds: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.devices.values())

    @property
    def examples(self) -> dict[str, str]:
        """A node of each sort, by the sort: one with the most devices; nodes with more devices come first."""
        found: dict[str, str] = {}
        for name in sorted(self.devices, key=lambda name: -self.devices[name]):
            found.setdefault(self.sorts.get(name, ""), name)
        return found

    def speed(self, name: str) -> float:
        """Return how fast a device of a node is."""
        return self.speeds.get(self.sorts.get(name, ""), 1.0)

    def simulated(self, layout: DeviceGroups) -> tuple[SimulatedNode, ...]:
        """Return the nodes, divided into these teams."""
        named = zip(self.devices.items(), layout, strict=True)
        return tuple(SimulatedNode(name, count, self.speed(name), teams=teams) for (name, count), teams in named)

    def homes(self, layout: DeviceGroups) -> tuple[str, ...]:
        """Return the node of each team."""
        return tuple(name for name, teams in zip(self.devices, layout, strict=True) for _ in teams)


@dataclass(frozen=True, slots=True)
class _Start:
    """A way to start a run, and the seconds of its dry run."""

    name: str
    sizes: tuple[int, ...]
    scaling: Scaling
    seconds: float
    homes: tuple[str, ...] = ()


def choose_teams(runs: Sequence[TrialRun], extent: Size, nodes: Nodes, form_seconds: float) -> TeamChoice:
    """Choose how an experiment trains on some devices, from trial runs of its classes of configurations.

    ``form_seconds`` pass until the processes of a new team have met; building the model comes on top. On several nodes,
    a team has the devices of one node, unless it was tried across nodes and dry runs find that to be better.
    """
    given = tuple(runs)
    if SINGLE not in _rates(given):
        return _necessary(given, nodes)
    usual = given[0].sort
    near = [run for run in given if not run.apart and run.sort == usual]
    far = [run for run in given if run.apart or (run in near and run.shape == SINGLE)] if len(nodes.devices) > 1 else []
    nodes = replace(nodes, speeds=_speeds(given))
    within = _scaling(near, extent.batch, form_seconds)
    if within is not None and len(nodes.devices) > 1:
        within = replace(within, nodes=tuple(nodes.devices.values()))
    across = _scaling(far, extent.batch, form_seconds)
    starts = [*_starts_within(near, extent, nodes, within), *_starts_across(far, extent, nodes, across)]
    if not starts:
        why = _no_gain(near if any(run.shape.devices > 1 for run in near) else given)
        return TeamChoice((SINGLE,), why, nodes.total, runs=given)
    dry_runs = {start.name: start.seconds for start in starts}
    best = min(starts, key=lambda start: start.seconds)
    gain = f"{best.scaling.shape(2)} is {best.scaling.speed(2):.2f} times as fast as one device"
    alone = min(start.seconds for start in starts if max(start.sizes) == 1)
    if max(best.sizes) > 1:
        found = f"a dry run takes {makespan(best.seconds)} with {best.name}, {makespan(alone)} with {ALONE}"
        shapes = tuple(map(best.scaling.shape, best.sizes))
        return TeamChoice(
            shapes, f"{found}; {gain}", len(shapes), best.scaling, given, dry_runs, best.homes, bool(best.homes)
        )
    why = f"{extent.trials} trials keep {nodes.total} devices busy; when fewer are left, teams may form, since {gain}"
    return TeamChoice((SINGLE,), why, nodes.total, best.scaling, given, dry_runs, one_node=bool(best.scaling.nodes))


def _starts_within(runs: Sequence[TrialRun], extent: Size, nodes: Nodes, scaling: Scaling | None) -> Iterator[_Start]:
    """Yield the ways to start with one device for each trial, and with teams that are each on one node."""
    if scaling is None:
        return
    several = len(nodes.devices) > 1
    alone = tuple((1,) * count for count in nodes.devices.values())
    name = f"{ALONE}, later teams {WITHIN}" if several else ALONE
    seconds = _dry_run(runs, extent, nodes.simulated(alone), scaling, nodes.replicas)
    yield _Start(name, (1,) * nodes.total, scaling, seconds)
    scenario, scale = _scenario(runs, extent, nodes.simulated(alone), scaling, nodes.replicas)
    if not several:
        even = even_teams(extent.trials, nodes.total, scaling)
        work = [1 / rate for rate in scenario.rates]
        best = divisions(work, nodes.total, scaling.speed, scaling.most or nodes.total, 1)
        for sizes in dict.fromkeys([even, *best]):
            if max(sizes) > 1:
                seconds = _dry_run(runs, extent, nodes.simulated((sizes,)), scaling, nodes.replicas)
                name = TEAMS if sizes == even else f"teams of {' + '.join(map(str, sizes))} devices"
                yield _Start(name, sizes, scaling, seconds)
        return
    if extent.trials >= nodes.total:
        return
    for layout, seconds in layouts.dry_runs(scenario, RULE).items():
        if layout != alone:
            sizes = tuple(size for teams in layout for size in teams)
            told = " | ".join(" + ".join(map(str, teams)) for teams in layout)
            yield _Start(f"teams {WITHIN}, of {told} devices", sizes, scaling, seconds * scale, nodes.homes(layout))


def _starts_across(runs: Sequence[TrialRun], extent: Size, nodes: Nodes, scaling: Scaling | None) -> Iterator[_Start]:
    """Yield the ways to start if the members of a team may be on several nodes."""
    if scaling is None:
        return
    alone = nodes.simulated(tuple((1,) * count for count in nodes.devices.values()))
    seconds = _dry_run(runs, extent, alone, scaling, nodes.replicas)
    yield _Start(f"{ALONE}, later teams {ACROSS}", (1,) * nodes.total, scaling, seconds)
    sizes = even_teams(extent.trials, nodes.total, scaling)
    if max(sizes) > 1:
        # The first member of each team reads what its node has.
        slowest = min(map(nodes.speed, nodes.devices))
        teams = tuple(
            SimulatedNode(f"team {number}", size, slowest, teams=(size,)) for number, size in enumerate(sizes, 1)
        )
        told = " + ".join(map(str, sizes))
        seconds = _dry_run(runs, extent, teams, scaling, nodes.replicas)
        yield _Start(f"teams {ACROSS}, of {told} devices", sizes, scaling, seconds)


def _rates(runs: Sequence[TrialRun]) -> dict[TeamShape, float]:
    """Return rows per second of the shapes that train every class: all classes after another, with as many rows."""
    by_shape: dict[TeamShape, list[float]] = {}
    for run in runs:
        by_shape.setdefault(run.shape, []).append(run.rows_per_second)
    return {shape: 1 / fmean(1 / rate for rate in found) for shape, found in by_shape.items() if min(found) > 0}


def _speeds(runs: Sequence[TrialRun]) -> dict[str, float]:
    """Return how fast one device of each sort is, compared with the sort of the first run."""
    by_sort: dict[str, list[TrialRun]] = {}
    for run in runs:
        if run.shape == SINGLE:
            by_sort.setdefault(run.sort, []).append(run)
    rates = {sort: _rates(some)[SINGLE] for sort, some in by_sort.items()}
    return {sort: rate / rates[runs[0].sort] for sort, rate in rates.items()}


def _necessary(runs: tuple[TrialRun, ...], nodes: Nodes) -> TeamChoice:
    """Return the choice if some class does not train on one device."""
    rates = _rates(runs)
    failed = next(run for run in runs if run.shape == SINGLE and not run.rows_per_second)
    if not rates:
        why = f"one device each, since no strategy trains every class of configurations: {failed.error}"
        return TeamChoice((SINGLE,), why, nodes.total, runs=runs)
    shape = max(rates, key=lambda shape: rates[shape] / shape.devices)
    why = f"{shape}, since a class of configurations does not train on one device: {failed.error}"
    apart = any(run.apart for run in runs if run.shape == shape)
    counts = [nodes.total] if apart else list(nodes.devices.values())
    workers = max(1, sum(count // shape.devices for count in counts))
    return TeamChoice((shape,), why, workers, runs=runs, one_node=len(nodes.devices) > 1 and not apart)


def _scaling(runs: Sequence[TrialRun], most: int, form_seconds: float) -> Scaling | None:
    """Return how fast teams of the best strategy are; None if two devices are not clearly faster than one."""
    rates = _rates(runs)
    pairs = {shape: rate for shape, rate in rates.items() if shape.devices == 2}
    best = max(pairs, key=lambda shape: pairs[shape], default=SINGLE)
    profiled = growing([rates.get(SINGLE, 0.0), pairs.get(best, 0.0)])
    if len(profiled) < 2 or profiled[1] < CLEAR * profiled[0]:
        return None
    opening = max(run.open_seconds for run in runs if run.shape == best)
    return Scaling(best.strategy, Rates(best.strategy, profiled), form_seconds + opening, most)


def _no_gain(runs: Sequence[TrialRun]) -> str:
    """Return why no team is of use."""
    rates = _rates(runs)
    if pairs := [shape for shape in rates if shape.devices > 1]:
        best = max(pairs, key=lambda shape: rates[shape])
        return f"one device each: {best} is only {rates[best] / rates[SINGLE]:.2f} times as fast as one device"
    failed = next((run for run in runs if run.shape != SINGLE), None)
    return "one device each" if failed is None else f"one device each: {failed.shape} failed: {failed.error}"


def _dry_run(
    runs: Sequence[TrialRun], extent: Size, nodes: tuple[SimulatedNode, ...], scaling: Scaling, replicas: int
) -> float:
    """Return the makespan of an experiment that starts with these teams."""
    scenario, scale = _scenario(runs, extent, nodes, scaling, replicas)
    several, many = len(nodes) > 1, extent.trials >= sum(node.devices for node in nodes)
    return (
        simulate_scenario(scenario, MANY if several and many else RULE if several else "auto").simulation.makespan
        * scale
    )


def _scenario(
    runs: Sequence[TrialRun], extent: Size, nodes: tuple[SimulatedNode, ...], scaling: Scaling, replicas: int
) -> tuple[Scenario, float]:
    """Return an experiment to simulate, and how many times longer the real one is."""
    devices = sum(node.devices for node in nodes)
    alone = {architecture(run.config): run.rows_per_second for run in runs if run.shape == SINGLE}
    units, most = (DRY_UNITS, 4 * devices) if len(nodes) == 1 else (NODE_UNITS, devices)
    trials = min(extent.trials, max(most, units // (extent.partitions * extent.epochs)))
    partitions = extent.partitions if len(nodes) == 1 else min(extent.partitions, max(2 * len(nodes), units // trials))
    usual = fmean(alone.values())
    known = [alone.get(architecture(config), usual) for config in extent.configs[:trials]]
    epochs = max(1, min(extent.epochs, units // (trials * partitions)))
    scenario = Scenario(
        nodes,
        (*known, *[usual] * (trials - len(known))),
        extent.rows,
        partitions,
        epochs,
        fuse=False,
        scaling=scaling.rates.profiled,
        form=scaling.form_seconds,
        most=scaling.most,
        replicas=replicas if len(nodes) > 1 else 0,
        spanning=not scaling.nodes,
    )
    return scenario, (extent.trials * extent.epochs) / (trials * epochs)
