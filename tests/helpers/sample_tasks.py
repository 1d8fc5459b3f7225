"""Small tasks that worker processes of the tests can import."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hopfleet as hop


def arrays(rows: int = 240, seed: int = 0) -> dict[str, np.ndarray]:
    """Images of 2 classes that a small net can learn."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, rows)
    x = rng.normal(size=(rows, 1, 6, 6)).astype("float32") + y[:, None, None, None].astype("float32")
    return {"x": x, "y": y}


class DoubleNet(hop.TorchTask):
    """A small net in double precision, with dropout."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16),
            torch.nn.Tanh(),
            torch.nn.Dropout(config.get("dropout", 0.0)),
            torch.nn.Linear(16, 1),
        ).double()
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])


FACTOR = 1.0
"""A global that trials change."""


class Changing(DoubleNet):
    """Every trial depends on settings of its process; trials with "changes" change them, in build() and in loss()."""

    def build(self, config: Mapping[str, Any]) -> Any:
        if config["changes"]:
            global FACTOR
            FACTOR = 2.0
            torch.set_default_dtype(torch.float64)
            os.environ["OWN_VARIABLE"] = "1"
        return super().build(config)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        seen = FACTOR * torch.ones(()).element_size() * (2 if "OWN_VARIABLE" in os.environ else 1)
        if self.config["changes"]:
            torch.set_num_threads(2)
            os.chdir("/")
        return super().loss(model, batch) * seen * (0.5 if os.getcwd() == "/" else 1.0)  # noqa: PTH109


class Plain(hop.TorchTask):
    """A linear model: the fastest thing that learns."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 3))
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model: Any, batch: dict[str, Any]) -> dict[str, Any]:
        logits = model(batch["x"])
        return {
            "accuracy": (logits.argmax(1) == batch["y"]).float().mean(),
            "loss": torch.nn.functional.cross_entropy(logits, batch["y"]),
        }


class Everything(Plain):
    """Convolution, BatchNorm, dropout, augmentation, three optimizers, three schedules: all that has a state."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.3),
            torch.nn.Flatten(),
            torch.nn.Linear(64, 3),
        )
        match config["optimizer"]:
            case "sgd":
                optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
            case "adam":
                optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            case _:
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, amsgrad=True)
        match config["schedule"]:
            case "step":
                return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], gamma=0.5)
            case "cosine":
                return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
            case _:
                return model, optimizer

    def transform(self, batch: dict[str, Any], rng: np.random.Generator | None) -> dict[str, Any]:
        if rng is None:
            return batch
        noise = rng.normal(scale=0.1, size=batch["x"].shape).astype("float32")
        return {**batch, "x": batch["x"] + noise}


class Plateau(Plain):
    """Halves its learning rate whenever the metric does not improve by half."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer = super().build(config)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        return model, optimizer, plateau(optimizer, "max", factor=0.5, patience=0, threshold=0.5)


class Faulty(Plain):
    """Fails in the way that ``config["fault"]`` names."""

    def build(self, config: Mapping[str, Any]) -> Any:
        if config["fault"] == "build":
            raise RuntimeError("no such architecture")
        return super().build({"lr": 0.1})

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        match self.config["fault"]:
            case "nan":
                return loss * float("nan")
            case "vector":
                return loss * torch.ones(2)
            case "detached":
                return loss.detach()
            case "number":
                return 3.0
            case "raise":
                raise ValueError("a bad batch")
            case "exit":
                raise SystemExit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "base":
                raise BaseException("of no ordinary kind")
            case "input":
                input("ready? ")
            case "breakpoint":
                breakpoint()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return loss

    def metrics(self, model: Any, batch: dict[str, Any]) -> dict[str, Any]:
        if self.config["fault"] == "metrics" and torch.is_grad_enabled() is False:
            raise ValueError("no metric today")
        return super().metrics(model, batch)


class Indiscreet(Plain):
    """Logs and raises the secret that it was given."""

    def build(self, config: Mapping[str, Any]) -> Any:
        assert config["hub"]["token"] == os.environ["HOPFLEET_TEST_TOKEN"], "it is told the plain value"
        print("the token is", config["hub"]["token"], dict(config))
        return super().build(config)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        if self.config["fails"]:
            raise ValueError(f"403 for https://me:{self.config['hub']['token']}@hub")
        return super().loss(model, batch)


CHECKED = 4
"""Batches that a process trains in the check of a configuration before a run, which these tasks pass."""


class Counted(Plain):
    """Counts batches of a process over all of its trials: what hooks set on ``self`` belongs to one trial."""

    def __init__(self) -> None:
        self.batches = [0]

    def count(self) -> int:
        """Count a batch; return the number so far."""
        self.batches[0] += 1
        return self.batches[0]


class HangOnce(Counted):
    """Never comes to an end the first time that a file named in the configuration can be created."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        if not model.training or self.count() <= CHECKED:
            return super().loss(model, batch)
        try:
            Path(self.config["mark"]).touch(exist_ok=False)
        except FileExistsError:
            return super().loss(model, batch)
        return threading.Event().wait()


class KillOnce(Counted):
    """Kills its worker the first time that a file named in the configuration can be created."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        if not model.training or self.count() <= CHECKED:
            return super().loss(model, batch)
        try:
            Path(self.config["mark"]).touch(exist_ok=False)
        except FileExistsError:
            return super().loss(model, batch)
        return os.kill(os.getpid(), signal.SIGKILL)


class Starved(Everything, Counted):
    """Its device runs out of memory at a batch (``config["at"]``) of a process, as long as marks can be made."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        self.run_out("train")
        return super().loss(model, batch)

    def metrics(self, model: Any, batch: dict[str, Any]) -> dict[str, Any]:
        self.run_out("evaluate")
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}

    def run_out(self, during: str) -> None:
        if during != self.config["during"]:
            return
        marks = sorted(Path(self.config["marks"]).glob("left-*"))
        if self.count() >= self.config["at"] and marks:
            marks[0].unlink()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class Printing(Plain):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        print("a word from", self.config["word"])
        return super().loss(model, batch)


class Augmented(torch.utils.data.Dataset[Any]):
    """A data set that draws from all three generators of the process for each item."""

    def __init__(self, rows: int = 60, seconds: float = 0.0) -> None:
        self.columns = arrays(rows)
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.columns["y"])

    def __getitem__(self, row: int) -> Any:
        time.sleep(self.seconds)
        x = torch.from_numpy(self.columns["x"][row]) + 0.1 * torch.randn(1, 6, 6)
        if random.random() < 0.5:
            x = x.flip(-1)
        return x * float(np.random.uniform(0.5, 1.5)), int(self.columns["y"][row])


class Dropping(Plain):
    """A model that draws from torch's generator in each step, as live items do."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.4), torch.nn.Linear(36, 3))
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])


class Adapters(Plain):
    """A frozen base with an adapter of some rank; in the end the base trains, too, if the configuration says so."""

    def build(self, config: Mapping[str, Any]) -> Any:
        generator = torch.Generator().manual_seed(0)
        model = torch.nn.Module()
        model.base = torch.nn.Linear(36, 512, bias=False)
        model.base.weight.data.normal_(generator=generator).mul_(0.1)
        model.base.requires_grad_(False)
        model.down = torch.nn.Linear(36, config["rank"], bias=False)
        model.up = torch.nn.Linear(config["rank"], 512, bias=False)
        model.head = torch.nn.Linear(512, 3)
        model.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        model.calls += 1
        if model.calls > self.config.get("thaw_after", 1 << 60):
            model.base.requires_grad_(True)
        return torch.nn.functional.cross_entropy(self.logits(model, batch), batch["y"])

    def metrics(self, model: Any, batch: dict[str, Any]) -> dict[str, Any]:
        return {"accuracy": (self.logits(model, batch).argmax(1) == batch["y"]).float().mean()}

    def logits(self, model: Any, batch: dict[str, Any]) -> torch.Tensor:
        x = batch["x"].flatten(1)
        found: torch.Tensor = model.head(torch.relu(model.base(x) + model.up(model.down(x))))
        return found
