"""The Ray backend: workers are actors on the nodes of a cluster, driven from here.

Each worker is asked, all the time, what it has to tell; the answer comes when there is something, or as a sign of life.
The next question takes along what it is told, so a unit costs one call, and so does what its node is to drop.
A model hops within a node through shared memory and between nodes through Ray's object store: the worker that needs it
is told which node has it, and fetches it from the host there. Nothing of it comes here.

A node is lost when its raylet is gone, or its host is silent and it cannot be reached: Ray takes longer to notice.
Whatever a lost worker still says is not heard. The partitions of a lost node are fetched anew by others.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hopfleet import clock
from hopfleet.backends.ray import cluster
from hopfleet.backends.ray.actors import Place, Save, Setup, Told, WorkerActor, home
from hopfleet.backends.ray.cluster import Verdict
from hopfleet.backends.ray.demand import Demand
from hopfleet.backends.ray.placement import Node, choose_nodes, one_of_each, place_partitions, share, spread
from hopfleet.backends.ray.stations import (
    START_SECONDS,
    Station,
    Token,
    check_stations,
    close_station,
    end,
    explain,
    on,
    open_station,
    own_fault,
)
from hopfleet.backends.ray.whereabouts import Whereabouts
from hopfleet.domain.messages import (
    RELEASED,
    Command,
    Evaluate,
    Evaluated,
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
from hopfleet.domain.trial import Trial
from hopfleet.errors import DataError, TaskError, UsageError, WorkersLost
from hopfleet.store.cluster import ClusterVersions, link_storage
from hopfleet.worker.job import Finding, Job, pickled

BEAT_SECONDS = 30.0
"""How long a host waits before it answers; if its process ends before, that shows at once."""

ASK_SECONDS = 1.1
"""If nothing was heard from a node for so long, its host is asked whether it lives."""

POLL_SECONDS = 1.0
"""How long a worker waits for something to tell before it tells that it lives."""

QUIET_SECONDS = 1.6
"""A node that cannot be reached, and whose host has been silent for so long, is lost."""

SILENCE_SECONDS = 15.0
"""A node whose raylet answers and whose host does not is lost after so long."""

STUCK_SECONDS = 3.0
"""If a worker has been silent for so long, its host looks whether its process is stopped or gone."""

DEAF_SECONDS = 60.0
"""A worker that has been silent for so long is lost, even if its process is there."""

LOOK_SECONDS = 0.4
"""How often to look who is silent, at least."""

AWAY_SECONDS = 1.0
"""If nobody has listened for so long, silence says nothing."""

WATCH_SECONDS = 1.0
"""How often to look for nodes that joined."""

RETURN_SECONDS = 10.0
"""A node that was lost for so long, and answers, is used again."""

ROOM_SECONDS = 4.0
"""How long to wait for resources that others give back at this moment."""

GROW_SECONDS = 900.0
"""How long to wait for a node that an autoscaler starts where there is none."""

MAX_STARTS = 5
RETRY_SECONDS = 0.1
LAST_WORDS_SECONDS = 0.5


@dataclass(slots=True)
class Member:
    """One worker, as seen from here."""

    name: str
    node: str
    actor: Any
    exchange: Any
    heard: float
    failures: int = 0
    pid: int = 0
    device: str = ""
    ready: bool = False
    joined: bool = False
    retired: bool = False
    released: bool = False
    #: Why it was killed from here.
    killed: str = ""
    #: The trial that it was last told to work on, and the one that comes after that.
    trial: str = ""
    next: str = ""
    #: Its host is asked about it.
    asked: bool = False
    stopped: bool = False
    #: It is asked what it has to tell, and has not answered yet.
    listened: bool = False
    #: What it is to be told at the next opportunity, and how often it was told something before.
    outbox: list[Told] = field(default_factory=list)
    told: int = 0


class Ray:
    """Workers on a Ray cluster.

    ``address`` is HOST:PORT of a cluster, or "auto" for the one on this machine; without it, one is started here if
    there is none. ``storage`` is where durable model versions go: a folder that all nodes see, or an fsspec URL; by
    default the run folder, which all nodes must see then. Each partition is kept on ``replicas`` nodes. With
    ``elastic`` the nodes that join while a run is going on get workers too. With ``autoscale`` a run begins with the
    workers that fit; Ray's autoscaler is asked for room for the others, and may have nodes back that nobody is left on.
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
        self._members: dict[str, Member] = {}
        self._stations: dict[str, Station] = {}
        self._events: deque[Event] = deque()
        self._findings: deque[Finding] = deque()
        self._numbers = itertools.count(1)
        #: What has come from the cluster: a result, and who is to hear of it.
        self._arrivals: queue.SimpleQueue[tuple[Future[Any], Callable[[Any], None]]] = queue.SimpleQueue()
        #: Where versions are. What nodes are to drop goes along with what their workers are told or asked next.
        self._whereabouts = Whereabouts()
        #: Workers to be started: when, where (or anywhere), after how many failures.
        self._due: list[tuple[float, str | None, int]] = []
        #: Nodes that were there at the start or have been met since.
        self._known: set[str] = set()
        #: Nodes that were lost, and since when; those that are of no use are lost for ever.
        self._lost: dict[str, float] = {}
        self._looked = time.monotonic()
        self._seen: list[Node] = []
        self._watching: tuple[threading.Event, threading.Thread] | None = None
        self._closing = False
        #: Nodes are of several sorts, and it is not known yet how fast each is.
        self._unknown = False
        #: Why the last node is gone, if it is, and until when the autoscaler may start another one.
        self._bereft: tuple[str, float] | None = None
        #: Room for workers that is asked of an autoscaler.
        self._demand = Demand({})

    # -------------------------------------------------------------------------------------------- the protocol

    def offer(self, device: str, threads: int) -> tuple[int, str]:
        """How many workers the cluster has room for, and why."""
        self._connect()
        found = cluster.living()
        count = sum(node.room(device, threads) for node in found)
        return max(1, count), f"{len(found)} node{'s' * (len(found) > 1)} of a Ray cluster"

    def versions(self, checkpoints: Path) -> ClusterVersions:
        place = self._place(checkpoints)
        if not place.url:
            link_storage(checkpoints, place.checkpoints)
        return _Told(checkpoints, place.url, self)

    def start(self, job: Job, workers: int) -> None:
        self._reset()
        self._connect()
        self._job = job
        self._payload = cluster.require_ray().put(pickled(job))
        self._where = self._place(job.checkpoints)
        self._demand = Demand({"GPU": 1} if job.device not in ("cpu", "auto") else {"CPU": job.threads})
        nodes, chosen = self._choose(workers)
        counts = {node: chosen.count(node) for node in dict.fromkeys(chosen)}
        placed = place_partitions(len(job.train), counts, self.replicas)
        used = [node for node in nodes if node.id in counts]
        self._unknown = len({node.sort for node in used}) > 1
        for node in used:
            # Of several sorts, each begins with one partition to be tried on.
            self._open(node, placed[node.id][:1] if self._unknown else placed[node.id])
        for node_id in chosen:
            self._spawn(node_id)
        check_stations(list(self._stations.values()), job, self._where)
        for station in self._stations.values():
            self._fetch(station, station.partitions)
        self._known = {node.id for node in nodes}
        self._due += [(0.0, None, 0)] * (workers - len(chosen))
        self._watch()

    def add(self, count: int) -> None:
        self._due += [(0.0, None, 0)] * count
        self._start_due()

    def retire(self, worker: str) -> None:
        if member := self._members.get(worker):
            member.retired = True

    def release(self, worker: str) -> None:
        if member := self._members.get(worker):
            member.retired = member.released = True
            self._tell(member, "Stop")

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

        self._await(self._stations[member.node].call("fetch", self._job.train, (partition,), home()), fetched)

    def probe(self, trial: Trial, batches: int = 0) -> Finding:
        if self._unknown:
            return self._profile(trial, batches)
        return self._try(self._somebody(list(self._stations)), trial, batches)

    def _profile(self, trial: Trial, batches: int) -> Finding:
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
        stations = list(self._stations.values())
        known = all(station.node.sort in speeds for station in stations)
        count = [member.node for member in self._members.values()].count
        power = {
            station.node.id: max(1, count(station.node.id)) * (speeds[station.node.sort] if known else 1.0)
            for station in stations
        }
        held = {station.node.id: station.partitions for station in stations}
        placed = place_partitions(len(self._job.train), power, self.replicas, held)
        for station in stations:
            station.partitions = placed[station.node.id]
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

    def _try(self, member: Member, trial: Trial, batches: int) -> Finding:
        # It is tried on rows that are there: nothing is fetched for it.
        partition = next(iter(self._stations[member.node].partitions), 0)
        self._tell(member, "Probe", (batches, partition), trial)
        while not self._findings:
            self._pump(AWAY_SECONDS / 4)
            if self._members.get(member.name) is not member:
                return Finding(error="the worker died while it tried the configuration")
        return self._findings.popleft()

    def send(self, command: Command, trial: Trial) -> None:
        assert isinstance(command, RunUnit | Evaluate | SaveVersion)
        member = self._members.get(command.worker)
        # A worker that died meanwhile has its WorkerLost under way; the command dies with it.
        if member is None:
            return
        if isinstance(command, RunUnit) and command.ahead:
            member.next = command.trial
        elif not isinstance(command, SaveVersion):
            member.trial = command.trial
        self._tell(member, "Command", command, trial, self._source(member, command))

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
        if self._watching is not None:
            over, watcher = self._watching
            over.set()
            watcher.join()  # or it would ask a Ray that is gone
        with contextlib.suppress(Exception):
            self._demand.keep(0)
        if not kill:
            for member in self._members.values():
                self._tell(member, "Stop")
            while any(member.ready for member in self._members.values()):
                self._pump(AWAY_SECONDS / 4)
        self._release()
        for member in list(self._members.values()):
            end(member.actor)
        self._members.clear()
        for station in self._stations.values():
            station.hang_up()
        self._stations.clear()
        self._arrivals = queue.SimpleQueue()  # whatever comes now, nobody hears
        if self._ours:
            cluster.require_ray().shutdown()
            self._ours = False

    # ------------------------------------------------------------------------------------------------ starting

    def _connect(self) -> None:
        self._ours = cluster.connect(self.address) or self._ours

    def _place(self, checkpoints: Path) -> Place:
        """Where durable versions of a run go. Two runs of one name are told apart by where their folders are."""
        if self.storage is None:
            return Place(checkpoints)
        folder = checkpoints.parent
        name = f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
        if "://" in self.storage and not self.storage.startswith("file://"):
            return Place(checkpoints, f"{self.storage.rstrip('/')}/{name}")
        return Place(Path(self.storage.removeprefix("file://")).expanduser().absolute() / name)

    def _choose(self, workers: int) -> tuple[list[Node], list[str]]:
        """A node for each worker, or with an autoscaler for as many as fit, at least for one.

        What others have just given back takes a moment to show.
        """
        deadline = time.monotonic() + (GROW_SECONDS if self.autoscale else ROOM_SECONDS)
        device, threads = self._job.device, self._job.threads
        while True:
            nodes = cluster.living()
            try:
                return nodes, choose_nodes(nodes, workers, device=device, threads=threads)
            except UsageError:
                if time.monotonic() > deadline:
                    raise
            if self.autoscale:
                fit = spread({node.id: node.room(device, threads) for node in nodes}, workers)
                if not self._demand.keep(0 if fit else workers) and fit:
                    return nodes, fit
            time.sleep(0.1)

    def _open(self, node: Node, partitions: tuple[int, ...]) -> Station:
        """Begin to use a node."""
        station = open_station(node, node.room(self._job.device, self._job.threads), partitions)
        self._stations[node.id] = station
        self._listen_to_host(station)
        self._ask_host(station)
        for member in self._members.values():
            self._tell(member, "Host", node.id, station.host)
        return station

    def _fetch(self, station: Station, partitions: tuple[int, ...]) -> None:
        """Have partitions brought to a node; its workers join when they are there."""
        station.ready = False
        valid = self._job.valid
        calls = [(self._job.train, partitions)]
        if valid is not None:
            calls.append((valid, tuple(range(len(valid)))))
        left = len(calls)

        def fetched(outcome: Any) -> None:
            nonlocal left
            if self._stations.get(station.node.id) is not station:
                return
            if isinstance(outcome, Exception):
                if own_fault(outcome):
                    raise DataError(f"{station.node.name}: {explain(outcome)}") from outcome
                return  # its host is gone, which shows elsewhere
            left -= 1
            if not left:
                station.ready = True
                for member in list(self._members.values()):
                    self._admit(member)

        for dataset, wanted in calls:
            self._await(station.call("fetch", dataset, wanted, home()), fetched)

    def _spawn(self, node: str, failures: int = 0) -> None:
        """Start a worker on a node, with its share of it."""
        ray = cluster.require_ray()
        job, station = self._job, self._stations[node]
        on_gpu = job.device != "cpu" and station.node.gpus >= 1
        actor = ray.remote(
            max_restarts=0, max_task_retries=0, concurrency_groups={"talk": 1}, enable_task_events=False
        )(WorkerActor).options(
            num_cpus=0 if on_gpu else job.threads,
            num_gpus=1 if on_gpu else 0,
            scheduling_strategy=on(node),
        )
        name = f"w{next(self._numbers)}"
        path = tuple(entry for entry in sys.path if entry)
        setup = Setup(name, node, station.host, job.device, self._where, path, home())
        started = actor.remote(setup, self._payload)
        exchange = started.exchange.options(concurrency_group="talk")
        member = self._members[name] = Member(name, node, started, exchange, time.monotonic(), failures)
        for other in self._stations.values():
            self._tell(member, "Host", other.node.id, other.host)

    def _start_due(self) -> None:
        now = time.monotonic()
        due, self._due = [one for one in self._due if one[0] <= now], [one for one in self._due if one[0] > now]
        for when, node, failures in due:
            if node is not None and node in self._stations:
                self._spawn(node, failures)
                continue
            for chosen in spread(self._room(), 1):
                self._spawn(chosen, failures)
                break
            else:
                self._due.append((when, None, failures))  # until a node joins

    def _homeless(self) -> list[tuple[float, str | None, int]]:
        """Workers to be started that no node in use has room for."""
        return [one for one in self._due if one[1] is None or one[1] not in self._stations]

    def _room(self) -> dict[str, int]:
        """How many more workers fit where. On a node that is being prepared, some are to come who are not there yet."""
        used = [member.node for member in self._members.values()]
        return {node: station.room - used.count(node) for node, station in self._stations.items() if station.ready}

    # -------------------------------------------------------------------------------------------------- talking

    def _tell(self, member: Member, kind: str, body: Any = None, trial: Any = None, source: str | None = None) -> None:
        member.outbox.append((kind, body, trial, source))

    def _flush(self) -> None:
        """Tell workers what they are to be told, and ask those that have answered what else there is."""
        for member in list(self._members.values()):
            if member.listened and not member.outbox:
                continue
            told, member.outbox = member.outbox, []
            letter = (member.told, told, self._whereabouts.drops(member.node))
            member.told += 1
            if member.listened:
                member.actor.tell.remote(*letter)
            else:
                member.listened = True
                self._await(member.exchange.remote(*letter, POLL_SECONDS), partial(self._heard, member))
        manned = {member.node for member in self._members.values()}
        for node, saves in self._whereabouts.drops_elsewhere(manned).items():
            if station := self._stations.get(node):
                station.call("drop", self._where, saves)

    def _await(self, ref: Any, heard: Callable[[Any], None]) -> None:
        """Let somebody hear what comes of a call, in the thread that drives this."""
        arrivals = self._arrivals
        ref.future().add_done_callback(lambda future: arrivals.put((future, heard)))

    def drop(self, save: Save) -> bool:
        """Have a version dropped where it is, if it is in the memory of nodes."""
        return self._whereabouts.drop(save)

    def forget(self, trial: str) -> None:
        """Have all of a trial dropped everywhere."""
        self._whereabouts.forget(trial)
        for station in list(self._stations.values()):
            station.call("forget", self._where, trial)

    def _release(self) -> None:
        """Have all that is in the memory of nodes given back."""
        told = [station.call("release", self._where) for station in self._stations.values()]
        if told:
            cluster.require_ray().wait(told, num_returns=len(told), timeout=QUIET_SECONDS)

    def _source(self, member: Member, command: RunUnit | Evaluate | SaveVersion) -> str | None:
        """The node that has the version that a command needs, if others have it only."""
        if command.saved is None:
            return None
        save = (command.trial, command.version, command.saved)
        there = self._whereabouts.nodes(save)
        if not there or member.node in there:
            return None
        return min(there)

    def _listen_to_host(self, station: Station) -> None:
        def heard(outcome: Any) -> None:
            if self._stations.get(station.node.id) is not station:
                return
            if isinstance(outcome, Exception):
                self._lose_node(station, explain(outcome))
            else:
                station.heard = time.monotonic()
                self._listen_to_host(station)

        self._await(station.call("beat", BEAT_SECONDS, group="beat"), heard)

    def _ask_host(self, station: Station) -> None:
        """Ask whether it lives. If it does not, its beat tells."""
        station.asked = True

        def answered(outcome: Any) -> None:
            station.asked = False
            if not isinstance(outcome, Exception):
                station.heard = time.monotonic()

        self._await(station.call("beat", 0.0, group="answers"), answered)

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
                        self._whereabouts.add((event.trial, event.version, event.attempt), member.node)
                    elif isinstance(event, UnitFinished | Evaluated | UnitFailed):
                        member.trial, member.next = member.next or member.trial, ""
                self._events.extend(body)
            case "Fetched":
                self._whereabouts.add(body, member.node)
            case "Printed":
                name, printed = body
                with (self._job.logs / name).open("ab") as log:
                    log.write(printed)
            case "Ready":
                member.pid, member.device = body
                member.ready = True
                self._admit(member)
            case "Finding":
                self._findings.append(body)
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

    def _admit(self, member: Member) -> None:
        """Let a worker join that is ready, on a node that is."""
        station = self._stations.get(member.node)
        if member.joined or not member.ready or station is None or not station.ready or self._unknown:
            return
        member.joined = True
        everything = len(station.partitions) == len(self._job.train)
        partitions = None if everything else station.partitions
        self._events.append(WorkerJoined(member.name, member.device, partitions))

    # ---------------------------------------------------------------------------------------------------- losses

    def _pump(self, timeout: float) -> None:
        """Hear what there is to hear, waiting up to ``timeout`` for the first word."""
        self._start_due()
        self._flush()
        now = time.monotonic()
        timeout = max(0.0, min([timeout, LOOK_SECONDS, *(one[0] - now for one in self._due if one[0] > now)]))
        with contextlib.suppress(queue.Empty):
            arrived = self._arrivals.get(timeout=timeout)
            while True:
                future, heard = arrived
                heard(future.exception() or future.result())
                arrived = self._arrivals.get_nowait()
        self._look()

    def _look(self) -> None:
        """Find out who is silent, and who has joined."""
        now = time.monotonic()
        away, self._looked = now - self._looked, now
        for station in list(self._stations.values()):
            if away > AWAY_SECONDS:
                station.heard = min(now, station.heard + away) if station.heard < now else station.heard
            silence = now - station.heard
            if silence > ASK_SECONDS and not station.asked:
                self._ask_host(station)
            station.try_raylet(quiet=silence > ASK_SECONDS)
            if station.verdict is Verdict.GONE:
                self._lose_node(station, station.verdict.value)
            elif station.verdict is Verdict.UNREACHABLE and silence > QUIET_SECONDS:
                self._lose_node(station, f"{station.verdict.value}, and was silent for {silence:.1f} s")
            elif silence > SILENCE_SECONDS:
                self._lose_node(station, f"it was silent for {silence:.0f} s")
            elif self.autoscale and not self._closing and self._deserted(station):
                self._leave(station)
        for member in list(self._members.values()):
            if away > AWAY_SECONDS:
                member.heard = min(now, member.heard + away)
            silence = now - member.heard
            if silence > (DEAF_SECONDS if member.ready else START_SECONDS):
                self._give_up(member, f"it was silent for {silence:.0f} s")
            elif member.ready and silence > STUCK_SECONDS and not member.asked:
                self._ask_about(member)
        if self._seen and not self._closing:
            seen, self._seen = self._seen, []
            self._meet(seen)
        if not self._stations and self._bereft is not None and now > self._bereft[1]:
            raise WorkersLost(
                f"{self._bereft[0]}; Ray's autoscaler started no other within {GROW_SECONDS / 60:.0f} min"
            )

    def _ask_about(self, member: Member) -> None:
        member.asked = True

        def answered(found: Any) -> None:
            member.asked = False
            if self._members.get(member.name) is not member or isinstance(found, Exception) or found is None:
                return
            silence = time.monotonic() - member.heard
            if found.stopped:
                self._give_up(member, f"its process was stopped (SIGSTOP), and silent for {silence:.1f} s")
            elif found.gone:
                self._give_up(member, f"its process is gone, and was silent for {silence:.1f} s")

        self._await(self._stations[member.node].call("vitals", member.pid), answered)

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
        del self._members[member.name]
        if member.released:
            reason = RELEASED
        elif member.killed:
            reason = member.killed
        if member.joined:
            # Only on the same node can somebody else read the same.
            replaced = not (self._closing or member.retired) and member.node in self._stations
            self._events.append(WorkerLost(member.name, reason, self._last_words(member), replaced))
        if self._closing or member.retired:
            return
        if member.joined:
            self._due.append((0.0, member.node, 0))
            self._start_due()
            return
        failures = member.failures + 1
        if failures == MAX_STARTS:
            raise WorkersLost(
                f"worker {member.name} ended before it was ready, as {failures - 1} before it did: {reason}; the logs "
                "of Ray on that node may say why"
            )
        self._due.append((time.monotonic() + RETRY_SECONDS * 2 ** (failures - 1), member.node, failures))

    def _last_words(self, member: Member) -> str:
        """The end of what the code of the trial at work has printed, if its node can tell."""
        station = self._stations.get(member.node)
        if not member.trial or member.released or member.stopped or station is None:
            return ""
        ray = cluster.require_ray()
        said = station.call("last_words", self._where, member.name, member.trial)
        with contextlib.suppress(ray.exceptions.RayError):
            return str(ray.get(said, timeout=LAST_WORDS_SECONDS))
        return ""

    def _lose_node(self, station: Station, reason: str) -> None:
        """A node is gone, with its workers, its versions and its partitions."""
        node = station.node.id
        if self._stations.pop(node, None) is None:
            return
        self._lost[node] = time.monotonic()
        close_station(station)
        lost = [member for member in self._members.values() if member.node == node]
        for member in lost:
            member.killed = member.killed or f"its node {station.node.name} was lost: {reason}"
            end(member.actor)
            self._lose(member, reason)
        for member in self._members.values():
            self._tell(member, "Gone", node)
        for trial, version, save in self._whereabouts.lose(node):
            lost_with = f"its node {station.node.name} was lost"
            self._events.append(VersionLost(trial, version, lost_with, saved=save))
        if self._closing:
            return
        if not self._stations:
            why = f"the last node is lost: {station.node.name}, {reason}"
            if not self.autoscale:
                raise WorkersLost(why)
            self._bereft = why, time.monotonic() + GROW_SECONDS

    def _deserted(self, station: Station) -> bool:
        """Whether a node has nothing that a run may need, and nobody who is or will be there."""
        node = station.node.id
        wanted = (*(member.node for member in self._members.values()), *(one[1] for one in self._due))
        return station.ready and node not in wanted and not self._whereabouts.alone(node)

    def _leave(self, station: Station) -> None:
        """Have no process on a node any more, so that the autoscaler may take it away."""
        node = station.node.id
        del self._stations[node]
        self._whereabouts.lose(node)
        for member in self._members.values():
            self._tell(member, "Gone", node)
        self._await(station.call("release", self._where), lambda _: close_station(station))

    # -------------------------------------------------------------------------------------------- nodes that join

    def _watch(self) -> None:
        """Look for new nodes in the background, and have the autoscaler know what is lacking."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(WATCH_SECONDS):
                with contextlib.suppress(Exception):
                    seen = [node for node in cluster.nodes() if self._lives(node)]
                    if not self._demand.keep(len(self._homeless()) if self.autoscale else 0):
                        self._seen = seen

        watcher = threading.Thread(target=watch, daemon=True, name="hopfleet-nodes")
        self._watching = over, watcher
        watcher.start()

    def _lives(self, node: Node) -> bool:
        """Whether a node may be used. One that was lost may have come back; Ray calls it alive for long, though."""
        if node.id not in self._lost:
            return True
        return self._long_lost(node) and cluster.try_raylet(node) is Verdict.ANSWERS

    def _long_lost(self, node: Node) -> bool:
        return time.monotonic() - self._lost[node.id] > RETURN_SECONDS

    def _meet(self, seen: list[Node]) -> None:
        """Use nodes that have joined, if that is wanted, and others if somebody waits for room."""
        waiting = len(self._homeless())
        for node in seen:
            room = node.room(self._job.device, self._job.threads)
            if node.id in self._stations or room < 1:
                continue
            if node.id in self._lost and not self._long_lost(node):
                continue  # it was seen before it was lost
            new = self.elastic and not self.autoscale and (node.id not in self._known or node.id in self._lost)
            self._known.add(node.id)
            count = room if new else min(room, waiting)
            if count:
                waiting = max(0, waiting - count)
                self._lost.pop(node.id, None)
                self._welcome(node, count)

    def _welcome(self, node: Node, count: int) -> None:
        """Begin to use a node in the middle of a run; if it is of no use, the log says why, and all goes on."""
        placed = {name: station.partitions for name, station in self._stations.items()}
        station = self._open(node, share(len(self._job.train), placed))
        token = Token(self._where)

        def answered(problems: Any) -> None:
            token.remove()
            if self._stations.get(node.id) is not station:
                return
            if isinstance(problems, Exception):
                problems = [explain(problems)]
            if problems:
                self._lost[node.id] = math.inf
                close_station(self._stations.pop(node.id))
                with (self._job.logs / "workers.log").open("a") as log:
                    log.write(f"{node.name} joined and is not used: {'; '.join(problems)}\n")
                return
            self._fetch(station, station.partitions)
            waiting = self._homeless()
            self._due = [one for one in self._due if one not in waiting] + waiting[count:]
            for number in range(count):
                self._spawn(node.id, waiting[number][2] if number < len(waiting) else 0)

        self._await(token.ask(station, self._job), answered)


class _Told(ClusterVersions):
    """The versions as the driver sees them: what it drops, nodes drop too."""

    def __init__(self, checkpoints: Path, url: str, backend: Ray) -> None:
        super().__init__(checkpoints, url=url)
        self._backend = backend
        #: What is far away is dropped and fetched beside the work: nobody waits for that.
        self._errands = ThreadPoolExecutor(1)

    def drop(self, trial: str, version: int, attempt: int) -> None:
        if not self._backend.drop((trial, version, attempt)):
            self._errands.submit(super().drop, trial, version, attempt)

    def collect(self, trial: str = "") -> None:
        self._errands.submit(super().collect, trial)  # what does not come now is fetched in the end

    def forget(self, trial: str) -> None:
        super().forget(trial)
        self._backend.forget(trial)

    def release(self) -> None:
        self._errands.shutdown()
        self._errands = ThreadPoolExecutor(1)
        super().release()
        self._backend._release()
        super().collect()
