"""Workers on a real Ray cluster of three nodes, all on this machine. It is started once for all tests here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from hopfleet.backends.base import Backend
from hopfleet.backends.ray.backend import Ray
from hopfleet.testing.backends import BackendSuite

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    """Three nodes of two CPUs each, which this process has joined."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_AUTH_MODE"] = "disabled"
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    for _ in range(2):
        started.add_node(num_cpus=2)
    ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
    yield started
    ray.shutdown()
    started.shutdown()


class TestRay(BackendSuite):
    def make(self) -> Backend:
        return Ray()
