"""The adapter of PyTorch. Torch is imported when a task class is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopfleet.frameworks.torch.task import FunctionTask as FunctionTask
    from hopfleet.frameworks.torch.task import TorchTask as TorchTask

__all__ = ["FunctionTask", "TorchTask"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hopfleet.frameworks.torch import task

    return getattr(task, name)
