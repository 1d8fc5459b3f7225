"""Machines for Ray's autoscaler to start: processes on this one, whose ids look like any others."""

from __future__ import annotations

import hashlib

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider


class Hired(FakeMultiNodeProvider):  # type: ignore[misc]
    def _next_hex_node_id(self) -> str:
        self._next_node_id += 1
        return hashlib.sha224(str(self._next_node_id).encode()).hexdigest()
