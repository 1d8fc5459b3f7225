"""Where workers live. One protocol (``base``), one conformance suite (``hopfleet.testing.backends``)."""

from __future__ import annotations

from collections.abc import Mapping

from hopfleet.backends.inline import Inline
from hopfleet.backends.local.backend import Local
from hopfleet.backends.ray.backend import Ray
from hopfleet.backends.simulated import Simulated

BACKENDS: Mapping[str, type[Inline | Local | Ray | Simulated]] = {
    "inline": Inline,
    "local": Local,
    "ray": Ray,
    "simulated": Simulated,
}
