"""PyTorch's settings that a trial's code may change, as rows of the table of ``worker/surroundings``."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import torch

from hopfleet.frameworks.process_settings import ABSENT, ProcessSetting, patches
from hopfleet.frameworks.torch import settings
from hopfleet.frameworks.torch.settings import Value

AUTOCAST = ("cpu", "cuda")
"""Types of devices whose autocast is watched."""

Autocast = tuple[bool, tuple[tuple[bool, torch.dtype], ...]]
"""Whether autocast keeps casts of weights, and for each type of device whether autocast is on, and its type."""


def process_settings() -> list[ProcessSetting]:
    """Return the rows of PyTorch."""
    return [
        ProcessSetting("settings of torch", settings.read, _make, keys=True, glance=_glance),
        ProcessSetting("the default device of torch", torch.get_default_device, _set_default_device),
        ProcessSetting("inference mode", torch.is_inference_mode_enabled, _set_inference_mode),
        ProcessSetting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled, glance=torch.is_grad_enabled),
        ProcessSetting("autocast", _autocast, _set_autocast, glance=lambda: torch.is_autocast_enabled("cpu")),
        ProcessSetting(
            "the number of threads", torch.get_num_threads, torch.set_num_threads, glance=torch.get_num_threads
        ),
        ProcessSetting("the number of inter-op threads of torch", torch.get_num_interop_threads, None),
        patches("patches of torch", torch, torch.Tensor, torch.nn, torch.nn.functional, torch.nn.init, torch.optim),
    ]


def _glance() -> object:
    return (
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.get_deterministic_debug_mode(),
        torch.is_anomaly_enabled(),
    )


def _make(values: Mapping[str, Value]) -> None:
    """Make some settings; those that are absent return to their defaults."""
    wanted = {**settings.read(), **values}
    settings.make({name: value for name, value in wanted.items() if value is not ABSENT})  # type: ignore[comparison-overlap]


def _set_inference_mode(value: bool) -> None:
    """Set inference mode, which has no setter: the mode entered last counts.

    A mode is left with its last reference, and what was in force before would return. So one reference is never given
    up.
    """
    mode = torch.inference_mode(value)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(mode))
    mode.__enter__()


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)


def _autocast() -> Autocast:
    modes = tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in AUTOCAST)
    return torch.is_autocast_cache_enabled(), modes


def _set_autocast(value: Autocast) -> None:
    keeps, modes = value
    torch.set_autocast_cache_enabled(keeps)
    for kind, (enabled, dtype) in zip(AUTOCAST, modes, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
