"""The Ray backend: workers are actors on the nodes of a cluster, driven from here.

One call per worker is always pending: it returns when the worker has reports, or as a sign of life. The next call
carries new orders, so a unit costs one call; drops of versions travel with it. A model hops within a node through
shared memory and between nodes through Ray's object store: the order names the node that has the model, and the worker
fetches the model from the agent there. No model passes through the driver.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hopfleet.backends.base import Offer
from hopfleet.backends.ray import bandwidth, cluster, options
from hopfleet.backends.ray.calls import Calls
from hopfleet.backends.ray.lifecycle import ClusterBackend
from hopfleet.backends.ray.liveness import OUTAGE_SECONDS, QUIET_SECONDS
from hopfleet.backends.ray.node_agent import home
from hopfleet.backends.ray.nodes import check_nodes, end, explain, is_away
from hopfleet.backends.ray.pending_workers import PendingWorker
from hopfleet.backends.ray.placement import (
    WorkerNeeds,
    how_many,
    one_node_each,
    one_of_each,
    powers,
)
from hopfleet.backends.ray.versions import DriverVersions, storage_location
from hopfleet.backends.ray.worker_actor import model_of
from hopfleet.backends.ray.workers import ActorHandle, give_back
from hopfleet.backends.supervision import AWAY_SECONDS
from hopfleet.domain.messages import (
    RELEASED,
    Command,
    Event,
    PartitionPlaced,
    PartitionUnavailable,
    RunUnit,
    SaveVersion,
    UnitFailed,
    UnitFinished,
    VersionSaved,
)
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.domain.signatures import explained
from hopfleet.domain.trial import Trial
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import UsageError
from hopfleet.planner.dike.problem import Node as FreeNode
from hopfleet.planner.partitions import place_partitions, place_valid
from hopfleet.store.versions.cluster import link_storage
from hopfleet.support.files import append
from hopfleet.worker.protocol import Apart, Execute, Fetched, Printed, Probe, Ready, Report, Stop, Stopped
from hopfleet.worker.spec import Profile, WorkerSpec, pickled

POLL_SECONDS = 1.0
"""Seconds that a worker waits for a report before it returns a sign of life."""

LOOK_SECONDS = 0.4
"""Maximum seconds between checks for silent workers and nodes."""

FORM_SECONDS = 10.0
"""Seconds until new actors have imported the framework and met as a team, about."""


@explained
class Ray(ClusterBackend):
    """Workers on a Ray cluster.

    ``address`` is HOST:PORT of a cluster, or "auto" for the one on this machine; without it, one is started here if
    there is none. ``storage`` is where durable model versions go: a folder that all nodes see, or an fsspec URL; by
    default the run folder, which all nodes must see then. Each partition is kept on ``replicas`` nodes. With
    ``elastic`` the nodes that join while a run is going on get workers too. With ``autoscale`` a run begins with the
    workers that fit; Ray's autoscaler is asked for room for the others, and may end nodes without workers. If no other
    host, or the head of the cluster, answers for ``outage`` seconds, the run ends and can be resumed.

    Each worker takes ``gpus`` of a node with GPUs, or ``cpus`` (by default as many as it has threads; none beside a
    GPU), and everywhere ``memory`` bytes and ``resources`` under their names. Only nodes with all ``labels`` are used.
    ``placement`` is "SPREAD", over all nodes, or "PACK", on as few as possible. ``runtime_env`` and ``namespace`` are
    those of Ray.
    """

    name = "ray"
    form_seconds = FORM_SECONDS

    def __init__(
        self,
        address: str | None = None,
        *,
        storage: str | Path | None = None,
        replicas: int = 1,
        elastic: bool = True,
        autoscale: bool = False,
        outage: float = OUTAGE_SECONDS,
        cpus: float | None = None,
        gpus: float = 1,
        memory: float = 0,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        placement: str = "SPREAD",
        runtime_env: Mapping[str, Any] | None = None,
        namespace: str | None = None,
    ) -> None:
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
            raise UsageError(f"replicas={replicas!r}: must be at least 1")
        if not isinstance(address, str | None):
            raise UsageError(f"address={address!r}: must be 'auto' or HOST:PORT; None starts a cluster on this machine")
        self.address = address
        self.storage = None if storage is None else str(storage)
        self.replicas = replicas
        self.elastic = elastic
        self.autoscale = autoscale
        self.outage = options.seconds("outage", outage)
        self.pack = options.packs(placement)
        self.share = options.share(cpus=cpus, gpus=gpus, memory=memory, resources=resources, labels=labels)
        self.runtime_env, self.namespace = runtime_env, namespace
        #: Whether this backend has connected the process to the cluster, or has started the cluster.
        self._connected = False
        super().__init__()

    def __repr__(self) -> str:
        return f"Ray(address={self.address!r}, storage={self.storage!r}, replicas={self.replicas})"

    # -------------------------------------------------------------------------------------------- the protocol

    def offer(
        self, device: str, threads: int, teams: Sequence[TeamShape] = (SINGLE,), *, spanning: Collection[str] = ()
    ) -> Offer:
        """Return how many workers the cluster has room for, and why.

        Workers have these ``teams`` in turn. A team with a strategy among those ``spanning`` nodes does so if no node
        has room for all of it.
        """
        self._connect()
        found = cluster.living()
        needs = [self._needs(device, threads, shape, spans=shape.strategy in spanning) for shape in teams]
        alone = self._needs(device, threads, SINGLE, spans=False)
        nodes = {node.name: room for node in found if (room := alone.room(node))}
        why = f"{len(found)} node{'s' * (len(found) > 1)} of a Ray cluster"
        sorts = {node.name: node.sort for node in found if node.name in nodes}
        return Offer(max(1, how_many(found, needs)), why, nodes, self.replicas, sorts)

    def _needs(self, device: str, threads: int, shape: TeamShape, *, spans: bool, apart: bool = False) -> WorkerNeeds:
        if shape.devices > 1 and device != "cpu" and 0 < self.share["gpus"] < 1:
            raise UsageError(f"gpus={self.share['gpus']!r}: the members of a team need a GPU each; use gpus=1")
        return WorkerNeeds(device=device, threads=threads, shape=shape, spans=spans, apart=apart, **self.share)

    def _needs_of(self, shape: TeamShape) -> WorkerNeeds:
        """Return what a worker of this run needs."""
        spec = self._spec
        spans = shape.devices > 1 and not spec.one_node and spec.task.framework.spans_nodes(shape.strategy)
        return self._needs(spec.device, spec.threads, shape, spans=spans, apart=spec.apart)

    def measure_links(self, size: int) -> tuple[tuple[FreeNode, ...], bandwidth.Costs]:
        self._connect()
        try:
            wanted = self.share["labels"].items()
            nodes = [node for node in cluster.living() if wanted <= node.labels.items()]
            return tuple(map(bandwidth.free, nodes)), bandwidth.measure(nodes, size)
        finally:
            if self._connected:
                cluster.require_ray().shutdown()
                self._connected = False

    def keep_to(self, members: Sequence[str], *, cpus: float | None, memory: float) -> None:
        self.share |= {"members": tuple(members), "cpus": cpus, "memory": memory}

    def versions(self, checkpoints: Path) -> DriverVersions:
        location = storage_location(self.storage, checkpoints)
        if not location.url:
            link_storage(checkpoints, location.checkpoints)
        return DriverVersions(checkpoints, location.url, drop=self.drop, forget=self.forget, release=self._release)

    def start(self, spec: WorkerSpec, workers: int) -> None:
        self._reset()
        self._connect()
        self._spec = spec
        self._payload = cluster.require_ray().put(pickled(spec))
        self._location = storage_location(self.storage, spec.checkpoints)
        living = cluster.living()
        self._teams = [self._needs_of(shape).among(living) for shape in spec.teams]
        if spec.homes:  # no user has asked for these sizes
            self._formed, pairs = True, zip(self._teams, spec.homes, strict=True)
            self._teams = [replace(needs, home=home) for needs, home in pairs]
        nodes, chosen = self._discovery.choose(workers, self._teams)
        power = Counter[str]()
        for _, place in chosen:
            if place:
                power[place[0]] += len(place)  # the first member reads for all
        placed = place_partitions(spec.train.partition_rows, power, self.replicas)
        rows = () if spec.valid is None else spec.valid.partition_rows
        valid = place_valid(rows, spec.train.partition_rows, power, self.replicas)
        used = [node for node in nodes if any(node.id in place for _, place in chosen)]
        self._speeds_unknown = len({node.sort for node in used}) > 1
        for node in used:
            # With several sorts of nodes, each node begins with one partition to profile trials on. A node without
            # the first member of a team needs none.
            most = 1 if self._speeds_unknown else None
            self._open(node, placed.get(node.id, ())[:most], None if valid is None else valid.get(node.id, ())[:most])
        for needs, place in chosen:
            if place:
                self._spawn(PendingWorker(needs, place=place))
        check_nodes(list(self._nodes.values()), spec, self._location)
        for handle in self._nodes.values():
            self._fetch(handle)
        self._pending.add(*(PendingWorker(needs) for needs, place in chosen if not place))
        self._discovery.watch(lambda: sum(needs.size for needs in self._homeless()))

    def add(self, count: int) -> None:
        here = len(self._workers)
        self._pending.add(*(PendingWorker(self._teams[(here + n) % len(self._teams)]) for n in range(count)))
        self._start_due()

    def form_teams(self, shapes: Sequence[TeamShape]) -> None:
        self._formed, rooms = True, {name: node.room for name, node in self._nodes.items()}
        room = sum(rooms.values())
        if self._spec.one_node:
            for shape, place in zip(shapes, one_node_each(rooms, [shape.devices for shape in shapes]), strict=True):
                self._pending.add(PendingWorker(self._needs_of(shape).reduced(len(place)), place=place))
            self._start_due()
            return
        for others, shape in zip(range(len(shapes))[::-1], shapes, strict=True):
            # A node may have been lost since the controller counted devices.
            size = max(1, min(shape.devices, room - others))
            self._pending.add(PendingWorker(self._needs_of(shape).reduced(size)))
            room -= size
        self._start_due()

    def teams_blocker(self, device: str, threads: int) -> str:
        if self.autoscale:
            return "hop.Ray(autoscale=True) gives nodes without work back"
        self._connect()
        needs = self._needs(device, threads, SINGLE, spans=False)
        kinds = {needs.kind(node) for node in cluster.living() if needs.room(node)}
        return "" if len(kinds) < 2 else "the nodes of the cluster have devices of different kinds; name one as device"

    def place(self, worker: str, partition: int, *, valid: bool = False) -> None:
        """Bring a partition to the worker's node, where all workers can read it."""
        handle, dataset = self._workers.get(worker), self._spec.valid if valid else self._spec.train
        if handle is None:
            return
        assert dataset is not None

        def fetched(outcome: Any) -> None:
            node = self._nodes.get(handle.node)
            if node is None or not self._is_current(handle):
                return  # the WorkerLost of this worker is under way
            if isinstance(outcome, Exception):
                self._events.append(PartitionUnavailable(worker, partition, explain(outcome), valid))
                return
            node.add(partition, valid=valid)
            self._events.append(PartitionPlaced(worker, partition, valid))

        self._calls.then(self._nodes[handle.node].call("fetch", dataset.stored, (partition,), home()), fetched)

    def probe(self, trial: Trial, batches: int = 0) -> Profile:
        if self._speeds_unknown:
            return self._probe_sorts(trial, batches)
        return self._probe_on(self._worker_on(self._nodes), trial, batches)

    def send(self, command: Command, trial: Trial) -> None:
        assert isinstance(command, RunUnit | SaveVersion)
        handle = self._workers.get(command.worker)
        if handle is None:
            return  # the worker has died, and its WorkerLost is under way
        if isinstance(command, RunUnit):
            if command.lookahead:
                handle.next = command.trial
            else:
                handle.trial = command.trial
        model = model_of(command)
        source = None if model.attempt is None else self._locations.source(model, handle.node)
        handle.outbox.append(Execute(command, trial, source))

    def receive(self, timeout: float) -> list[Event]:
        if self._speeds_unknown:
            self._place_all({})
        return super().receive(timeout)

    def close(self, *, kill: bool = False) -> None:
        self._closing = True
        self._discovery.close()
        if not kill:
            for handle in self._workers.values():
                handle.outbox.append(Stop())
            while any(handle.ready for handle in self._workers.values()):
                self._pump(AWAY_SECONDS / 4)
        self._release()
        for handle in self._processes():
            end(handle.actor)
            if handle.leader is None and handle.group is not None:
                give_back(handle.group)
        self._workers.clear()
        for node in self._nodes.values():
            node.raylet.close()
        self._nodes.clear()
        self._calls = Calls()  # ignore all pending calls
        if self._head is not None:
            self._head.close()
        if self._connected:
            cluster.require_ray().shutdown()
            self._connected = False

    def _connect(self) -> None:
        joined = cluster.connect(self.address, namespace=self.namespace, runtime_env=self.runtime_env)
        self._connected = joined or self._connected
        # The environment is that of the whole job, unless the job was there before.
        self._options = {"runtime_env": dict(self.runtime_env)} if self.runtime_env and not self._connected else {}
        self._head, self._here = cluster.head(), cluster.own_address()

    # ------------------------------------------------------------------------- versions in the memory of nodes

    def drop(self, ref: VersionRef) -> bool:
        """Let all nodes that hold a version drop it; return whether the version was on nodes alone."""
        return self._locations.drop(ref)

    def forget(self, trial: str) -> None:
        """Let all nodes delete everything that belongs to a trial."""
        self._locations.forget(trial)
        for node in list(self._nodes.values()):
            node.call("forget", self._location, trial)

    def _release(self) -> None:
        """Let all nodes give back their shared memory."""
        released = [node.call("release", self._location) for node in self._nodes.values()]
        if released:
            cluster.require_ray().wait(released, num_returns=len(released), timeout=QUIET_SECONDS)

    # ------------------------------------------------------------------------- profiling, and sorts of nodes

    def _probe_sorts(self, trial: Trial, batches: int) -> Profile:
        """Profile a trial on one node of each sort, then place partitions by speed; return the first profile."""
        sorts = {name: node.node.sort for name, node in self._nodes.items() if node.partitions}
        found: dict[str, Profile] = {}
        speeds: dict[str, float] = {}  #: of one device
        for sort in (sorts[name] for name in one_of_each(sorts)):
            handle = self._worker_on([name for name in sorts if sorts[name] == sort])
            found[sort] = profile = self._probe_on(handle, trial, batches)
            if profile.seconds_per_row:
                speeds[sort] = 1 / profile.seconds_per_row / len(handle.team)
        self._place_all(speeds)
        return next((each for each in found.values() if each.error), next(iter(found.values())))

    def _worker_on(self, nodes: Collection[str]) -> ActorHandle:
        """Return a worker that is ready on one of these nodes."""
        names = list(nodes)
        return self._first_worker(
            lambda handle: handle.ready and handle.node in names and self._nodes[handle.node].ready
        )

    def _probe_on(self, handle: ActorHandle, trial: Trial, batches: int) -> Profile:
        """Profile a trial on a worker, on partitions that its node has."""
        node = self._nodes[handle.node]
        held = [next(iter(mine or ()), 0) for mine in (node.partitions, node.valid)]
        return self._probe(handle, Probe(trial, batches, *held))

    def _place_all(self, speeds: Mapping[str, float]) -> None:
        """Let nodes fetch all partitions, in proportion to their devices and, if known for all sorts, speeds."""
        self._speeds_unknown = False
        nodes = {name: node for name, node in self._nodes.items() if node.partitions}
        power = powers(self._devices_per_node(), {name: node.node.sort for name, node in nodes.items()}, speeds)
        held = {name: node.partitions for name, node in nodes.items()}
        placed = place_partitions(self._spec.train.partition_rows, power, self.replicas, held)
        for name, node in nodes.items():
            node.partitions = placed[name]
        if self._spec.valid is not None and all(node.valid is not None for node in nodes.values()):
            held = {name: node.valid or () for name, node in nodes.items()}
            placed = place_partitions(self._spec.valid.partition_rows, power, self.replicas, held)
            for name, node in nodes.items():
                node.valid = placed[name]
        for node in nodes.values():
            self._fetch(node)

    # ----------------------------------------------------------------------------------------------- messages

    def _pump(self, timeout: float) -> None:
        self._start_due()
        self._flush()
        self._calls.hear(max(0.0, min(timeout, LOOK_SECONDS, self._pending.pause(time.monotonic()))))
        self._look()

    def _flush(self) -> None:
        """Flush outboxes and re-arm the long poll of each worker that replied."""
        for handle in self._processes():
            if handle.listened and not handle.outbox:
                continue
            message = handle.message(() if handle.leader else self._locations.drops(handle.node))
            if handle.listened:
                handle.actor.tell.remote(*message)
            else:
                handle.listened = True
                self._calls.then(handle.exchange.remote(*message, POLL_SECONDS), partial(self._replied, handle))
        for name, refs in self._locations.drops_elsewhere(self._devices_per_node()).items():
            if node := self._nodes.get(name):
                node.call("drop", self._location, refs)

    def _replied(self, handle: ActorHandle, reports: Any) -> None:
        """Handle the reports of a worker, or the exception that ended its call."""
        if not self._works(handle):
            return
        if is_away(reports):  # its reports are lost, so its work is repeated, and its process must end
            self._give_up(handle, explain(reports))
            return
        if isinstance(reports, Exception):
            self._lose(handle, explain(reports))
            return
        handle.heard, handle.listened, handle.answered = time.monotonic(), False, True
        if node := self._nodes.get(handle.node):
            node.hear()
        for report in reports:
            self._hear(handle, report)

    def _host(self, handle: ActorHandle) -> str:
        node = self._nodes.get(handle.node)
        return node.node.address if node else ""

    def _hear(self, handle: ActorHandle, report: Report) -> None:
        match report:
            case Fetched(ref):
                self._locations.add(ref, handle.node)
            case Printed():
                append(self._spec.logs / report.log, report.content)
            case Ready():
                handle.pid, handle.device, handle.ready = report.pid, report.device, True
                self._admit(handle.leader or handle)
            case Apart(reason):
                self._give_up(handle, reason)
            case Stopped():
                handle.stopped = True
                end(handle.actor)
                self._lose(handle, RELEASED)
            case _:
                super()._hear(handle, report)

    def _note(self, handle: ActorHandle, event: Event) -> None:
        if isinstance(event, VersionSaved) and event.durable:
            self._locations.add_durable(event.ref)
        elif isinstance(event, VersionSaved):
            self._locations.add(event.ref, handle.node)
        elif isinstance(event, UnitFinished | UnitFailed):
            handle.trial, handle.next = handle.next or handle.trial, ""
