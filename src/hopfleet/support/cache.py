"""Folders of things that can be made or fetched again, kept for other runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """Return the folder for one kind of things."""
    return Path(os.environ.get("HOPFLEET_HOME") or "~/.hopfleet").expanduser() / "cache" / kind
