"""A scenario in virtual time: who has prepared which rows, where each model is, and how long units take for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hopfleet.domain.messages import FormTeams, RunUnit
from hopfleet.domain.placement import TeamShape
from hopfleet.domain.trial import Trial
from hopfleet.errors import UsageError
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.fusion import Fusion
from hopfleet.simulation.backend import Failure, Simulated
from hopfleet.simulation.run import Listed, Simulation, error_of, run_trials
from hopfleet.simulation.scenario import Scenario, SimulatedNode


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """The outcome of a simulated scenario."""

    simulation: Simulation
    #: Partitions that were prepared, and the least number: each once an epoch on one node.
    prepared: int
    needed: int
    #: Hops from node to node.
    hops: int

    def as_json(self) -> dict[str, Any]:
        return {**self.simulation.as_json(), "prepared": self.prepared, "needed": self.needed, "hops": self.hops}


class _Cluster:
    """The devices of a scenario while it runs: who has prepared what, and where each model is."""

    def __init__(self, scenario: Scenario, noise: float, seed: int) -> None:
        self._scenario, self._error = scenario, error_of(seed, noise)
        self._nodes, self._teams = scenario.workers, scenario.teams
        #: The numbers of the nodes of each worker's devices.
        self._seats = [(number,) * size for number, node in enumerate(scenario.nodes) for size in node.sizes]
        self._rows = scenario.partition_rows
        #: When a node will have prepared a partition of an epoch; those that it used last come last.
        self._ready: dict[str, dict[tuple[int, int], float]] = {node.name: {} for node in scenario.nodes}
        self._places: dict[str, str] = {}
        self.backend: Simulated | None = None
        self.prepared = 0
        self.hops = 0

    def node(self, worker: str) -> SimulatedNode:
        """Return the node of a worker, or of the first member of its team."""
        return self._nodes[int(worker[1:]) - 1]

    def form(self, shapes: Sequence[TeamShape]) -> None:
        """Let teams join, each on the node with the most room left; one that no node has room for takes several."""
        assert self.backend is not None
        nodes, partitions = self._scenario.nodes, self._scenario.readable
        taken = Counter(seat for worker in self.backend.workers for seat in self._seats[int(worker[1:]) - 1])
        room = [node.devices - taken[number] for number, node in enumerate(nodes)]
        read = []
        for shape in shapes:
            first = max(range(len(nodes)), key=room.__getitem__)
            self._nodes.append(nodes[first])
            read.append(partitions[first])
            seats = []
            for _ in range(shape.devices):
                seats.append(first if room[first] else max(range(len(nodes)), key=room.__getitem__))
                room[seats[-1]] -= 1
            self._seats.append(tuple(seats))
        self.backend.form_teams(shapes, read)

    def expected(self, number: int, worker: str, partition: int) -> float:
        """Return the seconds of a unit's training."""
        assert self.backend is not None
        team = self._teams.speed(len(self.backend.placement(worker).devices))
        return self._rows[partition] / self._scenario.rates[number] / self.node(worker).speed / team

    def prior(self, number: int, worker: str, partition: int) -> float:
        """Return the same as far as the controller does not know it: how fast teams are, unless teams form."""
        if not self._scenario.switches:
            return self.expected(number, worker, partition)
        return self._rows[partition] / self._scenario.rates[number] / self.node(worker).speed

    def alone(self, command: RunUnit, trial: Trial) -> float:
        """Return the seconds of a unit; of a member of a flotilla, those of its training."""
        unit, node = command.unit, self.node(command.worker)
        seconds = self.expected(trial.number, command.worker, unit.partition)
        seconds *= self._error(trial.number, unit.epoch, unit.partition)
        if self._places.get(trial.id, node.name) != node.name:
            self.hops += 1
            seconds += self._scenario.model_bytes / self._scenario.bandwidth
        self._places[trial.id] = node.name
        return seconds if command.flotilla else self._with_rows(command, seconds)

    def together(self, commands: Sequence[RunUnit], seconds: Sequence[float]) -> float:
        """Return the seconds of a flotilla whose members step in turn."""
        return self._with_rows(commands[0], sum(seconds))

    def _with_rows(self, command: RunUnit, seconds: float) -> float:
        """Return the seconds of a unit with those to prepare its rows, unless the node has them."""
        assert self.backend is not None
        now, ready = self.backend.elapsed, self._ready[self.node(command.worker).name]
        key = command.unit.epoch, command.unit.partition
        when = ready.pop(key, math.inf)
        if when > now and self._scenario.prepare:
            self.prepared += 1
            seconds = max(seconds, self._rows[command.unit.partition] * self._scenario.prepare)
            when = min(when, now + seconds)
        ready[key] = when
        while len(ready) > self._scenario.kept:
            del ready[next(iter(ready))]
        return seconds


def run(
    scenario: Scenario, policy: str = "auto", *, noise: float = 0.0, failures: Sequence[Failure] = (), seed: int = 0
) -> ScenarioRun:
    """Run a scenario whose nodes are divided into teams with the controller of real experiments."""
    if not 0 <= noise < math.inf:
        raise UsageError(f"noise={noise!r}: must be a number of at least 0")
    cluster = _Cluster(scenario, noise, seed)
    workers, teams = len(scenario.workers), scenario.teams
    for failure in failures:
        if failure.worker not in {f"w{number + 1}" for number in range(workers)}:
            raise UsageError(f"failure of {failure.worker!r}: there are only w1 to w{workers}")
    backend = cluster.backend = Simulated(
        cluster.alone,
        failures=failures,
        together=cluster.together,
        partitions=[mine for node, mine in zip(scenario.nodes, scenario.readable, strict=True) for _ in node.sizes],
        teams=[teams.shape(size) for node in scenario.nodes for size in node.sizes],
        form_seconds=teams.form_seconds,
    )
    simulation = run_trials(
        Listed(len(scenario.rates), scenario.epochs, listens=False),
        backend,
        workers=workers,
        estimates=Estimates(scenario.partition_rows, cluster.prior),
        partitions=scenario.partitions,
        policy=policy,
        seed=seed,
        lower_bound=scenario.lower_bound,
        name="scenario",
        effects={FormTeams: lambda command: cluster.form(command.shapes)},
        fusion=Fusion(lambda config: None, size=1) if scenario.fuse else None,
        scaling=teams if scenario.switches else None,
        fleet=scenario.fleet if policy == "fleet" else None,
    )
    needed = scenario.epochs * scenario.partitions if scenario.prepare else 0
    return ScenarioRun(simulation, cluster.prepared, needed, cluster.hops)
