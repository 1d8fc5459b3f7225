"""Which nodes of the cluster to use: those to begin with, and those that join later.

A thread looks at the cluster all the time. What it sees is met by the thread that drives the run, when that asks.
With an autoscaler there may be no node for a while, and room that is lacking is asked for.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection

from hopfleet.backends.ray import cluster
from hopfleet.backends.ray.cluster import Verdict
from hopfleet.backends.ray.demand import Demand
from hopfleet.backends.ray.placement import Node, choose_nodes, spread
from hopfleet.errors import UsageError, WorkersLost

WATCH_SECONDS = 1.0
"""How often to look for nodes that joined."""

RETURN_SECONDS = 10.0
"""A node that was lost for so long, and answers, is used again."""

ROOM_SECONDS = 4.0
"""How long to wait for resources that others give back at this moment."""

GROW_SECONDS = 900.0
"""How long to wait for a node that an autoscaler starts where there is none."""


class Discovery:
    """With ``elastic`` nodes that join are used to the full; with ``autoscale`` room is asked for that is lacking."""

    def __init__(self, *, elastic: bool, autoscale: bool) -> None:
        self._elastic = elastic
        self._autoscale = autoscale
        #: Nodes that were there at the start or have been met since.
        self._known: set[str] = set()
        #: Nodes that were lost, and since when; those that are of no use are lost for ever.
        self._lost: dict[str, float] = {}
        #: Nodes as they were last seen, until somebody asks for them.
        self._seen: list[Node] = []
        self._watching: tuple[threading.Event, threading.Thread] | None = None
        #: Room for workers that is asked of an autoscaler.
        self._demand = Demand({})
        #: Why the last node is gone, if it is, and until when the autoscaler may start another one.
        self._bereft: tuple[str, float] | None = None

    def choose(self, workers: int, device: str, threads: int) -> tuple[list[Node], list[str]]:
        """All nodes, and one for each worker, or with an autoscaler for as many as fit, at least for one.

        What others have just given back takes a moment to show.
        """
        self._device, self._threads = device, threads
        self._demand = Demand({"GPU": 1} if device not in ("cpu", "auto") else {"CPU": threads})
        deadline = time.monotonic() + (GROW_SECONDS if self._autoscale else ROOM_SECONDS)
        while True:
            nodes = cluster.living()
            self._known = {node.id for node in nodes}
            try:
                return nodes, choose_nodes(nodes, workers, device=device, threads=threads)
            except UsageError:
                if time.monotonic() > deadline:
                    raise
            if self._autoscale:
                fit = spread({node.id: node.room(device, threads) for node in nodes}, workers)
                if not self._demand.keep(0 if fit else workers) and fit:
                    return nodes, fit
            time.sleep(0.1)

    def watch(self, lacking: Callable[[], int]) -> None:
        """Look for new nodes in the background; the autoscaler knows for how many workers room is lacking."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(WATCH_SECONDS):
                with contextlib.suppress(Exception):
                    seen = [node for node in cluster.nodes() if self._lives(node)]
                    if not self._demand.keep(lacking() if self._autoscale else 0):
                        self._seen = seen

        watcher = threading.Thread(target=watch, daemon=True, name="hopfleet-nodes")
        self._watching = over, watcher
        watcher.start()

    def newcomers(self, used: Collection[str], waiting: int) -> list[tuple[Node, int]]:
        """Nodes to be used besides those that are, each with how many workers to start there.

        Those that have joined, if that is wanted; others if somebody waits for room.
        """
        seen, self._seen = self._seen, []
        found = []
        for node in seen:
            room = node.room(self._device, self._threads)
            if node.id in used or room < 1:
                continue
            if node.id in self._lost and not self._long_lost(node):
                continue  # it was seen before it was lost
            new = self._elastic and not self._autoscale and (node.id not in self._known or node.id in self._lost)
            self._known.add(node.id)
            count = room if new else min(room, waiting)
            if count:
                waiting = max(0, waiting - count)
                self._lost.pop(node.id, None)
                self._bereft = None
                found.append((node, count))
        return found

    def lose(self, node: str) -> None:
        """It is used again only after a while."""
        self._lost[node] = time.monotonic()

    def shun(self, node: str) -> None:
        """It is of no use, for ever."""
        self._lost[node] = math.inf

    def lose_last(self, why: str) -> None:
        """Nobody has a node any more. That is the end, unless an autoscaler may start another one."""
        if not self._autoscale:
            raise WorkersLost(why)
        self._bereft = why, time.monotonic() + GROW_SECONDS

    def check_wait(self) -> None:
        """Where there is no node: give up if none came in time after the last one was lost."""
        if self._bereft is not None and time.monotonic() > self._bereft[1]:
            raise WorkersLost(
                f"{self._bereft[0]}; Ray's autoscaler started no other within {GROW_SECONDS / 60:.0f} min"
            )

    def close(self) -> None:
        """Look no more, and ask for nothing."""
        if self._watching is not None:
            over, watcher = self._watching
            over.set()
            watcher.join()  # or it would ask a Ray that is gone
        with contextlib.suppress(Exception):
            self._demand.keep(0)

    def _lives(self, node: Node) -> bool:
        """Whether a node may be used. One that was lost may have come back; Ray calls it alive for long, though."""
        if node.id not in self._lost:
            return True
        return self._long_lost(node) and cluster.try_raylet(node) is Verdict.ANSWERS

    def _long_lost(self, node: Node) -> bool:
        return time.monotonic() - self._lost[node.id] > RETURN_SECONDS
