"""The devices of this machine by name, as far as PyTorch is installed and knows them."""

from __future__ import annotations

import importlib.util


def named_devices() -> tuple[str, int, str]:
    """Return the kind of device that trials would train on, the number of devices and their names."""
    if importlib.util.find_spec("torch") is None:
        return "cpu", 1, "unknown without PyTorch"
    import torch

    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        return "cuda", count, ", ".join(f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(count))
    if torch.backends.mps.is_available():
        return "mps", 1, "mps"
    return "cpu", 1, "cpu"
