"""Ray clusters of several nodes on this machine, which this process joins. Files of tests that want the same share one.

A cluster of three nodes takes about ten seconds of processor time to start, and two to join. Its workers and agents are
forks of a warm process; nodes that are added with ``setup_worker_path=None`` start their workers as Ray does.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.helpers import warm
from tests.helpers.cluster import warm_worker

ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "a token of nothing but this test",
    "RAY_worker_niceness": "0",  # or workers wait for whatever else runs on this machine
    # No test reads these metrics.
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",
}
HEAD = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
AGENTS = "_build_python_executable_command_memory_profileable"
"""The function with which Ray starts Python for its dashboard and for the agents of each node."""
START = [sys.executable, str(warm_worker.__file__)]
PRELOAD = (
    "hopfleet.backends.ray.worker_actor",
    *(f"hopfleet.frameworks.torch.parallel.{name}" for name in ("session", "team", "ddp", "fsdp", "pipeline", "ps")),
    # Members of teams import PyTorch's compiler, which takes as long as the import of PyTorch.
    "torch._dynamo.config",
    # Actors import the tests that have started them.
    *("pytest", "hopfleet.forecast.team_choice", "hopfleet.clients.replay"),
    # Half of the time that the import of Ray takes, and what it imports later, goes into these.
    *(f"google.protobuf.{name}" for name in ("internal.python_message", "json_format", "text_format", "timestamp_pb2")),
    *("filelock", "jsonschema", "msgpack", "packaging.version", "requests", "tqdm.auto", "uvloop", "wcwidth", "yaml"),
    *("pdb", "pyarrow.json", "pydantic.fields", "pydantic.v1", "starlette.datastructures"),
    # The agents of nodes import these.
    *("aiohttp.web", "aiohttp_cors", "opentelemetry.sdk.metrics", "prometheus_client"),
)
"""What workers import beside what all warm processes do, and beside Ray, which looks at the environment then."""


def patient(patch: pytest.MonkeyPatch) -> None:
    """Give the nodes of clusters five minutes to start: Ray gives them 30 seconds, which a busy machine may exceed."""
    from ray._private import services

    ask = services.get_node

    def get_node(address: str, node: str) -> Any:
        until = time.monotonic() + 300
        while True:
            try:
                return ask(address, node)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.1)

    patch.setattr(services, "get_node", get_node)


class Clusters:
    """The cluster that was started last; it runs until another one is wanted, or until the end of the session."""

    def __init__(self) -> None:
        self._cluster: Any = None
        #: The environment that its nodes were started with.
        self._environment: Mapping[str, str] = {}
        self._warm = warm.Session(*PRELOAD)

    @contextmanager
    def joined(self, *nodes: Mapping[str, Any], **environment: str) -> Iterator[Any]:
        """Join a cluster of nodes with these resources, the head first, and leave it in the end.

        Nodes have the variables of an ``environment``.
        """
        import ray

        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**ENVIRONMENT, **environment}.items():
                patch.setenv(name, value)
            patch.setenv(warm.ADDRESS, "")
            patient(patch)
            patch.setattr(ray._private.services, AGENTS, lambda *given, **options: START)
            self._warm.start()
            ray._raylet.Config.initialize("")  # Ray has looked at the environment when it was imported
            if self._cluster is not None:
                self._join()
                if not self._has(nodes) or not environment.items() <= self._environment.items():
                    ray.shutdown()
                    self._stop()
            if self._cluster is None:
                self._start(nodes)
                self._environment = environment
                self._join()
            yield self._cluster
            ray.shutdown()

    def _start(self, nodes: tuple[Mapping[str, Any], ...]) -> None:
        from ray.cluster_utils import Cluster

        head, *others = nodes
        workers = {"setup_worker_path": warm_worker.__file__}
        self._cluster = Cluster(initialize_head=True, head_node_args={**head, **HEAD, **workers})
        self._cluster.add_node = functools.partial(self._cluster.add_node, **workers)
        for each in others:
            self._cluster.add_node(**each)

    def _join(self) -> None:
        import ray

        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")

    def _has(self, nodes: tuple[Mapping[str, Any], ...]) -> bool:
        """Whether exactly these nodes are there. Tests add nodes and kill some."""
        import ray

        there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        found = sorted((each.get("CPU", 0), each.get("GPU", 0)) for each in there)
        return found == sorted((each["num_cpus"], each.get("num_gpus", 0)) for each in nodes)

    def _stop(self) -> None:
        if self._cluster is not None:
            self._cluster.shutdown()
            self._cluster = None

    def end(self) -> None:
        self._stop()
        self._warm.end()
