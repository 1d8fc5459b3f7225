"""Which workers and which partitions go to which node. Pure: numbers in, names out.

Nodes may differ. The power of a node is the number of its workers' devices times the speed at which one of its sort
trains this task. Rows go to nodes in proportion to their power.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.errors import UsageError


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, and its free resources."""

    id: str
    address: str
    port: int = 0  #: of its raylet
    cpus: float = 0.0
    gpus: float = 0.0
    free_cpus: float = 0.0
    free_gpus: float = 0.0
    kind: str = ""  #: of its accelerator, as Ray names it
    #: Free resources other than CPUs and GPUs, under Ray's names.
    free: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.address} ({self.id[:8]})"

    @property
    def sort(self) -> str:
        """Return the sort of the node; nodes of one sort are assumed to be equally fast."""
        gpus = f", {self.gpus:g} GPUs {self.kind}".rstrip() if self.gpus else ""
        return f"{self.cpus:g} CPUs{gpus}"

    def free_amount(self, name: str) -> float:
        """Return how much of a resource is free, under Ray's name."""
        return {"CPU": self.free_cpus, "GPU": self.free_gpus}.get(name, self.free.get(name, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNeeds:
    """What a worker needs of its node, or each member of its team of theirs."""

    device: str
    threads: int = 1
    #: None stands for as many CPUs as threads, or for none beside a GPU.
    cpus: float | None = None
    #: GPUs of a worker on a node that has any, unless the device is "cpu".
    gpus: float = 1.0
    memory: float = 0.0  #: bytes
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    #: The node of each member of the only worker, by its name; empty if members may be anywhere.
    members: tuple[str, ...] = ()
    #: The strategy of the worker, and the members of its team.
    shape: TeamShape = SINGLE
    #: Whether the members of a team may be on several nodes.
    spans: bool = False
    #: Whether the members of a team that spans nodes are on as many as possible, not on as few.
    apart: bool = False
    #: The node, by its name, for all members at the start, if there is room; empty for any.
    home: str = ""

    @property
    def size(self) -> int:
        """The number of members."""
        return self.shape.devices

    def reduced(self, size: int) -> WorkerNeeds:
        """Return what a team with fewer members needs; a team of one is a single device."""
        return replace(self, shape=self.shape._replace(devices=size) if size > 1 else SINGLE)

    def on(self, node: Node) -> dict[str, float]:
        """Return the resources that a worker takes on a node, under Ray's names."""
        return self._resources(on_gpu=self.device != "cpu" and node.gpus > 0 and self.gpus > 0)

    def kind(self, node: Node) -> str:
        """Return the kind of device that a worker has on a node, as far as the members of a team must agree."""
        return "cuda" if self.on(node).get("GPU") else "cpu"

    @property
    def anywhere(self) -> dict[str, float]:
        """Return the resources that a worker takes on a node that does not exist yet."""
        return self._resources(on_gpu=self.device not in ("cpu", "auto") and self.gpus > 0)

    def _resources(self, *, on_gpu: bool) -> dict[str, float]:
        cpus = self.cpus if self.cpus is not None else 0 if on_gpu else self.threads
        wanted = {"CPU": cpus, "GPU": self.gpus if on_gpu else 0.0, "memory": self.memory, **self.resources}
        return {name: amount for name, amount in wanted.items() if amount}

    def among(self, nodes: Sequence[Node]) -> WorkerNeeds:
        """Return these needs on some nodes; members may be anywhere if a node that is named for one is missing."""
        return self if {*self.members} <= {node.name for node in nodes} else replace(self, members=())

    def room(self, node: Node) -> int:
        """Return how many members of workers fit on a node."""
        if any(node.labels.get(name) != value for name, value in self.labels.items()):
            return 0
        if self.device not in ("cpu", "auto") and not node.gpus:
            return 0
        fits = [_fit(node.free_amount(name), amount, whole=name == "GPU") for name, amount in self.on(node).items()]
        room = min(fits, default=int(node.free_cpus))
        return min(room, self.members.count(node.name)) if self.members else room

    def explain(self, node: Node) -> str:
        """Describe what a node offers and how many workers fit."""
        gpus = f", {node.free_gpus:g} of {node.gpus:g} GPUs" if node.gpus else ""
        others = "".join(
            f", {_amount(name, node.free_amount(name))}" for name in self.on(node) if name not in ("CPU", "GPU")
        )
        lacks = [f"{name}={value}" for name, value in self.labels.items() if node.labels.get(name) != value]
        labels = f", without label {', '.join(lacks)}" if lacks else ""
        free = f"{node.free_cpus:g} of {node.cpus:g} CPUs{gpus}{others} free"
        return f"{node.name}: {free}, room for {self.room(node)}{labels}"

    def __str__(self) -> str:
        labels = "".join(f", label {name}={value}" for name, value in self.labels.items())
        team = f" for each of {self.size} members" if self.size > 1 else ""
        return ", ".join(_amount(*each) for each in self.anywhere.items()) + labels + team


def why_unready(
    needs: WorkerNeeds,
    node: Node,
    *,
    agent: bool,
    fetching: Sequence[int],
    waiting: Sequence[str],
    loading: Sequence[str],
) -> str:
    """Describe what a node waits for: its ``agent``, partitions, workers that Ray has not started or that load."""
    found = []
    if not agent:
        found.append("its node agent has not answered; the logs of Ray on that node may say why")
    elif fetching:
        found.append(f"still fetches partitions {', '.join(map(str, fetching))}")
    if waiting:
        found.append(f"Ray has not started {', '.join(waiting)}, at {needs} each ({needs.explain(node)})")
    if loading:
        found.append(f"{', '.join(loading)} still loads the task and the modules that the task imports")
    return f"{node.name}: {'; '.join(found)}" if found else ""


def _fit(free: float, amount: float, *, whole: bool) -> int:
    """Return how often an amount fits. Parts of a GPU must be on the same GPU, so rests of several do not add up."""
    if whole and amount < 1:
        return math.floor(free) * math.floor(1 / amount) + math.floor((free - math.floor(free)) / amount)
    return math.floor(free / amount)


def _amount(name: str, amount: float) -> str:
    if name == "memory":
        return f"{amount / 2**30:.3g} GiB of memory"
    return f"{amount:g} {name}{'s' * (amount != 1 and name in ('CPU', 'GPU'))}"


Place = tuple[str, ...]
"""The node of each member of a worker's team; one node for a worker on one device."""


def choose_nodes(nodes: Sequence[Node], wanted: Sequence[WorkerNeeds], *, pack: bool = False) -> list[Place]:
    """Choose nodes for each worker: as evenly as their room allows, or, to ``pack`` them, on as few as possible."""
    chosen = places_on(nodes, wanted, pack=pack)
    if not all(chosen):
        seen = "; ".join(wanted[0].explain(node) for node in nodes)
        homeless = [needs for needs, place in zip(wanted, chosen, strict=True) if not place]
        teams = "".join(dict.fromkeys(_team_limit(needs, nodes) for needs in homeless))
        fewer = "use fewer workers" if all(needs.size == 1 for needs in wanted) else "use fewer workers, smaller teams"
        raise UsageError(
            f"workers={len(wanted)}: only {sum(map(bool, chosen))} fit, at "
            f"{' or '.join(dict.fromkeys(map(str, wanted)))} each ({seen}){teams}; {fewer}, or add nodes (Ray's "
            "autoscaler does so for hop.Ray(autoscale=True))"
        )
    return chosen


def _team_limit(needs: WorkerNeeds, nodes: Sequence[Node]) -> str:
    """Say what limits the places of a team, beside the room on each node; empty if nothing does."""
    if needs.size == 1:
        return ""
    if not needs.spans:
        return f"; a team with {needs.shape.strategy!r} must fit on one node"
    if len({needs.kind(node) for node in nodes if needs.room(node)}) > 1:
        return (
            f"; device={needs.device!r} gives GPUs on some nodes and CPUs on others, but a team has one kind: "
            "name it, as in hop.WorkerOptions(device='cpu')"
        )
    return ""


def how_many(nodes: Sequence[Node], teams: Sequence[WorkerNeeds]) -> int:
    """Return how many workers fit on nodes if they have these ``teams`` in turn."""
    room = sum(teams[0].room(node) for node in nodes)
    fits, count = -1, room * len(teams) // sum(needs.size for needs in teams)
    while fits != count:
        fits, count = count, sum(map(bool, places_on(nodes, [teams[n % len(teams)] for n in range(count)])))
    return count


def places_on(nodes: Sequence[Node], wanted: Sequence[WorkerNeeds], *, pack: bool = False) -> list[Place]:
    """Return a place on nodes for each worker, empty if there is none; first those with a home, then large teams."""
    found: list[Place] = [()] * len(wanted)
    if not wanted:
        return found
    room, names = Counter({node.id: wanted[0].room(node) for node in nodes}), {node.id: node.name for node in nodes}
    for number, needs in enumerate(wanted):
        home = next((node for node in nodes if node.name == needs.home and room[node.id] >= needs.size), None)
        if home is not None:
            found[number] = (home.id,) * needs.size
            room.subtract(found[number])
    alike = {needs.shape: needs for needs in wanted}
    for shape, needs in sorted(alike.items(), key=lambda item: (-item[0].devices, item[0])):
        numbers = [number for number, each in enumerate(wanted) if each.shape == shape and not found[number]]
        kinds = {node.id: needs.kind(node) for node in nodes}
        for number, place in zip(numbers, places(room, len(numbers), needs, kinds, pack=pack), strict=False):
            room.subtract(place)
            found[number] = tuple(_in_order(place, names, needs.members))
    return found


def _in_order(place: Place, names: Mapping[str, str], members: Sequence[str]) -> Iterator[str]:
    """Yield the nodes of a place in the order in which ``members`` names them, if it does."""
    left = list(place)
    for wanted in members:
        found = next((node for node in left if names[node] == wanted), None)
        if found is not None:
            left.remove(found)
            yield found
    yield from left


def places(
    room: Mapping[str, int], count: int, needs: WorkerNeeds, kinds: Mapping[str, str], *, pack: bool = False
) -> list[Place]:
    """Return at most ``count`` places, given the ``room`` for members on each node and the kinds of their devices.

    The members of a team are on one node where that has room, and otherwise, if teams span nodes, on as few as
    possible, all with the same kind of device; members that are ``apart`` are on as many as possible.
    """
    apart = needs.apart and needs.spans
    whole = {name: 0 if apart else free // needs.size for name, free in room.items()}
    chosen: list[Place] = [(name,) * needs.size for name in (packed if pack else spread)(whole, count)]
    left = Counter({name: max(0, free) for name, free in room.items()})
    for place in chosen:
        left.subtract(place)
    for kind in sorted({kinds[name] for name in room}) if needs.spans else ():
        alike = Counter({name: free for name, free in left.items() if kinds[name] == kind})
        while len(chosen) < count and alike.total() >= needs.size:
            most = sorted(alike, key=lambda name: -alike[name])
            seats = [(turn if apart else 0, number) for number, name in enumerate(most) for turn in range(alike[name])]
            place = tuple(most[number] for _, number in sorted(seats)[: needs.size])
            alike.subtract(place)
            chosen.append(place)
    return chosen


def one_node_each(room: Mapping[str, int], sizes: Sequence[int]) -> list[Place]:
    """Return the places of teams, each on the node with the most room left; a team without enough room is smaller.

    A node may have been lost since the sizes were chosen: a team that finds no room at all has no place.
    """
    left, chosen = Counter(room), list[Place]()
    for size in sizes:
        node = max(left, key=lambda name: left[name], default="")
        chosen.append((node,) * min(size, left[node]))
        left.subtract(chosen[-1])
    return chosen


def packed(room: Mapping[str, int], count: int) -> list[str]:
    """Return at most ``count`` places, on the nodes with the most room first."""
    places = [name for name in sorted(room, key=lambda name: -room[name]) for _ in range(room[name])]
    return places[:count]


def spread(room: Mapping[str, int], count: int) -> list[str]:
    """Return at most ``count`` places, each on the node with the largest share of room left."""
    left = dict(room)
    chosen: list[str] = []
    while len(chosen) < count and any(value > 0 for value in left.values()):
        node = max(left, key=lambda name: (left[name] / max(1, room[name]), left[name]))
        left[node] -= 1
        chosen.append(node)
    return chosen


def powers(devices: Mapping[str, int], sorts: Mapping[str, str], speeds: Mapping[str, float]) -> dict[str, float]:
    """Return the power of each node: its number of devices, times the speed of its sort if known for all sorts."""
    known = all(sort in speeds for sort in sorts.values())
    return {node: max(1, devices.get(node, 0)) * (speeds[sort] if known else 1.0) for node, sort in sorts.items()}


def one_of_each(nodes: Mapping[str, str]) -> list[str]:
    """Return the first node of each sort."""
    found: dict[str, str] = {}
    for node, sort in nodes.items():
        found.setdefault(sort, node)
    return list(found.values())


def shares(
    train: int, valid: int, held: Mapping[str, tuple[Sequence[int], Sequence[int] | None]]
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the training and validation partitions for a node that joins others, given what these hold.

    None stands for all validation partitions, which a node gets if the others have all.
    """
    some = {node: mine for node, (_, mine) in held.items() if mine is not None}
    return share(train, {node: mine for node, (mine, _) in held.items()}), share(valid, some) if some else None


def share(partitions: int, placed: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """Return the partitions for a node that joins: those without a node, and the rarest up to its share."""
    held = {partition: sum(partition in mine for mine in placed.values()) for partition in range(partitions)}
    orphans = [partition for partition in held if not held[partition]]
    fair = -(-partitions // (len(placed) + 1))
    others = sorted((p for p in held if held[p]), key=lambda partition: held[partition])
    return tuple(sorted([*orphans, *others[: max(0, fair - len(orphans))]]))
