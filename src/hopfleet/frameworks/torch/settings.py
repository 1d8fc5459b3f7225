"""PyTorch's process-wide settings: read where the script has made them, and made again in every worker.

The number of threads and the default device are not among them: both belong to the worker. While a trial's code runs,
Hopfleet itself turns ``torch.backends.cudnn.deterministic`` on, and attention of cuDNN off, which does not give the
same bits each time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch

from hopfleet.errors import UsageError, describe

Value = bool | int | str

WARN = 1
"""The mode of deterministic algorithms in which operations without one warn; in mode 2, they raise."""


class Setting(NamedTuple):
    """One setting: its value in a new process, how to read it and how to make it."""

    default: Value
    read: Callable[[], Value]
    make: Callable[[Value], object]


def _attribute(path: str, default: Value, root: object = torch.backends) -> Setting:
    """Return the setting that is an attribute below ``root``."""
    *modules, name = path.split(".")

    def owner() -> object:
        found = root
        for module in modules:
            found = getattr(found, module)
        return found

    return Setting(default, lambda: getattr(owner(), name), lambda value: setattr(owner(), name, value))


def _switch(read: str, make: str) -> Setting:
    """Return the setting of an attention kernel, which has a function to read it and one to make it."""
    of = torch.backends.cuda
    return Setting(True, lambda: getattr(of, read)(), lambda value: getattr(of, make)(value))


def _use_deterministic(value: Value) -> None:
    if value:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS refuses to work
    torch.use_deterministic_algorithms(bool(value), warn_only=value == WARN)


SETTINGS: Mapping[str, Setting] = {
    # In torch 2.9 and later these come first: older settings cannot be read while a newer one contradicts them.
    "cuda.matmul.fp32_precision": _attribute("cuda.matmul.fp32_precision", "none"),
    "mkldnn.matmul.fp32_precision": _attribute("mkldnn.matmul.fp32_precision", "none"),
    "cudnn.conv.fp32_precision": _attribute("cudnn.conv.fp32_precision", "tf32"),
    "cudnn.rnn.fp32_precision": _attribute("cudnn.rnn.fp32_precision", "tf32"),
    "fp32_precision": _attribute("fp32_precision", "none"),
    "cudnn.fp32_precision": _attribute("cudnn.fp32_precision", "none"),
    "mkldnn.fp32_precision": _attribute("mkldnn.fp32_precision", "none"),
    "mkldnn.conv.fp32_precision": _attribute("mkldnn.conv.fp32_precision", "none"),
    "mkldnn.rnn.fp32_precision": _attribute("mkldnn.rnn.fp32_precision", "none"),
    "float32_matmul_precision": Setting(
        "highest", torch.get_float32_matmul_precision, lambda value: torch.set_float32_matmul_precision(str(value))
    ),
    "cudnn.allow_tf32": _attribute("cudnn.allow_tf32", True),
    "cuda.matmul.allow_fp16_reduced_precision_reduction": _attribute(
        "cuda.matmul.allow_fp16_reduced_precision_reduction", True
    ),
    "cuda.matmul.allow_bf16_reduced_precision_reduction": _attribute(
        "cuda.matmul.allow_bf16_reduced_precision_reduction", True
    ),
    "cuda.matmul.allow_fp16_accumulation": _attribute("cuda.matmul.allow_fp16_accumulation", False),
    "cudnn.enabled": _attribute("cudnn.enabled", True),
    "cudnn.benchmark": _attribute("cudnn.benchmark", False),
    "mkldnn.enabled": _attribute("mkldnn.enabled", True),
    "flash_sdp": _switch("flash_sdp_enabled", "enable_flash_sdp"),
    "mem_efficient_sdp": _switch("mem_efficient_sdp_enabled", "enable_mem_efficient_sdp"),
    "math_sdp": _switch("math_sdp_enabled", "enable_math_sdp"),
    "cudnn_sdp": _switch("cudnn_sdp_enabled", "enable_cudnn_sdp"),
    "default_dtype": Setting(
        "float32",
        lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        lambda value: torch.set_default_dtype(getattr(torch, str(value))),
    ),
    "deterministic_algorithms": Setting(0, torch.get_deterministic_debug_mode, _use_deterministic),
    "fill_uninitialized_memory": _attribute("fill_uninitialized_memory", True, torch.utils.deterministic),
    "detect_anomaly": Setting(
        False, torch.is_anomaly_enabled, lambda value: torch.autograd.set_detect_anomaly(bool(value))
    ),
}
"""All settings, in the order in which they are made."""

EXPLAINED: Mapping[str, str] = {
    "cuda.matmul.fp32_precision": "float32_matmul_precision",
    "mkldnn.matmul.fp32_precision": "float32_matmul_precision",
    "cudnn.conv.fp32_precision": "cudnn.allow_tf32",
    "cudnn.rnn.fp32_precision": "cudnn.allow_tf32",
}
"""Newer settings that follow from an older one, unless the older one cannot be read."""


def read() -> dict[str, Value]:
    """Return the settings that differ from those of a new process. Settings that this version lacks are left out."""
    found: dict[str, Value] = {}
    for name, setting in SETTINGS.items():
        with contextlib.suppress(AttributeError, RuntimeError):
            found[name] = setting.read()
    return {
        name: value
        for name, value in found.items()
        if value != SETTINGS[name].default and EXPLAINED.get(name) not in found
    }


@contextlib.contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Compute products and convolutions of CUDA with a float32 matmul precision; then make the settings as before."""
    before = read()
    others = {name: value for name, value in before.items() if "fp32_precision" not in name and "tf32" not in name}
    make({**others, "float32_matmul_precision": precision})
    try:
        yield
    finally:
        make(before)


def make(wanted: Mapping[str, Value]) -> None:
    """Make the settings that ``read`` returned, and return all others to their defaults."""
    present = read()
    for name, setting in SETTINGS.items():
        value = wanted.get(name, setting.default)
        if present.get(name, setting.default) != value:
            try:
                setting.make(value)
            except AttributeError:  # this version lacks the setting
                continue
            except (RuntimeError, TypeError, ValueError) as error:
                raise UsageError(f"the setting {name}={value!r} cannot be made here ({describe(error)})") from error
