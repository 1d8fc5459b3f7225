"""A module of Lightning, and sessions of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.domain.rowsum import add
from hopfleet.testing.frameworks import BATCH, ROWS, _Batches

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


def fitted(
    task: Any, config: Mapping[str, Any], folder: Path, *, seed: int = 7, batches: Any = None, **options: Any
) -> Any:
    """Train the module of a task with a Trainer, by default on all rows in their order; return the Trainer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    module = task.build(config)
    trainer = lightning.Trainer(
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        callbacks=task.callbacks(config),
        default_root_dir=folder,
        **{"max_epochs": 2, **options},
    )
    trainer.fit(module, loader() if batches is None else batches)
    torch.set_num_threads(threads)
    return trainer


def loader(rows: int = ROWS) -> Any:
    """Return the first rows in batches, in their order; nothing is drawn from the generator of the process."""
    some = torch.utils.data.Subset(Loader(), range(rows))
    return torch.utils.data.DataLoader(some, batch_size=BATCH, generator=torch.Generator())


def hopped(task: Any, config: Mapping[str, Any], folder: Path, starts: tuple[int, ...] = (0, 32)) -> tuple[Any, Any]:
    """Train two epochs of units with 32 rows each, and let the trial change sessions after each unit.

    Return the last session, and the sums of the last epoch.
    """
    session = opened(task, config)
    for _ in range(2):
        found = []
        for start in starts:
            rows = {name: column[start : start + 32] for name, column in data().items()}
            found.append(session.train(_Batches(session, rows), last=len(found) == len(starts) - 1))
            session.save(folder / "version")
            session = task.framework.open(dict(config), seed=1, placement=CPU, threads=1)
            session.load(folder / "version")
    return session, add(found)


def assert_same(trainer: Any, session: Any) -> None:
    """Compare all that a Trainer and a session leave behind."""
    for name, value in trainer.lightning_module.state_dict().items():
        assert torch.equal(value, session.model.state_dict()[name]), name
    for mine, theirs in zip(session.optimizers, trainer.optimizers, strict=True):
        states, expected = mine.state_dict()["state"], theirs.state_dict()["state"]
        assert states.keys() == expected.keys()
        for number, state in expected.items():
            assert all(torch.equal(torch.as_tensor(value), states[number][name]) for name, value in state.items())
    rates = [[group["lr"] for group in made.param_groups] for made in trainer.optimizers]
    assert rates == [[group["lr"] for group in made.param_groups] for made in session.optimizers]
    assert [each.state_dict() for each in trainer.callbacks if isinstance(each, Counts)] == [
        each.state_dict() for each in session.loop.callbacks
    ]
    assert trainer.current_epoch == session.loop.current_epoch
    assert trainer.global_step == session.loop.global_step
