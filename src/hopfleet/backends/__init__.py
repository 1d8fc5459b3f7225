"""Where workers live. One protocol (``base``), one conformance suite (``hopfleet.testing.backends``).

Other packages register further names as entry points (``support.registry``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hopfleet.support.registry import Homes

if TYPE_CHECKING:
    from hopfleet.backends.base import Backend

BACKENDS: Mapping[str, type[Backend]] = Homes(
    {
        "inline": "hopfleet.backends.inline:Inline",
        "local": "hopfleet.backends.local.backend:Local",
        "ray": "hopfleet.backends.ray.backend:Ray",
        "simulated": "hopfleet.simulation.backend:Simulated",
    }
)
