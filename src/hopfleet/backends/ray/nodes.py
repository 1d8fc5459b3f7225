"""Nodes in use, as the driver sees them: each has a node agent, which serves one experiment after another."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopfleet.backends.ray import cluster
from hopfleet.backends.ray.calls import Calls
from hopfleet.backends.ray.liveness import ASK_SECONDS, node_lost
from hopfleet.backends.ray.node_agent import About, NodeAgent, about, home, skew
from hopfleet.backends.ray.placement import Node
from hopfleet.backends.ray.versions import StorageLocation
from hopfleet.backends.supervision import START_SECONDS, excused
from hopfleet.errors import UsageError, WorkersLost, describe
from hopfleet.store.versions.remote import Remote
from hopfleet.support.files import make_folder, remove_file, write_text
from hopfleet.worker.spec import WorkerSpec

BEAT_SECONDS = 30.0
"""Seconds that a node agent waits before it answers; the end of its process shows at once."""

PAUSE_SECONDS = 1.0
"""Seconds before a node agent is called again that Ray could not reach."""

ANSWER_SECONDS = 30.0
"""Seconds to wait for a node's description of itself."""

LAST_WORDS_SECONDS = 0.5
"""Seconds to wait for the output of a trial on a lost worker."""

GROUPS = {"beat": 1, "answers": 1, "files": 4, "sends": 4}


@dataclass(slots=True)
class NodeHandle:
    """A node in use."""

    node: Node
    agent: Any
    #: Maximum number of workers on the node.
    room: int
    partitions: tuple[int, ...]
    heard: float
    raylet: cluster.Peer
    #: The validation partitions that the node has or fetches; None stands for all.
    valid: tuple[int, ...] | None = None
    #: Whether the node has its partitions.
    ready: bool = False
    #: Whether the node agent was asked for a sign of life.
    asked: bool = False
    #: When the node last answered; unlike ``heard``, never corrected.
    answered: float = 0.0
    #: Whether the node has joined in the middle of the run.
    joined_late: bool = False
    #: Whether the node cannot be reached, and the link of this machine may be the reason.
    cut: bool = False
    #: When the node was last heard, if it cannot be reached; 0 if it can.
    silent_since: float = 0.0

    def add(self, partition: int, *, valid: bool) -> None:
        """Note that the node has one more training or validation partition."""
        if not valid:
            self.partitions = tuple(sorted({*self.partitions, partition}))
        elif self.valid is not None:
            self.valid = tuple(sorted({*self.valid, partition}))

    def fetch(self, spec: WorkerSpec) -> list[Any]:
        """Let the node agent fetch the partitions of this node; return references to its answers."""
        wanted = [(spec.train, self.partitions)]
        if spec.valid is not None:
            wanted.append((spec.valid, tuple(range(len(spec.valid))) if self.valid is None else self.valid))
        return [self.call("fetch", dataset.stored, partitions, home()) for dataset, partitions in wanted]

    def call(self, method: str, *arguments: Any, group: str = "files") -> Any:
        """Call the node agent; return a reference to its answer."""
        return getattr(self.agent, method).options(concurrency_group=group).remote(*arguments)

    def attend(self, calls: Calls, lost: Callable[[NodeHandle, str], None]) -> None:
        """Call ``lost`` as soon as the node agent ends, with the reason."""

        def heard(outcome: Any) -> None:
            if is_away(outcome):
                calls.later(PAUSE_SECONDS, lambda: self.attend(calls, lost))
            elif isinstance(outcome, Exception):
                lost(self, explain(outcome))
            else:
                self.hear()
                self.attend(calls, lost)

        calls.then(self.call("beat", BEAT_SECONDS, group="beat"), heard)

    def hear(self) -> None:
        """Note a sign of life."""
        self.heard = self.answered = time.monotonic()

    def ask(self, calls: Calls) -> None:
        """Ask for a sign of life. If the node agent is gone, ``lost`` is called."""
        self.asked = True

        def answered(outcome: Any) -> None:
            self.asked = False
            if not isinstance(outcome, Exception):
                self.hear()

        calls.then(self.call("beat", 0.0, group="answers"), answered)

    def look(self, calls: Calls, now: float, away: float) -> None:
        """Ask for a sign of life if the node is quiet. ``away`` are the seconds without listening."""
        self.heard = excused(self.heard, now, away)
        quiet = now - self.heard > ASK_SECONDS
        if quiet and not self.asked:
            self.ask(calls)
        self.raylet.check(anew=quiet)

    def lost(self, now: float) -> str:
        """Return why the node is lost, empty if it may be alive."""
        return node_lost(self.raylet.verdict, now - self.heard)

    @property
    def last_answer(self) -> float:
        """When the node agent, a worker or the raylet last answered."""
        return max(self.answered, self.raylet.answered)

    def last_words(self, location: StorageLocation, worker: str, trial: str) -> str:
        """Return the end of a trial's output on a lost worker, if the node agent answers soon."""
        ray = cluster.require_ray()
        said = self.call("last_words", location, worker, trial)
        with contextlib.suppress(ray.exceptions.RayError):
            return str(ray.get(said, timeout=LAST_WORDS_SECONDS))
        return ""


class Nodes:
    """The nodes that a backend has used. Their agents stay for its next run."""

    def __init__(self) -> None:
        #: Node agents, by Ray's job, node and options.
        self._agents: dict[tuple[str, str, str], Any] = {}

    def open(
        self,
        node: Node,
        room: int,
        partitions: tuple[int, ...],
        valid: tuple[int, ...] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> NodeHandle:
        """Return a handle of a node, and start an agent there unless there is one from an earlier run.

        ``options`` are further options of Ray for the agent.
        """
        ray = cluster.require_ray()
        key = (ray.get_runtime_context().get_job_id(), node.id, repr(options or {}))
        if key not in self._agents:
            actor = ray.remote(
                # Keep these calls out of Ray's dashboard.
                num_cpus=0,
                max_restarts=0,
                max_task_retries=0,
                concurrency_groups=GROUPS,
                enable_task_events=False,
            )(NodeAgent)
            self._agents[key] = actor.options(scheduling_strategy=on(node.id), **options or {}).remote(node.id)
        # The first answer may take a while.
        heard = time.monotonic() + START_SECONDS
        raylet = cluster.Peer(node.address, node.port)
        return NodeHandle(node, self._agents[key], room, partitions, heard, raylet, valid)

    def close(self, handle: NodeHandle) -> None:
        """Never use the node agent again: it is gone, or unusable."""
        for key in [key for key, agent in self._agents.items() if agent is handle.agent]:
            del self._agents[key]
        handle.raylet.close()
        end(handle.agent)


def check_nodes(handles: Sequence[NodeHandle], spec: WorkerSpec, location: StorageLocation) -> None:
    """Raise if anything is wrong with any node."""
    ray = cluster.require_ray()
    token = Token(location)
    lost, problems = [], []
    try:
        asked = [token.ask(handle, spec) for handle in handles]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=START_SECONDS)
        for handle, answer in zip(handles, asked, strict=True):
            if answer not in answered:
                lost.append(f"{handle.node.name}: its node agent has not answered for {START_SECONDS:.0f} s")
                continue
            try:
                problems += [f"{handle.node.name}: {problem}" for problem in ray.get(answer)]
            except ray.exceptions.RayError as error:
                lost.append(f"{handle.node.name}: {explain(error)}")
    finally:
        token.remove()
    if lost:
        raise WorkersLost(f"some nodes could not be prepared: {'; '.join(lost)}; the logs of Ray there may say why")
    if problems:
        raise UsageError(
            f"some nodes cannot work: {'; '.join(problems)}. Data sets and storage must be reachable from every node, "
            "by a shared folder or a URL, and all nodes must have the same packages"
        )


class Token:
    """A file in the storage for nodes to find, and the files that they write in answer."""

    def __init__(self, location: StorageLocation) -> None:
        self._location = location
        self._names = [f".shared-{uuid.uuid4().hex[:12]}"]
        self._remote = Remote(location.url) if location.url else None
        try:
            if self._remote is not None:
                self._remote.put_text(self._names[0], self._names[0])
            else:
                make_folder(location.checkpoints, private=True)
                write_text(location.checkpoints / self._names[0], self._names[0], durable=False)
        except Exception as error:
            where = location.name
            if isinstance(error, FileNotFoundError) and location.url:
                missing = f"storage={where!r}: there is no such bucket; create the bucket, or correct its name"
                raise UsageError(missing) from error
            raise UsageError(f"storage={where!r}: cannot be written ({describe(error)}); choose another one") from error

    def ask(self, handle: NodeHandle, spec: WorkerSpec) -> Any:
        """Start the checks of a node; return a reference to its problems, in words."""
        self._names.append(f"{self._names[0]}-{handle.node.id[:12]}")
        datasets = [dataset.stored for dataset in (spec.train, spec.valid) if dataset is not None]
        return handle.call("problems", about(), datasets, self._location, self._names[0])

    def remove(self) -> None:
        with contextlib.suppress(Exception):
            for name in self._names:
                if self._remote is not None:
                    self._remote.remove(name)
                else:
                    remove_file(self._location.checkpoints / name)


def inspect_nodes(address: str | None) -> list[tuple[Node, About | None, list[str]]]:
    """Return the nodes of a cluster, the description of each, and its differences from this machine."""
    ours = cluster.connect(address)
    ray = cluster.require_ray()
    try:
        nodes = Nodes()
        handles = [nodes.open(node, 0, ()) for node in cluster.nodes()]
        found: list[tuple[Node, About | None, list[str]]] = []
        for handle, asked in [(handle, handle.call("about")) for handle in handles]:
            try:
                here = ray.get(asked, timeout=ANSWER_SECONDS)
                found.append((handle.node, here, skew(about(), here)))
            except ray.exceptions.RayError as error:
                found.append((handle.node, None, [f"does not answer ({explain(error)})"]))
        return found
    finally:
        if ours:
            ray.shutdown()


def on(node: str) -> Any:
    """Return Ray's scheduling strategy for one particular node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def end(actor: Any) -> None:
    ray = cluster.require_ray()
    with contextlib.suppress(ray.exceptions.RayError, ValueError):
        ray.kill(actor, no_restart=True)


def is_away(outcome: Any) -> bool:
    """Whether Ray could not reach an actor that may be alive."""
    return isinstance(outcome, cluster.require_ray().exceptions.ActorUnavailableError)


def own_fault(error: Exception) -> bool:
    """Whether a call failed by itself, rather than because its actor is gone."""
    return isinstance(getattr(error, "cause", None), Exception)


def explain(error: Exception) -> str:
    """Return Ray's description of a failure, in one line, without its advice."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return str(cause)
    lines = [line.strip() for line in str(error).splitlines()]
    facts = ("class_name:", "actor_id:", "pid:", "namespace:", "ip:", "name:")
    said = " ".join(line for line in lines if line and not line.startswith(facts)) or type(error).__name__
    detail = re.search(r"Worker exit detail: (.*?)(?: Some common causes.*)?$", said)
    return f"its process ended: {detail[1]}" if detail else said[:500]
