"""Definitions of experiments as they are on disk, for tests of run folders without a run."""

from __future__ import annotations

from typing import Any


def definition(name: str, **changes: Any) -> dict[str, Any]:
    """Return the smallest definition that can be read."""
    return {
        "name": name,
        "created": "2026-01-15T09:30:12+00:00",
        "task": {"module": "digits", "name": "Digits"},
        "space": {},
        "search": {},
        "metric": "loss",
        "mode": "min",
        "seed": 0,
        "batch_size": 32,
        "drop_last": False,
        "train": {"url": "/data", "rows": 9, "partitions": 3, "fingerprint": "abc"},
        "valid": None,
        "device": "cpu",
        "threads": 1,
        "origin": {},
        **changes,
    }
