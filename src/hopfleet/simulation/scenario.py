"""Scenarios: clusters of nodes with devices, networks with rates, and rows that take time to prepare, in virtual time.

A file describes a scenario, in JSON or YAML::

    rows: 100000
    partitions: 8
    epochs: 4
    prepare: 0.001          # seconds to prepare a row, before a network can train on it (0)
    kept: 4                 # prepared partitions that a node keeps for others (4)
    fuse: true              # whether a device trains several networks on the same batches (true)
    model_bytes: 100.0e6    # of each network; it takes this many bytes to another node (0)
    bandwidth: 1.25e9       # bytes per second between nodes
    scaling: [1, 1.9, 2.7]  # rates of teams of 1, 2, 3 ... devices; those of more devices follow (none: no teams)
    form: 0.5               # seconds to form teams (0)
    switch: true            # whether idle devices join as teams when networks run out (true)
    spanning: false         # whether those teams may have devices of several nodes (false)
    sharded: false          # whether each node has a partition of its own, sized by its devices (false)
    replicas: 0             # nodes that can read each partition; 0: all of them (0)
    nodes:
      - {name: a, devices: 4, team: 2}   # two workers of two devices each
      - {name: b, devices: 2, speed: 0.5}
    networks:
      - {rate: 1500, count: 6}   # rows per second on a device of speed 1
      - {rate: 400}

The devices of a node with ``team: auto`` are divided into the teams that dry runs find to be best.
A device prepares rows beside training, so a unit takes as long as the longer of the two. The devices of a node share
what one of them has prepared.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopfleet.errors import UsageError
from hopfleet.planner.fleet.allocation import Fleet
from hopfleet.planner.nodes import NodeShop, NodeStrategy, lower_bound
from hopfleet.planner.partitions import place_partitions
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import Scaling
from hopfleet.support.documents import flag, number, read_document, whole_number

NUMBERS = {
    "rows": None,
    "partitions": None,
    "epochs": 1,
    "prepare": 0,
    "kept": 4,
    "model_bytes": 0,
    "bandwidth": 1.25e9,
    "form": 0,
    "replicas": 0,
}
"""What a file says in numbers, and what holds if it does not."""

WHOLE = {"rows", "partitions", "epochs", "kept", "replicas"}
"""The numbers without a fraction."""

FLAGS = {"fuse": True, "switch": True, "sharded": False, "spanning": False}
"""What a file says by true or false, and what holds if it does not."""

NETWORKS = 1_000_000
"""The networks of a scenario at most."""


def is_scenario(path: str | os.PathLike[str]) -> bool:
    """Whether a file describes a scenario, and not plain unit times."""
    return "times" not in read_document(path)


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A node of a scenario; ``speed`` is that of each device, and ``team`` the number of devices of each worker.

    Workers of different sizes are ``teams``. A ``team`` of 0 leaves the sizes to dry runs.
    """

    name: str
    devices: int = 1
    speed: float = 1.0
    team: int = 1
    teams: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of devices of the node's workers."""
        return self.teams or (self.team or 1,) * (self.devices // (self.team or 1))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster, and networks to train on it."""

    nodes: tuple[SimulatedNode, ...]
    #: Rows per second of each network on a device of speed 1.
    rates: tuple[float, ...]
    rows: int
    partitions: int
    epochs: int = 1
    prepare: float = 0.0
    kept: int = 4
    model_bytes: float = 0.0
    bandwidth: float = 1.25e9
    fuse: bool = True
    #: Rates of teams of 1, 2, 3 ... devices; only their ratios matter. Without rates, there are no teams.
    scaling: tuple[float, ...] = ()
    form: float = 0.0
    switch: bool = True
    #: Devices of the largest team that may form; 0 for no limit.
    most: int = 0
    #: Whether each node has a partition of its own, sized by the speed of all its devices, and reads no other.
    sharded: bool = False
    #: Nodes that can read each partition, with rows in proportion to their speed; 0 for all nodes.
    replicas: int = 0
    #: Whether the members of a team that forms may be on several nodes.
    spanning: bool = False

    def __post_init__(self) -> None:
        if not self.nodes or not self.rates:
            raise UsageError("a scenario needs at least one node and one network")
        for node in self.nodes:
            if node.devices < 1 or not 0 < node.speed < math.inf:
                raise UsageError(
                    f"node {node.name}: {node.devices} devices of speed {node.speed:g}: must be at least one, above 0"
                )
        self._check_teams()
        for place, rate in enumerate(self.rates, 1):
            if not 0 < rate < math.inf:
                raise UsageError(f"network {place}: {rate:g} rows per second: must be above 0 and finite")
        for name in ("partitions", "epochs", "kept"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.rows < self.partitions:
            raise UsageError(f"rows={self.rows}: must be at least the number of partitions ({self.partitions})")
        for name in ("prepare", "model_bytes"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name):g}: must be finite and at least 0")
        if self.replicas < 0 or (self.replicas and self.sharded):
            raise UsageError(f"replicas={self.replicas}: must be at least 0, and 0 if sharded: true")
        if not self.bandwidth > 0:
            raise UsageError(f"bandwidth={self.bandwidth:g} bytes per second: must be above 0")

    def _check_teams(self) -> None:
        for node in self.nodes:
            odd = node.team < 0 or node.devices % (node.team or 1)
            if odd or ((not node.team or max(node.sizes) > 1) and not self.scaling):
                raise UsageError(
                    f"node {node.name}: team={node.team} of {node.devices} devices: must divide the devices; teams "
                    "need scaling, as in scaling: [1, 1.9]"
                )
        if self.scaling and (self.scaling[0] <= 0 or sorted(set(self.scaling)) != list(self.scaling)):
            raise UsageError(f"scaling={list(self.scaling)}: rates must be above 0 and grow with each device")
        if not 0 <= self.form < math.inf:
            raise UsageError(f"form={self.form:g} seconds: must be finite and at least 0")
        if self.sharded and self.partitions != len(self.nodes):
            raise UsageError(
                f"partitions={self.partitions}: a sharded scenario has one for each node; use {len(self.nodes)}"
            )

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Scenario:
        """Return the scenario that a file's content describes."""
        known = {*NUMBERS, *FLAGS, "nodes", "networks", "scaling"}
        if unknown := sorted(map(str, content.keys() - known)):
            raise UsageError(f"{', '.join(unknown)}: unknown in a scenario; there are {', '.join(sorted(known))}")
        nodes = tuple(
            SimulatedNode(
                str(each.get("name", f"n{place}")),
                whole_number(each.get("devices", 1), f"devices of node {place}"),
                number(each.get("speed", 1.0), f"speed of node {place}"),
                0 if each.get("team") == "auto" else whole_number(each.get("team", 1), f"team of node {place}"),
            )
            for place, each in enumerate(_listed(content, "nodes", {"name", "devices", "speed", "team"}), 1)
        )
        rates: list[float] = []
        for place, each in enumerate(_listed(content, "networks", {"rate", "count"}), 1):
            count = whole_number(each.get("count", 1), f"count of network {place}")
            if count + len(rates) > NETWORKS:
                raise UsageError(f"count of network {place}: {count:,}: must be at most {NETWORKS:,} for all networks")
            rates += [number(each.get("rate"), f"rate of network {place}")] * count
        values: dict[str, Any] = {
            name: (whole_number if name in WHOLE else number)(content.get(name, usual), name)
            for name, usual in NUMBERS.items()
        }
        values |= {name: flag(content.get(name, usual), name) for name, usual in FLAGS.items()}
        scaling = content.get("scaling", [])
        if not isinstance(scaling, list):
            raise UsageError(f"scaling={scaling!r}: must be a list of rates, as in [1, 1.9]")
        values["scaling"] = tuple(number(rate, "scaling") for rate in scaling)
        return cls(nodes, tuple(rates), **values)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Scenario:
        """Read a JSON or YAML file."""
        return cls.of(read_document(path))

    @property
    def switches(self) -> bool:
        """Whether idle devices join as teams."""
        return self.switch and bool(self.scaling)

    @property
    def teams(self) -> Scaling:
        """How fast teams are."""
        nodes = () if self.spanning or len(self.nodes) == 1 else tuple(node.devices for node in self.nodes)
        return Scaling("team", Rates("of a team", self.scaling or (1.0,)), self.form, self.most, nodes)

    @property
    def fleet(self) -> Fleet | None:
        """What is known about rates, if teams can form and all devices are alike; None otherwise."""
        alike = len({node.speed for node in self.nodes}) == 1 and not self.teams.nodes and not self.replicas
        if not alike or not self.switches or self.sharded:
            return None
        speed = self.nodes[0].speed
        tables = [
            Rates(f"{rate:g} rows/s", tuple(rate * speed * each / self.scaling[0] for each in self.scaling))
            for rate in self.rates
        ]
        return Fleet(self.teams, lambda trial: tables[trial.number], self.rows)

    @property
    def workers(self) -> list[SimulatedNode]:
        """The node of each worker."""
        return [node for node in self.nodes for _ in node.sizes]

    @property
    def shares(self) -> list[float]:
        """The part of all rows on each node, if it has a partition of its own."""
        capacities = [node.devices * node.speed for node in self.nodes]
        return [capacity / sum(capacities) for capacity in capacities]

    @property
    def partition_rows(self) -> list[float]:
        """The rows of each partition."""
        return (
            [self.rows * share for share in self.shares]
            if self.sharded
            else [self.rows / self.partitions] * (self.partitions)
        )

    @property
    def readable(self) -> list[tuple[int, ...] | None]:
        """The partitions that each node can read; None for all."""
        if self.sharded:
            return [(number,) for number in range(len(self.nodes))]
        if not self.replicas:
            return [None] * len(self.nodes)
        power = {str(number): node.devices * node.speed for number, node in enumerate(self.nodes)}
        return list(place_partitions(self.partition_rows, power, self.replicas).values())

    def _shop(self) -> NodeShop:
        """Return one epoch as a problem of the node-level planners: any team at each node of a sharded scenario."""
        speed = self.teams.speed
        return NodeShop(
            tuple(node.devices for node in self.nodes),
            tuple(
                tuple(
                    tuple(
                        NodeStrategy(f"{size} devices", size, rows / rate / node.speed / speed(size))
                        for size in range(1, node.devices + 1)
                    )
                    for node, rows in zip(self.nodes, self.partition_rows, strict=True)
                )
                for rate in self.rates
            ),
        )

    @property
    def lower_bound(self) -> float:
        """Return the seconds that all devices, or one network, would train at least if all rows were prepared."""
        across = self.switches and self.spanning
        if self.sharded and not across:
            return self.epochs * lower_bound(self._shop())
        seconds = [self.epochs * self.rows / rate for rate in self.rates]
        speed, devices = self.teams.speed, sum(node.devices for node in self.nodes)
        most = {node: devices if across else node.devices for node in self.nodes}
        sizes = {node: range(1, most[node] + 1) if self.switches else node.sizes for node in self.nodes}
        together = sum(node.devices * node.speed * max(speed(n) / n for n in sizes[node]) for node in self.nodes)
        return max(sum(seconds) / together, max(seconds) / max(node.speed * speed(max(sizes[node])) for node in sizes))


def _listed(content: Mapping[str, Any], name: str, known: set[str]) -> list[Mapping[str, Any]]:
    found = content.get(name)
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise UsageError(f"{name}: must be a list of items with {', '.join(sorted(known))}")
    for place, each in enumerate(found, 1):
        if unknown := sorted(map(str, each.keys() - known)):
            raise UsageError(
                f"{name}, item {place}: {', '.join(unknown)}: unknown; there are {', '.join(sorted(known))}"
            )
    return found
