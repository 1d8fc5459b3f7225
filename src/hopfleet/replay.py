"""The old home of ``replay``, which lives in ``hopfleet.clients.replay``. Deprecated."""

from __future__ import annotations

from typing import Any

from hopfleet.support.deprecation import deprecated


def __getattr__(name: str) -> Any:
    from hopfleet.clients import replay

    if name.startswith("_") or not hasattr(replay, name):
        raise AttributeError(f"module 'hopfleet.replay' has no attribute {name!r}")
    deprecated(f"hopfleet.replay.{name}", f"hopfleet.clients.replay.{name}")
    return getattr(replay, name)
