"""A module of Lightning, and sessions of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.testing.frameworks import ROWS, _Batches

lightning = pytest.importorskip("lightning.pytorch")


class Net(lightning.LightningModule):
    """An ordinary module with dropout, BatchNorm and a schedule."""

    def __init__(self, lr: float, kind: str = "adam", schedule: str = "none") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(0.3),
            torch.nn.ReLU(),
            torch.nn.Linear(8, 1),
        )
        self.epochs_seen = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = torch.nn.functional.mse_loss(self.net(batch[0])[:, 0], batch[1])
        self.log("train_loss", loss)
        self.log_dict({"train_rows": float(len(batch[0])), "step": float(self.global_step)})
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0])[:, 0], batch[1]))

    def on_train_epoch_end(self) -> None:
        self.epochs_seen += 1
        self.log("epochs_seen", self.epochs_seen)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["epochs_seen"] = self.epochs_seen

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.epochs_seen = checkpoint["epochs_seen"]

    def configure_optimizers(self) -> Any:
        kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[self.hparams.kind]
        optimizer = kind(self.parameters(), lr=self.hparams.lr)
        match self.hparams.schedule:
            case "none":
                return optimizer
            case "step" | "every":
                schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
                frequency = 3 if self.hparams.schedule == "step" else 1
                return {
                    "optimizer": optimizer,
                    "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": frequency},
                }
            case "epoch":
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
            case _:
                schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class Counts(lightning.Callback):
    """A callback that keeps state."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.norms.append(float(pl_module.net[0].weight.detach().norm()))

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self.norms}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.norms = list(state_dict["norms"])


class Task(hop.LightningTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        return Net(**config)

    def callbacks(self, config: Mapping[str, Any]) -> Any:
        return [Counts()]


def data(rows: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {"x": rng.normal(size=(rows, 4)).astype("float32"), "y": rng.normal(size=rows).astype("float32")}


def opened(task: Any, config: Mapping[str, Any]) -> Any:
    return task.framework.open(dict(config), seed=7, placement=CPU, threads=1)


def unit(session: Any, *, last: bool = True) -> Any:
    return session.train(_Batches(session, data()), last=last)


class Loader(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        return tuple(torch.from_numpy(column)[row] for column in data().values())
