"""Asking Ray's autoscaler for room.

A request is a placement group that waits: Ray adds up what waits for room, and its autoscaler starts nodes for that.
Once a node is there, one of them is granted. Then all are withdrawn for a while, for workers are told where to go, and
no request should be in their way; what is still lacking is asked for again. Requests belong to the driver: however it
ends, nothing of them is left, and nodes that nobody uses may go.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

PAUSE_SECONDS = 10.0
"""How long it may take until workers have begun to use what was granted."""


class Demand:
    """Equal shares of nodes that are asked for."""

    def __init__(self, share: Mapping[str, float]) -> None:
        self._share = dict(share)
        self._waiting: list[Any] = []
        self._paused = -PAUSE_SECONDS

    def keep(self, wanted: int) -> bool:
        """Ask for so many, but not in a pause. Returns whether one was granted: its room does not show as free yet."""
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
            self._waiting.append(placement_group([self._share]))
