"""Which nodes of the cluster to use: those to begin with, and those that join later.

A thread polls the cluster; the thread that drives the run picks up the results. With an autoscaler there may be no node
for a while, and missing room is requested.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from hopfleet.backends.ray import cluster
from hopfleet.backends.ray.cluster import Reachability
from hopfleet.backends.ray.demand import Demand
from hopfleet.backends.ray.liveness import RESUME
from hopfleet.backends.ray.placement import Node, Place, WorkerNeeds, choose_nodes, places_on
from hopfleet.errors import UsageError, WorkersLost
from hopfleet.support.files import limited

WATCH_SECONDS = 1.0
"""Seconds between checks for nodes that joined."""

RETURN_SECONDS = 10.0
"""Seconds after which a lost node that answers is used again."""

ROOM_SECONDS = 4.0
"""Seconds to wait for resources that are just being released."""

GROW_SECONDS = 900.0
"""Seconds to wait for an autoscaler to start a node if there is none."""

CLOSE_SECONDS = 5.0
"""Maximum seconds to wait for a poll that is under way; without a head it does not end."""


class Discovery:
    """The search for nodes. ``elastic`` uses nodes that join; ``autoscale`` requests missing room.

    ``outage`` are the seconds to wait for a node after the last one is lost; ``pack`` begins with few nodes.
    """

    def __init__(self, *, elastic: bool, autoscale: bool, outage: float, pack: bool = False) -> None:
        self._pack = pack
        self._elastic = elastic
        self._autoscale = autoscale
        self._grace = max(outage, GROW_SECONDS) if autoscale else outage
        #: Nodes that existed at the start or were picked up since.
        self._known: set[str] = set()
        #: Lost nodes, and since when; unusable nodes are lost forever.
        self._lost: dict[str, float] = {}
        #: Nodes as last seen, until the driving thread picks them up.
        self._seen: list[Node] = []
        #: Whether the head was started again without the state of the cluster.
        self._forgotten = False
        self._watching: tuple[threading.Event, threading.Thread] | None = None
        #: Room for workers requested from an autoscaler.
        self._demand = Demand({})
        #: If the last node is lost: the reason, and the deadline for another one.
        self._bereft: tuple[str, float] | None = None

    def choose(self, workers: int, teams: Sequence[WorkerNeeds]) -> tuple[list[Node], list[tuple[WorkerNeeds, Place]]]:
        """Return all nodes, and what each worker needs, with its place.

        With an autoscaler, at least one worker has a place; the places of others may be empty.
        Workers have the given ``teams`` in turn. Resources that were just released take a moment to show.
        """
        self._teams = teams
        self._demand = Demand(teams[0].anywhere, teams[0].labels)
        wanted = [teams[number % len(teams)] for number in range(workers)]
        deadline = time.monotonic() + (GROW_SECONDS if self._autoscale else ROOM_SECONDS)
        while True:
            nodes = cluster.living()
            self._known = {node.id for node in nodes}
            try:
                return nodes, list(zip(wanted, choose_nodes(nodes, wanted, pack=self._pack), strict=True))
            except UsageError:
                if time.monotonic() > deadline:
                    raise
            if self._autoscale:
                fit = places_on(nodes, wanted, pack=self._pack)
                if not self._demand.keep(0 if any(fit) else sum(needs.size for needs in wanted)) and any(fit):
                    return nodes, list(zip(wanted, fit, strict=True))
            time.sleep(0.1)

    def look_for(self, teams: Sequence[WorkerNeeds]) -> None:
        """Look for room for other workers than before."""
        self._teams = teams

    def watch(self, lacking: Callable[[], int]) -> None:
        """Look for new nodes in the background, and keep the autoscaler informed about missing room.

        ``lacking`` returns the number of members without room.
        """
        over = threading.Event()

        def watch() -> None:
            while not self._forgotten and not over.wait(WATCH_SECONDS):
                with contextlib.suppress(Exception):
                    if cluster.head_forgot():
                        self._forgotten = True
                        return
                    seen = [node for node in cluster.nodes() if self._lives(node)]
                    if not self._demand.keep(lacking() if self._autoscale else 0):
                        self._seen = seen

        watcher = threading.Thread(target=watch, daemon=True, name="hopfleet-nodes")
        self._watching = over, watcher
        watcher.start()

    def newcomers(self, used: Collection[str], waiting: Sequence[WorkerNeeds]) -> list[tuple[Node, list[WorkerNeeds]]]:
        """Return further nodes to use, each with the workers to start there.

        These are nodes that have joined, if ``elastic``, and others if a worker is ``waiting`` for room. A team that
        waits may need room on several nodes, and then a node comes with no worker of its own.
        """
        seen, self._seen = self._seen, []
        left, found = list(waiting), []
        for node in seen:
            room = self._teams[0].room(node)
            adds = room > 0 and any(needs.spans for needs in left)
            if node.id in used or not (adds or _fitting(room, [*left, *self._teams])):
                continue
            if node.id in self._lost and not self._long_lost(node):
                continue  # seen before it was lost
            new = self._elastic and not self._autoscale and (node.id not in self._known or node.id in self._lost)
            self._known.add(node.id)
            starts = _fitting(room, [*left, *list(self._teams) * room] if new else left)
            if starts or adds:
                for needs in starts:
                    if needs in left:
                        left.remove(needs)
                self._lost.pop(node.id, None)
                self._bereft = None
                found.append((node, starts))
        return found

    def now(self) -> dict[str, Node]:
        """Return the nodes as they are now, by id; nothing if the head does not answer."""
        with contextlib.suppress(Exception):
            if limited(cluster.head_forgot, CLOSE_SECONDS):
                return {}
            return {node.id: node for node in limited(cluster.nodes, CLOSE_SECONDS)}
        return {}

    def lose(self, node: str) -> None:
        """Use a lost node again only after a while."""
        self._lost[node] = time.monotonic()

    def shun(self, node: str) -> None:
        """Never use a node again."""
        self._lost[node] = math.inf

    def lose_last(self, why: str) -> None:
        """Wait for another node after the last one is lost: its host may come back, or an autoscaler starts one."""
        self._bereft = why, time.monotonic() + self._grace

    def check_wait(self) -> str:
        """Return why the run waits for a node, empty if it does not; give up if no node has come in time."""
        if self._forgotten:
            raise WorkersLost(f"the head of the Ray cluster was started again without its state; {RESUME}")
        if self._bereft is None:
            return ""
        why, deadline = self._bereft
        if time.monotonic() > deadline:
            raise WorkersLost(f"{why}; no other node came within {self._grace:.0f} s; {RESUME}")
        return f"{why}; waiting for another node"

    def close(self) -> None:
        """Stop polling, and withdraw all requests."""
        if self._watching is not None:
            over, watcher = self._watching
            over.set()
            watcher.join(CLOSE_SECONDS)  # otherwise the thread would ask a Ray that is gone
            if watcher.is_alive() or self._forgotten:
                return  # the head is gone, and with it all requests
        with contextlib.suppress(Exception):
            self._demand.keep(0)

    def _lives(self, node: Node) -> bool:
        """Whether a node may be used. A lost node may have returned, but Ray calls it alive for long after its end."""
        if node.id not in self._lost:
            return True
        return self._long_lost(node) and cluster.try_raylet(node) is Reachability.ANSWERS

    def _long_lost(self, node: Node) -> bool:
        return time.monotonic() - self._lost[node.id] > RETURN_SECONDS


def _fitting(room: int, wanted: Iterable[WorkerNeeds]) -> list[WorkerNeeds]:
    """Return the workers that fit on one node with that room for members, the first ones first."""
    found = []
    for needs in wanted:
        if needs.size <= room:
            room -= needs.size
            found.append(needs)
    return found
