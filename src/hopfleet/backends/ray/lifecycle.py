"""How the workers and nodes of a run on a Ray cluster come and go.

A node is lost when its raylet is gone, or when its agent is silent and the node cannot be reached: Ray takes longer to
notice. Reports of lost workers are ignored. Other nodes fetch the partitions of a lost node. While no other host
answers, no node is lost: the run waits for the link of this machine, and for the head of the cluster.
"""

from __future__ import annotations

import dataclasses
import secrets
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hopfleet.backends.ray import cluster
from hopfleet.backends.ray.calls import Calls
from hopfleet.backends.ray.cluster import Reachability
from hopfleet.backends.ray.discovery import Discovery
from hopfleet.backends.ray.links import LOOPBACK, Seat
from hopfleet.backends.ray.liveness import RESUME, SILENCE_SECONDS, STUCK_SECONDS, link_holds, node_lost, worker_lost
from hopfleet.backends.ray.node_agent import home
from hopfleet.backends.ray.nodes import NodeHandle, Nodes, Token, end, explain, own_fault
from hopfleet.backends.ray.pending_workers import PendingWorker, PendingWorkers
from hopfleet.backends.ray.placement import Node, Place, WorkerNeeds, places, shares, why_unready
from hopfleet.backends.ray.version_locations import VersionLocations
from hopfleet.backends.ray.versions import StorageLocation
from hopfleet.backends.ray.worker_actor import Setup
from hopfleet.backends.ray.workers import ActorHandle, give_back, reserve, start_worker
from hopfleet.backends.supervision import SupervisedBackend, check_starts, excused, restart_pause
from hopfleet.backends.vitals import Vitals
from hopfleet.domain.messages import VersionLost, WorkerJoined, WorkerLost, WorkerUnavailable
from hopfleet.domain.placement import Placement
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import DataError, WorkersLost
from hopfleet.support.files import append
from hopfleet.worker.protocol import NodeJoined, NodeLost
from hopfleet.worker.spec import WorkerSpec

HEAD_SECONDS = 2.0
"""Seconds between connections to the head."""

RESERVE_SECONDS = 15.0
"""Seconds to end a run before Ray ends the process because the head is gone."""


class ClusterBackend(SupervisedBackend[ActorHandle]):
    """Workers and nodes of a run, without the messages to workers."""

    importable = "every node can import"
    elastic: bool
    autoscale: bool
    outage: float
    pack: bool
    #: What workers need, in turn; all members of all workers need the same of their nodes.
    _teams: Sequence[WorkerNeeds]
    #: Further options of Ray for all actors.
    _options: Mapping[str, Any]
    _head: cluster.Peer | None = None
    _here: str
    _spec: WorkerSpec
    _location: StorageLocation
    #: The pickled spec, in Ray's object store.
    _payload: Any

    def __init__(self) -> None:
        self._known_nodes = Nodes()
        super().__init__()

    def _reset(self) -> None:
        super()._reset()
        #: Nodes in use, by id.
        self._nodes: dict[str, NodeHandle] = {}
        self._pending = PendingWorkers()
        self._discovery = Discovery(elastic=self.elastic, autoscale=self.autoscale, outage=self.outage, pack=self.pack)
        #: Where versions are. Drops travel with the next message to a worker of the node.
        self._locations = VersionLocations()
        self._calls = Calls()
        #: Whether there are several sorts of nodes whose speeds are not known yet.
        self._speeds_unknown = False
        #: What the run waits for, in words; empty if for nothing.
        self._trouble = ""
        #: Whether teams were formed during the run; these shrink with their nodes.
        self._formed = False

    # -------------------------------------------------------------------------------------------------- liveness

    def _look(self) -> None:
        """Give up silent workers and nodes, and use nodes that have joined."""
        now = time.monotonic()
        away, self._looked = now - self._looked, now
        head = self._look_at_head(now, away)
        for node in list(self._nodes.values()):
            node.look(self._calls, now, away)
            if self._judge(node, now):
                continue
            if self.autoscale and not self._closing and self._is_unused(node):
                self._leave(node)
        for handle in self._processes():
            handle.heard = excused(handle.heard, now, away)
            silence = now - handle.heard
            if not self._works(handle) or any(self._nodes[node].cut for node in (handle.leader or handle).nodes):
                continue
            if reason := worker_lost(silence, ready=handle.ready, start_timeout=self._spec.start_timeout):
                self._give_up(handle, reason)
            elif handle.ready and silence > STUCK_SECONDS and not handle.asked:
                self._ask_about(handle)
        if not self._closing:
            for joined, starts in self._discovery.newcomers(self._nodes, self._homeless()):
                self._welcome(joined, starts)
        alone = self._discovery.check_wait()
        self._trouble = self._outage(now) or head or alone

    def trouble(self) -> str:
        return self._trouble

    def _judge(self, node: NodeHandle, now: float) -> bool:
        """Give up a lost node, and return True. If the link of this machine may be down, wait for the node instead."""
        reachable = node.raylet.verdict is not Reachability.UNREACHABLE
        if node.silent_since and reachable:
            # The pauses between retransmissions double: connections may stay silent as long again as they were.
            self._excuse(node, now + now - node.silent_since)
            node.cut, node.silent_since = False, 0.0
        elif not reachable and node.lost(now) and not self._closing:
            node.silent_since = node.silent_since or node.heard
            before, node.cut = node.cut, now - node.silent_since < self.outage and not self._link_holds(node)
            if before and not node.cut:
                self._excuse(node, now)  # the link is back: the next attempt to reach the node decides
        if node.cut or not node.lost(now):
            return False
        self._lose_node(node, node_lost(node.raylet.verdict, now - (node.silent_since or node.heard)))
        return True

    def _excuse(self, node: NodeHandle, heard: float) -> None:
        """Count the silence of a node and its workers from ``heard``."""
        node.heard = heard
        for handle in self._processes():
            if handle.node == node.node.id:
                handle.heard = max(handle.heard, heard)

    def _link_holds(self, node: NodeHandle) -> bool:
        """Whether another host has answered since a node fell silent."""
        answers = {}
        if self._head is not None and self._head.address != self._here:
            answers[self._head.address] = self._head.answered
        for other in self._nodes.values():
            answers[other.node.address] = max(other.last_answer, answers.get(other.node.address, 0.0))
        return link_holds(node.node.address, node.heard, answers, self._here)

    def _outage(self, now: float) -> str:
        """Return what the run waits for if no other host answers; empty if some do."""
        silent = [now - node.silent_since for node in self._nodes.values() if node.cut]
        if not silent:
            return ""
        return (
            f"no other host has answered for {max(silent):.0f} s, so the network of this machine may be down; "
            f"given up after {self.outage:.0f} s"
        )

    def _look_at_head(self, now: float, away: float) -> str:
        """Return what is said about a head that does not answer. Without a head no worker can be replaced.

        Ray ends a process that has not reached the head for long, so the run ends before that.
        """
        head = self._head
        assert head is not None, "the backend has connected"
        head.answered = excused(head.answered, now, away)
        head.check(anew=now - head.answered > HEAD_SECONDS)
        silence, limit = now - head.answered, min(self.outage, cluster.reconnect_seconds() - RESERVE_SECONDS)
        if silence < SILENCE_SECONDS or self._closing:
            return ""
        what = f"the head of the Ray cluster, {head.address}, has not answered for {silence:.0f} s"
        if silence > limit:
            raise WorkersLost(f"{what}; {RESUME}")
        return f"{what}; given up after {limit:.0f} s"

    def _ask_about(self, handle: ActorHandle) -> None:
        """Ask the node agent whether the process of a worker is stopped or gone."""
        handle.asked = True

        def answered(found: Any) -> None:
            handle.asked = False
            if not self._works(handle) or not isinstance(found, Vitals):
                return
            if reason := found.lost(time.monotonic() - handle.heard):
                self._give_up(handle, reason)

        self._calls.then(self._nodes[handle.node].call("vitals", handle.pid), answered)

    def unready(self) -> str:
        found, seen = [], self._discovery.now()
        for name, used in self._nodes.items():
            mine = [handle for handle in self._workers.values() if handle.node == name and not handle.ready]
            why = why_unready(
                mine[0].needs if mine else self._teams[0],
                seen.get(name, used.node),
                agent=used.answered > 0,
                fetching=() if used.ready else used.partitions,
                waiting=[handle.name for handle in mine if not handle.answered],
                loading=[handle.name for handle in mine if handle.answered],
            )
            found += [why] if why else []
        return "".join(f"; {why}" for why in found)

    # ------------------------------------------------------------------------------------ workers come and go

    def _processes(self) -> list[ActorHandle]:
        """Return the processes of all workers."""
        return [process for handle in self._workers.values() for process in handle.team]

    def _works(self, process: ActorHandle) -> bool:
        """Whether the worker of a process is not lost."""
        return self._is_current(process.leader or process)

    def _devices_per_node(self) -> Counter[str]:
        """Return the number of devices that read from each node with a worker; a team reads with its first member."""
        found = Counter[str]()
        for handle in self._workers.values():
            found[handle.node] += len(handle.team)
        return found

    def _homeless(self) -> list[WorkerNeeds]:
        """Return the pending workers for which no node in use has room."""
        return [pending.needs for pending in self._pending.homeless(self._nodes)]

    def _start_due(self) -> None:
        """Start the pending workers that are due, if there is room for them."""
        now = time.monotonic()
        if not self._pending.due(now):
            return
        started = Counter(process.node for process in self._processes())
        # A node that is not ready will get workers that are not counted yet.
        room = {name: node.room - started[name] for name, node in self._nodes.items() if node.ready}
        for pending in self._pending.fill(now, self._nodes, room, self._places):
            self._spawn(pending)

    def _places(self, needs: WorkerNeeds, room: Mapping[str, int]) -> list[Place]:
        """Return a place for one worker, given the room on nodes, if there is one."""
        return places(room, 1, needs, {name: needs.kind(self._nodes[name].node) for name in room})

    def _spawn(self, pending: PendingWorker) -> None:
        """Start a worker at its place, with its share of each node. A team starts as a whole or not at all."""
        needs, place = pending.needs, pending.place
        # The first member of a team reads the data.
        at = max(range(len(place)), key=lambda rank: (len(self._nodes[place[rank]].partitions), -rank))
        place = (place[at], *place[:at], *place[at + 1 :])
        name, group, secret = self._next_name(), None, secrets.token_bytes()
        if len(place) > 1:
            group = reserve([needs.on(self._nodes[node].node) for node in place], place)
        processes: list[ActorHandle] = []
        for rank, node in enumerate(place):
            used, seat = self._nodes[node], None
            if group is not None:
                address = used.node.address if len(set(place)) > 1 else LOOPBACK
                first = processes[0].actor if processes else None
                seat = Seat(rank, place, address, secret, first)
            path = tuple(entry for entry in sys.path if entry)
            setup = Setup(name, node, used.agent, self._spec.device, self._location, path, home(), needs.shape, seat)
            processes.append(
                start_worker(setup, self._payload, needs=needs, at=used.node, options=self._options, group=group)
            )
        handle, *members = processes
        handle.failures, handle.members = pending.failures, members
        for member in members:
            member.leader = handle
        self._workers[name] = handle
        handle.outbox += [NodeJoined(other.node.id, other.agent) for other in self._nodes.values()]

    def _admit(self, handle: ActorHandle) -> None:
        """Report a worker as joined, if both the worker and its node are ready."""
        node = self._nodes.get(handle.node)
        if handle.joined or not handle.ready or node is None or not node.ready or self._speeds_unknown:
            return
        handle.joined = True
        everything = len(node.partitions) == len(self._spec.train)
        readable = None if everything else node.partitions, node.valid
        placement = Placement((handle.device,) * len(handle.team), handle.needs.shape.strategy)
        self._events.append(WorkerJoined(handle.name, placement, *readable))

    def _give_up(self, process: ActorHandle, reason: str) -> None:
        """End and lose a worker because of one of its processes."""
        handle = process.leader or process
        handle.killed = handle.killed or self._which(process) + reason
        self._kill(handle)
        self._lose(process, reason)

    def _kill(self, handle: ActorHandle) -> None:
        """End the processes of a worker through Ray, and through node agents: a stopped process ignores Ray."""
        for process in handle.team:
            end(process.actor)
            node = self._nodes.get(process.node)
            if node is not None and process.pid:
                node.call("kill", process.pid)

    def _which(self, process: ActorHandle) -> str:
        """Return which member of a team a reason is about; empty for the worker itself."""
        if process.leader is None:
            return ""
        where = f" on {node.node.name}" if (node := self._nodes.get(process.node)) else ""
        return f"member {process.leader.team.index(process)} of its team{where}: "

    def _lose(self, process: ActorHandle, reason: str) -> None:
        """Report the loss of a worker because of one of its processes, and replace the worker."""
        handle = process.leader or process
        del self._workers[handle.name]
        reason = handle.end_reason(self._which(process) + reason)
        if handle.group is not None:
            self._kill(handle)
            give_back(handle.group)
        wanted = not (self._closing or handle.retired)
        left = tuple(node for node in handle.nodes if node in self._nodes)
        # Only a worker on the same nodes can read the same partitions.
        replaced = wanted and left == handle.nodes
        if handle.joined:
            self._events.append(WorkerLost(handle.name, reason, self._last_words(handle), replaced))
        if not wanted:
            return
        successor = PendingWorker(handle.needs, place=left if replaced else ())
        if self._formed:  # no user has asked for this size
            successor = PendingWorker(handle.needs.reduced(len(left)), place=left)
        if handle.joined:
            self._pending.add(successor)
            self._start_due()
            return
        if not successor.place:
            self._events.append(WorkerUnavailable(reason))
        failures = handle.failures + 1
        check_starts(handle.name, failures, reason, "the logs of Ray on that node may say why")
        self._pending.add(successor._replace(when=time.monotonic() + restart_pause(failures), failures=failures))

    def _last_words(self, handle: ActorHandle) -> str:
        """Return the end of the output of the current trial, if the node agent can tell."""
        node = self._nodes.get(handle.node)
        if not handle.trial or handle.released or handle.stopped or node is None:
            return ""
        return node.last_words(self._location, handle.name, handle.trial)

    # -------------------------------------------------------------------------------------- nodes come and go

    def _open(self, node: Node, partitions: tuple[int, ...], valid: tuple[int, ...] | None) -> NodeHandle:
        """Begin to use a node."""
        opened = self._known_nodes.open(node, self._teams[0].room(node), partitions, valid, self._options)
        self._nodes[node.id] = opened
        opened.attend(self._calls, self._lose_node)
        opened.ask(self._calls)
        for handle in self._workers.values():
            handle.outbox.append(NodeJoined(node.id, opened.agent))
        return opened

    def _fetch(self, node: NodeHandle) -> None:
        """Let a node fetch its partitions. Its workers join when the node has them.

        If a node cannot fetch them, it is not used; if the node is one of those at the start, the run ends.
        """
        node.ready = False

        def fetched(outcome: Any) -> None:
            if self._nodes.get(node.node.id) is not node:
                return
            if isinstance(outcome, Exception):
                if own_fault(outcome) and node.joined_late:
                    self._refuse(node, f"a partition could not be fetched: {explain(outcome)}")
                elif own_fault(outcome):
                    raise DataError(f"{node.node.name}: {explain(outcome)}") from outcome
                return  # the node agent is gone, which is noticed elsewhere
            node.ready = True
            for handle in list(self._workers.values()):
                self._admit(handle)

        self._calls.then_all(node.fetch(self._spec), fetched)

    def _welcome(self, node: Node, starts: Sequence[WorkerNeeds]) -> None:
        """Begin to use a node in the middle of a run. If the node cannot be used, the log says why."""
        held = {name: (other.partitions, other.valid) for name, other in self._nodes.items()}
        opened = self._open(node, *shares(len(self._spec.train), len(self._spec.valid or ()), held))
        opened.joined_late = True
        token = Token(self._location)

        def answered(problems: Any) -> None:
            token.remove()
            if self._nodes.get(node.id) is not opened:
                return
            if isinstance(problems, Exception):
                problems = [explain(problems)]
            if problems:
                self._refuse(opened, "; ".join(problems))
                return
            self._fetch(opened)
            for pending in self._pending.house(starts, self._nodes):
                self._spawn(pending._replace(place=(node.id,) * pending.needs.size))

        self._calls.then(token.ask(opened, self._spec), answered)

    def _refuse(self, node: NodeHandle, why: str) -> None:
        """Never use a node that has joined; the log says why."""
        append(self._spec.logs / "workers.log", f"{node.node.name} joined and is not used: {why}\n".encode())
        self._lose_node(node, why)
        self._discovery.shun(node.node.id)

    def _lose_node(self, node: NodeHandle, reason: str) -> None:
        """Report the loss of a node, with its workers and its versions."""
        name, where = node.node.id, node.node.name
        if self._nodes.get(name) is not node:
            return
        del self._nodes[name]
        self._discovery.lose(name)
        self._known_nodes.close(node)
        if where in self._teams[0].members:
            self._leave_plan()
        for handle in [handle for handle in self._workers.values() if name in handle.nodes]:
            whose = "its node" if handle.node == name else "a node of its team,"
            handle.killed = handle.killed or f"{whose} {where} was lost: {reason}"
            end(handle.actor)
            self._lose(handle, reason)
        self._events += [WorkerUnavailable(f"its node {where} was lost: {reason}")] * self._pending.evict(name)
        for ref in self._forsake(name):
            self._events.append(VersionLost(ref, f"its node {where} was lost"))
        if not self._nodes and not self._closing:
            self._discovery.lose_last(f"the last node is lost: {where}, {reason}")

    def _leave_plan(self) -> None:
        """Let the team of a plan be on any nodes, since one of those that the plan names is gone."""
        self._teams = [dataclasses.replace(needs, members=()) for needs in self._teams]
        self._discovery.look_for(self._teams)
        for node in self._nodes.values():
            node.room = self._teams[0].room(node.node)

    def _is_unused(self, node: NodeHandle) -> bool:
        """Whether a node has no worker, will get none, and holds no version that only it has."""
        name = node.node.id
        wanted = {process.node for process in self._processes()} | self._pending.nodes()
        return node.ready and name not in wanted and not self._locations.alone(name)

    def _leave(self, node: NodeHandle) -> None:
        """End all processes on a node, so that the autoscaler may take the node away."""
        del self._nodes[node.node.id]
        self._forsake(node.node.id)
        self._calls.then(node.call("release", self._location), lambda _: self._known_nodes.close(node))

    def _forsake(self, node: str) -> list[VersionRef]:
        """Expect nothing from a node any more; return the versions that only this node had."""
        for handle in self._workers.values():
            handle.outbox.append(NodeLost(node))
        return self._locations.lose(node)
