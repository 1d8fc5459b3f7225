"""How busy a GPU is, according to its driver: known where NVIDIA's bindings (``nvidia-ml-py``) are installed."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any


def gpu_load(device: str) -> float | None:
    """Return the busy share of a device such as ``cuda:1``, by all processes that use it; None if that is not known."""
    kind, _, number = device.partition(":")
    found = _handle(int(number or 0), os.environ.get("CUDA_VISIBLE_DEVICES")) if kind == "cuda" else None
    if found is None:
        return None
    library, handle = found
    try:
        return float(library.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except library.NVMLError:  # a part of a GPU, say, which does not tell
        return None


@functools.cache
def _handle(number: int, visible: str | None) -> tuple[Any, Any] | None:
    """Return the library, and the device that is at that place among the visible ones; None if there is none."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
        names = [str(place) for place in range(number + 1)] if visible is None else visible.split(",")
        name = names[number].strip()
        if name.isdigit():
            return library, library.nvmlDeviceGetHandleByIndex(int(name))
        return library, library.nvmlDeviceGetHandleByUUID(name)
    except (library.NVMLError, LookupError):
        return None
