"""Checks of what a user gives to ``hop.Ray``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopfleet.errors import UsageError

PLACEMENTS = ("SPREAD", "PACK")

OWN = {"CPU": "cpus", "GPU": "gpus", "memory": "memory"}
"""Ray's names of resources that have an argument of their own."""


def seconds(name: str, value: Any) -> float:
    if not _is_number(value) or not value >= 0:
        raise UsageError(f"{name}={value!r}: must be a number of seconds, at least 0")
    return float(value)


def packs(placement: Any) -> bool:
    """Whether workers are packed on few nodes."""
    if placement not in PLACEMENTS:
        raise UsageError(f"placement={placement!r}: must be 'SPREAD' or 'PACK'")
    return bool(placement == "PACK")


def share(*, cpus: Any, gpus: Any, memory: Any, resources: Any, labels: Any) -> dict[str, Any]:
    """Return what each worker takes of its node, as arguments of ``WorkerNeeds``."""
    if cpus is not None and (not _is_number(cpus) or not cpus >= 0):
        raise UsageError(f"cpus={cpus!r}: must be a number, at least 0, or None for as many as threads")
    if not _is_number(gpus) or not 0 <= gpus <= 1:
        raise UsageError(f"gpus={gpus!r}: must be between 0 and 1, since a worker trains on one GPU or shares one")
    if not _is_number(memory) or not memory >= 0:
        raise UsageError(f"memory={memory!r}: must be a number of bytes, at least 0")
    for name, amount in _mapping("resources", resources).items():
        if name in OWN:
            raise UsageError(f"resources={resources!r}: give {OWN[name]}= for {name!r}")
        if not isinstance(name, str) or not _is_number(amount) or not amount > 0:
            raise UsageError(f"resources={resources!r}: must map names to amounts greater than 0")
    for name, value in _mapping("labels", labels).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"labels={labels!r}: must map names to values, both strings")
    whole = {"resources": dict(resources or {}), "labels": dict(labels or {})}
    return {"cpus": cpus, "gpus": gpus, "memory": memory, **whole}


def _mapping(name: str, value: Any) -> Mapping[Any, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"{name}={value!r}: must be a dict")
    return value or {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
