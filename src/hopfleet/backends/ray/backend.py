"""The Ray backend: workers are actors on the nodes of a cluster, driven from here.

Each worker is asked, all the time, what it has to tell; the answer comes when there is something, or as a sign of life.
The next question takes along what it is told, so a unit costs one call, and so does what its node is to drop.
A model hops within a node through shared memory and between nodes through Ray's object store: the worker that needs it
is told which node has it, and fetches it from the host there. Nothing of it comes here.

A node is lost when its raylet is gone, or its host is silent and it cannot be reached: Ray takes longer to notice.
Whatever a lost worker still says is not heard. The partitions of a lost node are fetched anew by others.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hopfleet.backends.ray import cluster
from hopfleet.backends.ray.actors import Setup, home
from hopfleet.backends.ray.calls import Calls
from hopfleet.backends.ray.discovery import Discovery
from hopfleet.backends.ray.liveness import (
    AWAY_SECONDS,
    QUIET_SECONDS,
    START_SECONDS,
    STUCK_SECONDS,
    excused,
    worker_lost,
)
from hopfleet.backends.ray.members import Member, start_member
from hopfleet.backends.ray.node_agents import (
    Station,
    Token,
    check_stations,
    close_station,
    end,
    explain,
    open_station,
    own_fault,
)
from hopfleet.backends.ray.pending_workers import PendingWorker, PendingWorkers
from hopfleet.backends.ray.placement import Node, one_of_each, place_partitions, powers, share
from hopfleet.backends.ray.version_locations import VersionLocations
from hopfleet.backends.ray.versions import DriverVersions, storage_location
from hopfleet.backends.vitals import Vitals
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
    VersionLost,
    VersionSaved,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.placement import Placement
from hopfleet.domain.trial import Trial
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import DataError, TaskError, UsageError, WorkersLost
from hopfleet.store.versions.cluster import link_storage
from hopfleet.support import clock
from hopfleet.worker.spec import Profile, WorkerSpec, pickled

POLL_SECONDS = 1.0
"""How long a worker waits for something to tell before it tells that it lives."""

LOOK_SECONDS = 0.4
"""How often to look who is silent, at least."""

MAX_STARTS = 5
"""How often in a row a worker may end before it is ready."""

RETRY_SECONDS = 0.1
"""The pause before a worker takes the place of one that was not ready. It doubles each time."""


class Ray:
    """Workers on a Ray cluster.

    ``address`` is HOST:PORT of a cluster, or "auto" for the one on this machine; without it, one is started here if
    there is none. ``storage`` is where durable model versions go: a folder that all nodes see, or an fsspec URL; by
    default the run folder, which all nodes must see then. Each partition is kept on ``replicas`` nodes. With
    ``elastic`` the nodes that join while a run is going on get workers too. With ``autoscale`` a run begins with the
    workers that fit; Ray's autoscaler is asked for room for the others, and may end nodes without workers.
    """

    name = "ray"

    def __init__(
        self,
        address: str | None = None,
        *,
        storage: str | Path | None = None,
        replicas: int = 1,
        elastic: bool = True,
        autoscale: bool = False,
    ) -> None:
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
            raise UsageError(f"replicas={replicas!r}: must be at least 1")
        self.address = address
        self.storage = None if storage is None else str(storage)
        self.replicas = replicas
        self.elastic = elastic
        self.autoscale = autoscale
        self._ours = False
        self._reset()

    def __repr__(self) -> str:
        return f"Ray(address={self.address!r}, storage={self.storage!r}, replicas={self.replicas})"

    def _reset(self) -> None:
        #: Workers that are not lost, by name, whether they are ready or not; the nodes in use, by id.
        self._members: dict[str, Member] = {}
        self._stations: dict[str, Station] = {}
        #: Workers that are yet to be started, and nodes that are yet to be used.
        self._pending = PendingWorkers()
        self._discovery = Discovery(elastic=self.elastic, autoscale=self.autoscale)
        #: Where versions are. What nodes are to drop goes along with what their workers are told or asked next.
        self._locations = VersionLocations()
        self._calls = Calls()
        self._events: deque[Event] = deque()
        self._profiles: deque[Profile] = deque()
        self._numbers = itertools.count(1)
        self._looked = time.monotonic()
        self._closing = False
        #: Nodes are of several sorts, and it is not known yet how fast each is.
        self._unknown = False

    # -------------------------------------------------------------------------------------------- the protocol

    def offer(self, device: str, threads: int) -> tuple[int, str]:
        """How many workers the cluster has room for, and why."""
        self._connect()
        found = cluster.living()
        count = sum(node.room(device, threads) for node in found)
        return max(1, count), f"{len(found)} node{'s' * (len(found) > 1)} of a Ray cluster"

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
        nodes, chosen = self._discovery.choose(workers, spec.device, spec.threads)
        counts = Counter(chosen)
        placed = place_partitions(len(spec.train), counts, self.replicas)
        used = [node for node in nodes if node.id in counts]
        self._unknown = len({node.sort for node in used}) > 1
        for node in used:
            # Of several sorts, each begins with one partition to be tried on.
            self._open(node, placed[node.id][:1] if self._unknown else placed[node.id])
        for node_id in chosen:
            self._spawn(node_id)
        check_stations(list(self._stations.values()), spec, self._location)
        for station in self._stations.values():
            self._fetch(station, station.partitions)
        self._pending.add(*[PendingWorker()] * (workers - len(chosen)))
        self._discovery.watch(self._homeless)

    def add(self, count: int) -> None:
        self._pending.add(*[PendingWorker()] * count)
        self._start_due()

    def retire(self, worker: str) -> None:
        if member := self._members.get(worker):
            member.retired = True

    def release(self, worker: str) -> None:
        if member := self._members.get(worker):
            member.retired = member.released = True
            member.tell("Stop")

    def stop(self, worker: str) -> None:
        if member := self._members.get(worker):
            member.killed = "it was told to give up what it did"
            self._kill(member)

    def place(self, worker: str, partition: int) -> None:
        """Have it on the worker's node: then all workers there can read it."""
        member = self._members.get(worker)
        if member is None:
            return

        def fetched(outcome: Any) -> None:
            station = self._stations.get(member.node)
            if station is None or self._members.get(worker) is not member:
                return  # its WorkerLost is under way
            if isinstance(outcome, Exception):
                self._events.append(PartitionUnavailable(worker, partition, explain(outcome)))
                return
            station.partitions = tuple(sorted({*station.partitions, partition}))
            self._events.append(PartitionPlaced(worker, partition))

        self._calls.then(self._stations[member.node].call("fetch", self._spec.train, (partition,), home()), fetched)

    def probe(self, trial: Trial, batches: int = 0) -> Profile:
        if self._unknown:
            return self._profile(trial, batches)
        return self._try(self._somebody(list(self._stations)), trial, batches)

    def send(self, command: Command, trial: Trial) -> None:
        assert isinstance(command, RunUnit | SaveVersion)
        member = self._members.get(command.worker)
        # A worker that died meanwhile has its WorkerLost under way; the command dies with it.
        if member is None:
            return
        if isinstance(command, RunUnit):
            if command.lookahead:
                member.next = command.trial
            else:
                member.trial = command.trial
        wanted = command.model if isinstance(command, RunUnit) else command.ref._replace(attempt=command.saved)
        source = None if wanted.attempt is None else self._locations.source(wanted, member.node)
        member.tell("Command", command, trial, source)

    def receive(self, timeout: float) -> list[Event]:
        if self._unknown:
            self._place_all({})
        deadline = time.monotonic() + timeout
        while not self._events:
            left = deadline - time.monotonic()
            self._pump(max(0.0, left))
            if left <= 0:
                break
        events = list(self._events)
        self._events.clear()
        return events

    def now(self) -> float:
        return clock.now()

    def close(self, *, kill: bool = False) -> None:
        self._closing = True
        self._discovery.close()
        if not kill:
            for member in self._members.values():
                member.tell("Stop")
            while any(member.ready for member in self._members.values()):
                self._pump(AWAY_SECONDS / 4)
        self._release()
        for member in list(self._members.values()):
            end(member.actor)
        self._members.clear()
        for station in self._stations.values():
            station.hang_up()
        self._stations.clear()
        self._calls = Calls()  # later answers are ignored
        if self._ours:
            cluster.require_ray().shutdown()
            self._ours = False

    def _connect(self) -> None:
        self._ours = cluster.connect(self.address) or self._ours

    # ------------------------------------------------------------------------- versions in the memory of nodes

    def drop(self, ref: VersionRef) -> bool:
        """Have a version dropped where it is, if it is in the memory of nodes."""
        return self._locations.drop(ref)

    def forget(self, trial: str) -> None:
        """Have all of a trial dropped everywhere."""
        self._locations.forget(trial)
        for station in list(self._stations.values()):
            station.call("forget", self._location, trial)

    def _release(self) -> None:
        """Have all that is in the memory of nodes given back."""
        told = [station.call("release", self._location) for station in self._stations.values()]
        if told:
            cluster.require_ray().wait(told, num_returns=len(told), timeout=QUIET_SECONDS)

    # ---------------------------------------------------------------------------- trying trials, and sorts of nodes

    def _profile(self, trial: Trial, batches: int) -> Profile:
        """Try a trial on one node of each sort, then place partitions by how fast they are; returns the first try."""
        sorts = {node: station.node.sort for node, station in self._stations.items()}
        found = {
            sorts[node]: self._try(self._somebody([one for one in sorts if sorts[one] == sorts[node]]), trial, batches)
            for node in one_of_each(sorts)
        }
        self._place_all({sort: 1 / each.seconds_per_row for sort, each in found.items() if each.seconds_per_row})
        return next((each for each in found.values() if each.error), next(iter(found.values())))

    def _place_all(self, speeds: Mapping[str, float]) -> None:
        """Have all partitions fetched, in proportion to workers and, if that is known of all, to their speeds."""
        self._unknown = False
        stations = self._stations
        power = powers(self._crews(), {node: station.node.sort for node, station in stations.items()}, speeds)
        held = {node: station.partitions for node, station in stations.items()}
        placed = place_partitions(len(self._spec.train), power, self.replicas, held)
        for node, station in stations.items():
            station.partitions = placed[node]
            self._fetch(station, station.partitions)

    def _somebody(self, nodes: Sequence[str]) -> Member:
        """A worker on one of these nodes that is ready to try something."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            for member in self._members.values():
                if member.ready and member.node in nodes and self._stations[member.node].ready:
                    return member
            if time.monotonic() > deadline:
                raise WorkersLost(f"no worker was ready after {START_SECONDS:.0f} s")
            self._pump(AWAY_SECONDS / 4)

    def _try(self, member: Member, trial: Trial, batches: int) -> Profile:
        # It is tried on rows that are there: nothing is fetched for it.
        partition = next(iter(self._stations[member.node].partitions), 0)
        member.tell("Probe", (batches, partition), trial)
        while not self._profiles:
            self._pump(AWAY_SECONDS / 4)
            if self._members.get(member.name) is not member:
                return Profile(error="the worker died while it tried the configuration")
        return self._profiles.popleft()

    # ----------------------------------------------------------------------------------- what goes on all the time

    def _pump(self, timeout: float) -> None:
        """Tell what there is to tell, hear what there is to hear, waiting up to ``timeout`` for the first word."""
        self._start_due()
        self._flush()
        self._calls.hear(max(0.0, min(timeout, LOOK_SECONDS, self._pending.pause(time.monotonic()))))
        self._look()

    def _flush(self) -> None:
        """Flush outboxes and re-arm the long poll of each worker that replied."""
        for member in list(self._members.values()):
            if member.listened and not member.outbox:
                continue
            letter = member.letter(self._locations.drops(member.node))
            if member.listened:
                member.actor.tell.remote(*letter)
            else:
                member.listened = True
                self._calls.then(member.exchange.remote(*letter, POLL_SECONDS), partial(self._heard, member))
        for node, saves in self._locations.drops_elsewhere(self._crews()).items():
            if station := self._stations.get(node):
                station.call("drop", self._location, saves)

    def _heard(self, member: Member, told: Any) -> None:
        if self._members.get(member.name) is not member:
            return  # it is lost already: whatever it says does not count
        if isinstance(told, Exception):
            self._lose(member, explain(told))
            return
        member.heard, member.listened = time.monotonic(), False
        if station := self._stations.get(member.node):
            station.heard = member.heard
        for kind, body in told:
            self._hear(member, kind, body)

    def _hear(self, member: Member, kind: str, body: Any) -> None:
        match kind:
            case "Events":
                for event in body:
                    if isinstance(event, VersionSaved) and not event.durable:
                        self._locations.add(event.ref, member.node)
                    elif isinstance(event, UnitFinished | UnitFailed):
                        member.trial, member.next = member.next or member.trial, ""
                self._events.extend(body)
            case "Fetched":
                self._locations.add(body, member.node)
            case "Printed":
                name, printed = body
                with (self._spec.logs / name).open("ab") as log:
                    log.write(printed)
            case "Ready":
                member.pid, member.device = body
                member.ready = True
                self._admit(member)
            case "Profile":
                self._profiles.append(body)
            case "Stopped":
                member.stopped = True
                end(member.actor)
                self._lose(member, RELEASED)
            case "Unable":
                raise TaskError(
                    f"workers cannot load the task ({body}): put it into a module that every node can import, or "
                    "define it in your script itself"
                )
            case _:
                raise AssertionError(f"unknown: {kind}")

    # --------------------------------------------------------------------------------------------- who is silent

    def _look(self) -> None:
        """Find out who is silent, and who has joined."""
        now = time.monotonic()
        away, self._looked = now - self._looked, now
        for station in list(self._stations.values()):
            if reason := station.look(self._calls, now, away):
                self._lose_node(station, reason)
            elif self.autoscale and not self._closing and self._deserted(station):
                self._leave(station)
        for member in list(self._members.values()):
            member.heard = excused(member.heard, now, away)
            silence = now - member.heard
            if reason := worker_lost(silence, ready=member.ready):
                self._give_up(member, reason)
            elif member.ready and silence > STUCK_SECONDS and not member.asked:
                self._ask_about(member)
        if not self._closing:
            for node, count in self._discovery.newcomers(self._stations, self._homeless()):
                self._welcome(node, count)
        if not self._stations:
            self._discovery.check_wait()

    def _ask_about(self, member: Member) -> None:
        """Ask its host whether its process is stopped or gone."""
        member.asked = True

        def answered(found: Any) -> None:
            member.asked = False
            if self._members.get(member.name) is not member or not isinstance(found, Vitals):
                return
            if reason := found.lost(time.monotonic() - member.heard):
                self._give_up(member, reason)

        self._calls.then(self._stations[member.node].call("vitals", member.pid), answered)

    # ------------------------------------------------------------------------------------------- workers come and go

    def _crews(self) -> Counter[str]:
        """How many workers are on each node that has any."""
        return Counter(member.node for member in self._members.values())

    def _homeless(self) -> int:
        """Count the pending workers that no node in use has room for."""
        return len(self._pending.homeless(self._stations))

    def _start_due(self) -> None:
        """Start the workers that are due, if there is room for them."""
        now = time.monotonic()
        if not self._pending.due(now):
            return
        crews = self._crews()
        # On a node that is being prepared, some are to come who are not there yet.
        room = {node: station.room - crews[node] for node, station in self._stations.items() if station.ready}
        for node, failures in self._pending.fill(now, self._stations, room):
            self._spawn(node, failures)

    def _spawn(self, node: str, failures: int = 0) -> None:
        """Start a worker on a node, with its share of it."""
        spec, station = self._spec, self._stations[node]
        path = tuple(entry for entry in sys.path if entry)
        setup = Setup(f"w{next(self._numbers)}", node, station.host, spec.device, self._location, path, home())
        on_gpu = spec.device != "cpu" and station.node.gpus >= 1
        cpus, gpus = (0, 1) if on_gpu else (spec.threads, 0)
        member = start_member(setup, self._payload, cpus=cpus, gpus=gpus, failures=failures)
        self._members[member.name] = member
        for other in self._stations.values():
            member.tell("Host", other.node.id, other.host)

    def _admit(self, member: Member) -> None:
        """Let a worker join that is ready, on a node that is."""
        station = self._stations.get(member.node)
        if member.joined or not member.ready or station is None or not station.ready or self._unknown:
            return
        member.joined = True
        everything = len(station.partitions) == len(self._spec.train)
        partitions = None if everything else station.partitions
        self._events.append(WorkerJoined(member.name, Placement.on(member.device), partitions))

    def _give_up(self, member: Member, reason: str) -> None:
        member.killed = member.killed or reason
        self._kill(member)
        self._lose(member, reason)

    def _kill(self, member: Member) -> None:
        """End its process, whatever it is doing; one that is stopped does not listen to Ray."""
        end(member.actor)
        station = self._stations.get(member.node)
        if station is not None and member.pid:
            station.call("kill", member.pid)

    def _lose(self, member: Member, reason: str) -> None:
        """A worker is gone. Another one takes its place, unless that is not wanted."""
        del self._members[member.name]
        if member.released:
            reason = RELEASED
        elif member.killed:
            reason = member.killed
        wanted = not (self._closing or member.retired)
        if member.joined:
            # Only a worker on the same node can read the same partitions.
            replaced = wanted and member.node in self._stations
            self._events.append(WorkerLost(member.name, reason, self._last_words(member), replaced))
        if not wanted:
            return
        if member.joined:
            self._pending.add(PendingWorker(node=member.node))
            self._start_due()
        else:
            self._retry(member, reason)

    def _retry(self, member: Member, reason: str) -> None:
        """Start another one in place of one that was not ready, after a while."""
        failures = member.failures + 1
        if failures == MAX_STARTS:
            raise WorkersLost(
                f"worker {member.name} ended before it was ready, as {failures - 1} before it did: {reason}; the logs "
                "of Ray on that node may say why"
            )
        pause = RETRY_SECONDS * 2 ** (failures - 1)
        self._pending.add(PendingWorker(time.monotonic() + pause, member.node, failures))

    def _last_words(self, member: Member) -> str:
        """The end of what the code of the trial at work has printed, if its node can tell."""
        station = self._stations.get(member.node)
        if not member.trial or member.released or member.stopped or station is None:
            return ""
        return station.last_words(self._location, member.name, member.trial)

    # --------------------------------------------------------------------------------------------- nodes come and go

    def _open(self, node: Node, partitions: tuple[int, ...]) -> Station:
        """Begin to use a node."""
        station = open_station(node, node.room(self._spec.device, self._spec.threads), partitions)
        self._stations[node.id] = station
        station.attend(self._calls, self._lose_node)
        station.ask(self._calls)
        for member in self._members.values():
            member.tell("Host", node.id, station.host)
        return station

    def _fetch(self, station: Station, partitions: tuple[int, ...]) -> None:
        """Have partitions brought to a node; its workers join when they are there."""
        station.ready = False

        def fetched(outcome: Any) -> None:
            if self._stations.get(station.node.id) is not station:
                return
            if isinstance(outcome, Exception):
                if own_fault(outcome):
                    raise DataError(f"{station.node.name}: {explain(outcome)}") from outcome
                return  # its host is gone, which shows elsewhere
            station.ready = True
            for member in list(self._members.values()):
                self._admit(member)

        wanted = [(self._spec.train, partitions)]
        if (valid := self._spec.valid) is not None:
            wanted.append((valid, tuple(range(len(valid)))))
        self._calls.then_all([station.call("fetch", *each, home()) for each in wanted], fetched)

    def _welcome(self, node: Node, count: int) -> None:
        """Begin to use a node in the middle of a run; if it is of no use, the log says why, and all goes on."""
        placed = {name: station.partitions for name, station in self._stations.items()}
        station = self._open(node, share(len(self._spec.train), placed))
        token = Token(self._location)

        def answered(problems: Any) -> None:
            token.remove()
            if self._stations.get(node.id) is not station:
                return
            if isinstance(problems, Exception):
                problems = [explain(problems)]
            if problems:
                self._discovery.shun(node.id)
                close_station(self._stations.pop(node.id))
                with (self._spec.logs / "workers.log").open("a") as log:
                    log.write(f"{node.name} joined and is not used: {'; '.join(problems)}\n")
                return
            self._fetch(station, station.partitions)
            housed = self._pending.house(count, self._stations)
            for failures in housed + [0] * (count - len(housed)):
                self._spawn(node.id, failures)

        self._calls.then(token.ask(station, self._spec), answered)

    def _lose_node(self, station: Station, reason: str) -> None:
        """A node is gone, with its workers, its versions and its partitions."""
        node = station.node.id
        if self._stations.get(node) is not station:
            return
        del self._stations[node]
        self._discovery.lose(node)
        close_station(station)
        for member in [member for member in self._members.values() if member.node == node]:
            member.killed = member.killed or f"its node {station.node.name} was lost: {reason}"
            end(member.actor)
            self._lose(member, reason)
        for ref in self._forsake(node):
            self._events.append(VersionLost(ref, f"its node {station.node.name} was lost"))
        if not self._stations and not self._closing:
            self._discovery.lose_last(f"the last node is lost: {station.node.name}, {reason}")

    def _deserted(self, station: Station) -> bool:
        """Whether a node has nothing that a run may need, and no present or future worker."""
        node = station.node.id
        wanted = self._crews().keys() | self._pending.nodes()
        return station.ready and node not in wanted and not self._locations.alone(node)

    def _leave(self, station: Station) -> None:
        """Have no process on a node any more, so that the autoscaler may take it away."""
        node = station.node.id
        del self._stations[node]
        self._forsake(node)
        self._calls.then(station.call("release", self._location), lambda _: close_station(station))

    def _forsake(self, node: str) -> list[VersionRef]:
        """Expect nothing from a node any more; returns the versions that were there and nowhere else."""
        for member in self._members.values():
            member.tell("Gone", node)
        return self._locations.lose(node)
