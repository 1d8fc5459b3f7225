"""Where workers live. One protocol (``base``), one conformance suite (``hopfleet.testing.backends``).

Other packages register further names as entry points (``support.registry``).
"""

from __future__ import annotations

from collections.abc import Mapping

from hopfleet.backends.base import Backend
from hopfleet.backends.inline import Inline
from hopfleet.backends.local.backend import Local
from hopfleet.backends.ray.backend import Ray
from hopfleet.backends.simulated import Simulated

BACKENDS: Mapping[str, type[Backend]] = {
    "inline": Inline,
    "local": Local,
    "ray": Ray,
    "simulated": Simulated,
}
