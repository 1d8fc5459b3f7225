"""Values that strict JSON can hold, for output that other programs read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any


def plain(value: Any) -> Any:
    """Return a value that strict JSON can hold: NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def named(value: Any) -> Any:
    """Return a value of a configuration or a request for strict JSON: ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.

    These are the names that journals hold and that commands read. A metric that is NaN is null instead: ``plain``.
    """
    if isinstance(value, Mapping):
        return {key: named(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [named(entry) for entry in value]
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value
