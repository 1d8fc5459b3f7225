"""Trackers: callbacks that keep the metrics of a run elsewhere. One file each; packages are imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hopfleet.runtime.callbacks import Callback
from hopfleet.trackers.files import Csv, JsonLines
from hopfleet.trackers.log import Log
from hopfleet.trackers.mlflow import MLflow
from hopfleet.trackers.otel import OpenTelemetry
from hopfleet.trackers.tensorboard import TensorBoard
from hopfleet.trackers.wandb import WandB
from hopfleet.trackers.webhook import Webhook

TRACKERS: Mapping[str, Callable[[], Callback]] = {
    "csv": Csv,
    "jsonl": JsonLines,
    "log": Log,
    "mlflow": MLflow,
    "otel": OpenTelemetry,
    "tensorboard": TensorBoard,
    "wandb": WandB,
}
"""Trackers that need no argument, by name."""

__all__ = ["TRACKERS", "Csv", "JsonLines", "Log", "MLflow", "OpenTelemetry", "TensorBoard", "WandB", "Webhook"]
