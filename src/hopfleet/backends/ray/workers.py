"""Workers on a Ray cluster, as the driver sees them: each is an actor that takes orders and returns reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hopfleet.backends.ray import cluster
from hopfleet.backends.ray.nodes import on
from hopfleet.backends.ray.placement import Node, WorkerNeeds
from hopfleet.backends.ray.worker_actor import Setup, WorkerActor
from hopfleet.backends.supervision import WorkerHandle
from hopfleet.domain.version_ref import VersionRef
from hopfleet.worker.protocol import Beat, Order

NODE_LABEL = "ray.io/node-id"
"""The label by which Ray names each node."""

TOKEN = 0.001
"""CPUs reserved for a member that takes nothing of its node."""


@dataclass(slots=True, kw_only=True)
class ActorHandle(WorkerHandle):
    """A worker that is an actor on a node."""

    node: str
    needs: WorkerNeeds
    actor: Any
    #: The method that sends orders and returns reports.
    exchange: Any
    #: Whether its process has answered.
    answered: bool = False
    #: Whether the worker was reported as WorkerJoined.
    joined: bool = False
    #: The trial of the unit after the current one, if that is known.
    next: str = ""
    #: Whether the node agent was asked about the process.
    asked: bool = False
    #: Whether the worker has ended by itself.
    stopped: bool = False
    #: Whether a call of ``exchange`` is pending.
    listened: bool = False
    #: Number of messages sent so far.
    sent: int = 0
    #: The other processes of a team; empty for a worker on one device.
    members: list[ActorHandle] = field(default_factory=list)
    #: The worker that a member of a team belongs to.
    leader: ActorHandle | None = None
    #: Ray's placement group of a team.
    group: Any = None

    @property
    def team(self) -> list[ActorHandle]:
        """All processes of the worker."""
        return [self, *self.members]

    @property
    def beats(self) -> list[Beat]:
        return [each.beat for each in self.team]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node of each process."""
        return tuple(process.node for process in self.team)

    def message(self, drops: Sequence[VersionRef]) -> tuple[int, Sequence[Order], Sequence[VersionRef]]:
        """Return all buffered orders and the versions to drop on the worker's node, under a number."""
        number, orders = self.sent, self.outbox
        self.sent, self.outbox = number + 1, []
        return number, orders, drops


def reserve(takes: Sequence[Mapping[str, float]], nodes: Sequence[str]) -> Any:
    """Reserve a share of a node for each member of a team, all or none, and return Ray's placement group."""
    from ray.util import placement_group

    # A share is never empty for Ray, though a member may take nothing.
    bundles = [dict(share) or {"CPU": TOKEN} for share in takes]
    return placement_group(bundles, strategy="PACK", bundle_label_selector=[{NODE_LABEL: node} for node in nodes])


def give_back(group: Any) -> None:
    """End all processes of a team through its placement group."""
    from ray.util import remove_placement_group

    remove_placement_group(group)


def start_worker(
    setup: Setup, payload: Any, *, needs: WorkerNeeds, at: Node, options: Any, group: Any = None
) -> ActorHandle:
    """Start a worker as an actor that takes a share of the node ``at`` hand, with further ``options`` of Ray.

    A member of a team takes its share of the team's placement group.
    """
    ray, takes = cluster.require_ray(), needs.on(at)
    others = {name: amount for name, amount in takes.items() if name not in ("CPU", "GPU", "memory")}
    actor = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={"talk": 1}, enable_task_events=False)(
        WorkerActor
    ).options(
        num_cpus=takes.get("CPU", 0),
        num_gpus=takes.get("GPU", 0),
        memory=takes.get("memory") or None,
        resources=others or None,
        scheduling_strategy=on(setup.node) if setup.seat is None else _in_group(group, setup.seat.rank),
        **options,
    )
    started = actor.remote(setup, payload)
    exchange = started.exchange.options(concurrency_group="talk")
    return ActorHandle(name=setup.name, node=setup.node, needs=needs, actor=started, exchange=exchange, group=group)


def _in_group(group: Any, rank: int) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
