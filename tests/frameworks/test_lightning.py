"""Lightning: the suite of all adapters, bits against a Trainer, schedules, callbacks, and what needs a Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import hopfleet as hop
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import IsolationError
from hopfleet.testing.frameworks import BATCH, ROWS, FrameworkSuite, _Batches
from tests.helpers import warm
from tests.helpers.lightning_tasks import Net, Task, assert_same, data, fitted, hopped, opened, unit

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class TestLightning(FrameworkSuite):
    module = "lightning"
    config: ClassVar[dict[str, Any]] = {"lr": 0.01, "kind": "adam", "schedule": "step"}
    other: ClassVar[dict[str, Any]] = {"lr": 0.1, "kind": "sgd", "schedule": "epoch"}
    bad: ClassVar[dict[str, Any]] = {"lr": 0.1, "kind": "none"}

    _run = staticmethod(warm.run)

    def make(self):
        return Task()

    def test_unused_keys_are_reported(self) -> None:
        """The module takes the whole configuration as keywords, so every key is read."""


def assert_bits_of_a_trainer(task: Any, config: Mapping[str, Any], folder: Path, **options: Any) -> Any:
    """Train two epochs, with a Trainer as well; all that hops must be the same. Return the Trainer."""
    session = opened(task, config)
    for _ in range(2):
        unit(session)
    trainer = fitted(task, config, folder, **options)
    assert_same(trainer, session)
    return trainer


@pytest.mark.parametrize("schedule", ["step", "epoch"])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_bits_are_those_of_a_trainer(kind: str, schedule: str, tmp_path: Path) -> None:
    trainer = assert_bits_of_a_trainer(Task(), {"lr": 0.05, "kind": kind, "schedule": schedule}, tmp_path)
    assert trainer.global_step == 2 * ROWS // BATCH


@pytest.mark.parametrize("schedule", ["every", "step"])
def test_accumulated_gradients_are_those_of_a_trainer(schedule: str, tmp_path: Path) -> None:
    class Accumulates(Task):
        accumulate = 3  # of 8 batches: two wait at the end

    config = {"lr": 0.05, "schedule": schedule}
    trainer = assert_bits_of_a_trainer(Accumulates(), config, tmp_path, accumulate_grad_batches=3)
    assert trainer.global_step == 2 * 3


def test_logged_values_are_recorded() -> None:
    session = opened(Task(), {"lr": 0.05})
    sums = unit(session)
    assert sums.keys() == {"train_loss", "train_rows", "train_step", "train_epochs_seen"}
    assert sums["train_rows"].mean == BATCH and sums["train_loss"].rows == ROWS
    assert session.evaluate(_Batches(session, data()), seed=1).keys() == {"val_loss"}


def test_members_of_a_flotilla_have_the_bits_of_alone() -> None:
    configs = [{"lr": lr, "kind": kind, "schedule": "step"} for lr in (0.1, 0.01) for kind in ("adam", "sgd")]
    together, alone = ([opened(Task(), config) for config in configs] for _ in range(2))
    results = Task().framework.flotilla(together).train(_Batches(together[0], data()), last=[True] * 4)
    assert results == [unit(session) for session in alone]
    for one, other in zip(together, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))
        assert one.loop.callbacks[0].norms == other.loop.callbacks[0].norms


class Manual(Net):
    """Two optimizers that the module steps itself."""

    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()
        loss = torch.nn.functional.mse_loss(self.net(batch[0])[:, 0], batch[1])
        optimizer = first if batch_idx % 2 else second
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        if batch_idx == 7:
            self.lr_schedulers().step()
        self.log("train_loss", loss)

    def configure_optimizers(self) -> Any:
        first = torch.optim.SGD(self.net[0].parameters(), lr=self.hparams.lr)
        second = torch.optim.Adam(self.net[4].parameters(), lr=self.hparams.lr)
        return [first, second], [torch.optim.lr_scheduler.StepLR(second, 1, 0.5)]


def test_manual_optimization_with_two_optimizers(tmp_path: Path) -> None:
    class Task(hop.LightningTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            return Manual(config["lr"])

    session, half = opened(Task(), {"lr": 0.1}), opened(Task(), {"lr": 0.1})
    assert unit(session)["train_loss"].rows == ROWS
    session.save(tmp_path / "version")
    half.load(tmp_path / "version")
    unit(session)
    unit(half)
    assert all(torch.equal(a, b) for a, b in zip(session.model.parameters(), half.model.parameters(), strict=True))
    assert session.optimizers[1].param_groups[0]["lr"] == pytest.approx(0.025)
    assert not Task().framework.gains(session, fast=True)
    with pytest.raises(IsolationError, match="automatic_optimization is False"):
        Task().framework.flotilla([session, half])


class Adversaries(Net):
    """Two networks that train against each other, in the words of Lightning's own examples."""

    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.automatic_optimization = False
        self.judge = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer, sign in zip(self.optimizers(), (1, -1), strict=True):
            self.toggle_optimizer(optimizer)
            loss = sign * self.judge(self.net(batch[0])).mean() + self.judge(batch[1][:, None]).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        with self.optimizers()[0].toggle_model():
            self.log("step", float(self.global_step))
        if self.trainer.is_last_batch:
            for schedule in self.lr_schedulers():
                schedule.step()

    def configure_optimizers(self) -> Any:
        parts = [torch.optim.Adam(part.parameters(), lr=self.hparams.lr) for part in (self.net, self.judge)]
        return parts, [torch.optim.lr_scheduler.StepLR(part, 1, 0.5) for part in parts]


def test_adversaries_have_the_bits_of_a_trainer(tmp_path: Path) -> None:
    class Task(hop.LightningTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            return Adversaries(config["lr"])

    trainer = assert_bits_of_a_trainer(Task(), {"lr": 0.05}, tmp_path)
    assert trainer.global_step == 2 * 2 * ROWS // BATCH
    assert_same(trainer, hopped(Task(), {"lr": 0.05}, tmp_path)[0])


def test_modules_of_the_package_pytorch_lightning_train_as_well() -> None:
    old = pytest.importorskip("pytorch_lightning")

    class Old(old.LightningModule):
        training_step, validation_step = Net.training_step, Net.validation_step
        configure_optimizers = Net.configure_optimizers

        def __init__(self, lr: float, kind: str = "adam", schedule: str = "step") -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = Net(lr).net

    class Task(hop.LightningTask):
        given = ()

        def build(self, config: Mapping[str, Any]) -> Any:
            return Old(**config)

        def callbacks(self, config: Mapping[str, Any]) -> Any:
            return self.given

    session = opened(Task(), {"lr": 0.1})
    assert unit(session)["train_loss"].rows == ROWS
    assert session.evaluate(_Batches(session, data()), seed=1).keys() == {"val_loss"}
    wrong = Task()
    wrong.given = (old.callbacks.EarlyStopping("val_loss"),)
    with pytest.raises(TaskError, match="EarlyStopping needs a Trainer"):
        opened(wrong, {"lr": 0.1})
