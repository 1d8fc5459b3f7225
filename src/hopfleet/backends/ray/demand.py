"""Requests to Ray's autoscaler for room.

A request is a pending placement group: Ray adds up the pending groups, and its autoscaler starts nodes for them. Once a
node is up, one request is granted. Then all requests are withdrawn for a while, so that they do not compete with the
workers that are placed on the node; what is still lacking is requested again. Requests belong to the driver: however it
ends, no request is left, and unused nodes may end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

PAUSE_SECONDS = 10.0
"""Seconds until workers have begun to use what was granted."""


class Demand:
    """Pending requests for equal shares of nodes."""

    def __init__(self, share: Mapping[str, float], labels: Mapping[str, str] | None = None) -> None:
        self._share = dict(share)
        self._labels = dict(labels or {})
        self._waiting: list[Any] = []
        self._paused = -PAUSE_SECONDS

    def keep(self, wanted: int) -> bool:
        """Request ``wanted`` shares, except in a pause; return whether one was granted, whose room is not free yet."""
        if granted := self._granted():
            wanted, self._paused = 0, time.monotonic()
        elif time.monotonic() - self._paused < PAUSE_SECONDS:
            wanted = 0
        if wanted != len(self._waiting):
            self._change(wanted)
        return granted

    def _granted(self) -> bool:
        if not self._waiting:
            return False
        from ray.util import placement_group_table

        table = placement_group_table()
        return any(table.get(group.id.hex(), {}).get("state") == "CREATED" for group in self._waiting)

    def _change(self, wanted: int) -> None:
        from ray.util import placement_group, remove_placement_group

        while len(self._waiting) > wanted:
            remove_placement_group(self._waiting.pop())
        while len(self._waiting) < wanted:
            labels = {"bundle_label_selector": [self._labels]} if self._labels else {}
            self._waiting.append(placement_group([self._share], **labels))
