"""Lightning: the suite of all adapters, bits against a Trainer, schedules, callbacks, and what needs a Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.errors import TaskError, UsageError
from hopfleet.frameworks.base import IsolationError
from hopfleet.frameworks.lightning.metrics import state_of
from hopfleet.frameworks.whole_set import collected
from hopfleet.testing.frameworks import BATCH, ROWS, FrameworkSuite, _Batches
from tests.helpers import warm

lightning = pytest.importorskip("lightning.pytorch")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


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


def assert_bits_of_a_trainer(task: Any, config: Mapping[str, Any], folder: Path, **options: Any) -> Any:
    """Train two epochs, with a Trainer as well; all that hops must be the same. Return the Trainer."""
    session = opened(task, config)
    for _ in range(2):
        unit(session)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    module = task.build(config)
    trainer = lightning.Trainer(
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        callbacks=task.callbacks(config),
        default_root_dir=folder,
        **options,
    )
    state = torch.get_rng_state()
    loader = torch.utils.data.DataLoader(Loader(), batch_size=BATCH, generator=torch.Generator())
    torch.set_rng_state(state)
    trainer.fit(module, loader)
    torch.set_num_threads(threads)
    for name, value in module.state_dict().items():
        assert torch.equal(value, session.model.state_dict()[name]), name
    rates = [[group["lr"] for group in made.param_groups] for made in trainer.optimizers]
    assert rates == [[group["lr"] for group in made.param_groups] for made in session.optimizers]
    assert [each.state_dict() for each in trainer.callbacks if isinstance(each, Counts)] == [
        each.state_dict() for each in session.loop.callbacks
    ]
    assert trainer.current_epoch == session.loop.current_epoch
    assert trainer.global_step == session.loop.global_step
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


# ------------------------------------------------------------------------------------------------------- bad input


def refusal(*, callbacks: Any = (), module: Any = None, train: bool = True, **hooks: Any) -> str:
    kind = type("Wrong", (Net,), hooks)

    class Task(hop.LightningTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            return kind(**config) if module is None else module

        def callbacks(self, config: Mapping[str, Any]) -> Any:
            return callbacks

    with pytest.raises(TaskError) as caught:
        unit(opened(Task(), {"lr": 0.1}))
    return str(caught.value)


def stops(self: Any, batch: Any, batch_idx: int) -> None:
    self.trainer.should_stop = True


def two(self: Any) -> Any:
    return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"module": torch.nn.Linear(1, 1)}, "build() returned Linear: return a LightningModule"),
        ({"configure_optimizers": lambda self: None}, "configure_optimizers() returned no optimizer"),
        ({"configure_optimizers": lambda self: 3}, "returned a int: return an optimizer"),
        ({"optimizer_step": lambda self: None}, "Wrong overrides optimizer_step(), which only a Trainer calls"),
        ({"on_validation_epoch_end": lambda self: None}, "log the values in validation_step"),
        (
            {"training_step": lambda self, batch, i: self.trainer.train_dataloader},
            "uses trainer.train_dataloader, which",
        ),
        ({"configure_optimizers": lambda self: self.trainer.max_steps}, "use self.trainer.estimated_stepping_batches"),
        ({"setup": lambda self, stage: self.trainer.datamodule}, "with hop.LightningTask.data(datamodule)"),
        ({"configure_optimizers": two}, "returned 2 optimizers: several need self.automatic_optimization = False"),
        ({"training_step": stops}, "stop=hop.Patience(...)"),
        ({"callbacks": [lightning.callbacks.EarlyStopping("val_loss")]}, "EarlyStopping needs a Trainer: give the"),
        ({"callbacks": ["no callback"]}, "callbacks() returned str"),
        ({"callbacks": [Counts]}, "callbacks() returned the class Counts: return objects, e.g. [Counts()]"),
        ({"module": Net}, "build() returned the class Net: return an object of it, e.g. Net()"),
        ({"training_step": lambda self, dataloader_iter: None}, "Wrong.training_step() takes dataloader_iter"),
        ({"validation_step": lambda self, batch, i, dataloader_idx: None}, "a default, e.g. dataloader_idx=0"),
        ({"training_step": lambda self, batch, i: {"l": 1, "m": 2}}, "a dict without 'loss', only l, m"),
        ({"training_step": lambda self, batch, i: None}, "training_step() returned None: return the loss"),
        ({"training_step": lambda self, batch, i: self.all_gather(batch[0])}, "uses trainer.strategy.all_gather"),
        (
            {"training_step": lambda self, batch, i: self.trainer.callback_metrics["val_loss"]},
            "trainer.callback_metrics['val_loss']: there is no such value, only none",
        ),
    ],
    ids=[
        "module",
        "no-optimizer",
        "number",
        "hook",
        "validation",
        "attribute",
        "steps",
        "data",
        "two",
        "stop",
        "callback",
        "text",
        "class of a callback",
        "class of a module",
        "iterator",
        "index",
        "no-loss",
        "none",
        "gather",
        "values",
    ],
)
def test_what_needs_a_trainer_is_named(wrong: dict[str, Any], words: str) -> None:
    assert words in refusal(**wrong)


class Short(Net):
    """Steps without the number of the batch, and values that were logged before."""

    def training_step(self, batch: Any) -> Any:
        loss = super().training_step(batch, 0)
        self.log("again", self.trainer.callback_metrics.get("again", 0.0) + 1.0)
        return loss

    def validation_step(self, batch: Any) -> None:
        self.log("again", 100.0)


def test_steps_may_leave_out_the_number_and_find_values_of_their_unit() -> None:
    session = opened(type("Task", (Task,), {"build": lambda self, config: Short(**config)})(), {"lr": 0.1})
    counts = [unit(session)["train_again"].mean]
    assert session.evaluate(_Batches(session, data()), seed=0)["again"].mean == 100
    counts.append(unit(session)["train_again"].mean)
    assert counts == [np.mean(range(1, ROWS // BATCH + 1))] * 2


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda self, batch, i: self.logger.experiment.add_scalar("a", 1), "self.logger is None: record values"),
        (lambda self, batch, i: batch["x"].mean(), "override it to return the batch itself"),
    ],
    ids=["logger", "columns"],
)
def test_errors_of_steps_are_explained(step: Any, words: str) -> None:
    task = type("Task", (Task,), {"build": lambda self, config: type("M", (Net,), {"training_step": step})(**config)})()
    with pytest.raises((AttributeError, TypeError)) as caught:
        unit(opened(task, {"lr": 0.1}))
    task.framework.explain(caught.value)
    assert words in caught.value.__notes__[0]


def test_a_schedule_that_monitors_another_metric_is_refused() -> None:
    session = opened(Task(), {"lr": 0.1, "schedule": "plateau"})
    session.check_goal("val_loss", "min")
    with pytest.raises(TaskError, match="monitors 'val_loss', but schedules follow the metric of the experiment"):
        session.check_goal("loss", "min")


def test_a_team_of_devices_is_refused() -> None:
    framework = Task().framework
    assert framework.strategies() == ("single",) and framework.team_shape("single").strategy == "single"
    with pytest.raises(UsageError, match="trains each trial on one device; use parallelism='single'"):
        framework.team_shape("ddp", 2)


# ------------------------------------------------------------------------------------------------ whole experiments


class Data(lightning.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.rows = Loader()

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.rows, batch_size=4)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.rows, batch_size=4)


def test_data_modules_that_have_no_data_set_are_refused() -> None:
    class Only(Data):
        val_dataloader = lightning.LightningDataModule.val_dataloader

    assert hop.LightningTask.data(Only()).keys() == {"train"}
    assert hop.LightningTask.data(
        type("One", (Data,), {"val_dataloader": lambda self: [Data.train_dataloader(self)]})()
    )
    for loaders, words in (
        ([1, 2], r"val_dataloader\(\) returned 2 loaders.*ConcatDataset"),
        (3, "returned a int without"),
    ):
        wrong = type("Wrong", (Data,), {"val_dataloader": lambda self, loaders=loaders: loaders})
        with pytest.raises(UsageError, match=words):
            hop.LightningTask.data(wrong())


def test_an_experiment_with_a_data_module(tmp_path: Path) -> None:
    results = hop.Experiment(
        Task(),
        **hop.LightningTask.data(Data()),
        space={"lr": hop.grid_search([0.1, 0.01])},
        metric="val_loss",
        search=hop.Grid(max_epochs=2),
        batch_size=16,
        workers=1,
        backend="inline",
        run_options=hop.RunOptions(folder=tmp_path / "run"),
    ).fit(quiet=True)
    assert results.finished and results.verify().ok
    module = results.best.model()
    assert module._trainer is None and module.epochs_seen == 2 and not module.training


class Predicting(Task):
    def predict(self, model: Any, batch: Any) -> Any:
        with torch.no_grad():
            return model.net(torch.as_tensor(batch["x"]))[:, 0]


def test_exported_models_are_read_back(tmp_path: Path) -> None:
    rows = {"x": np.linspace(-1, 1, 4 * ROWS, dtype="f4").reshape(ROWS, 4), "y": np.linspace(0, 1, ROWS, dtype="f4")}
    best = hop.Experiment(
        Predicting(), train=rows, valid=rows, space={"lr": 0.1}, metric="val_loss", search=hop.Grid(max_epochs=1),
        batch_size=16, partitions=1, backend="inline", run_options=hop.RunOptions(folder=tmp_path / "run"),
    ).fit(quiet=True).best  # fmt: skip
    wanted = best.predict({"x": rows["x"][:3]})
    assert best.export(tmp_path / "weights").deviation == 0
    module = Net(lr=0.1)
    module.load_state_dict(hop.state_dict(tmp_path / "weights"))
    assert Predicting().predict(module.eval(), {"x": rows["x"][:3]}).tolist() == wanted["prediction"].to_pylist()
    assert best.export(tmp_path / "bundle", format="bundle").deviation == 0
    assert hop.load_bundle(tmp_path / "bundle").predict({"x": rows["x"][:3]}).equals(wanted)


def test_logged_metrics_are_those_of_the_whole_set() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")

    class Scored(Net):
        def __init__(self, lr: float) -> None:
            super().__init__(lr)
            self.r2, self.corr = torchmetrics.R2Score(), torchmetrics.SpearmanCorrCoef()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.r2.update(batch[1] + 1, batch[1])
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            made = self.net(batch[0])[:, 0]
            self.r2.update(made, batch[1])
            self.log("r2", self.r2)
            self.corr(made, batch[1])
            self.log("corr", self.corr)

    class Task(hop.LightningTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            return Scored(config["lr"])

    session = Task().framework.open({"lr": 0.01}, seed=1, placement=CPU, threads=1)
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=(ROWS, 4)).astype("float32"), "y": rng.normal(size=ROWS).astype("float32")}
    session.train(_Batches(session, columns), last=True)
    before = session.model.r2.total.clone()
    found = session.evaluate(_Batches(session, columns), seed=0)
    session.model.eval()
    with torch.no_grad():
        made, y = session.model.net(torch.from_numpy(columns["x"]))[:, 0], torch.from_numpy(columns["y"])
    assert found["r2"].mean == pytest.approx(torchmetrics.R2Score()(made, y).item(), rel=1e-4)
    assert found["corr"].mean == pytest.approx(torchmetrics.SpearmanCorrCoef()(made, y).item(), rel=1e-4)
    assert torch.equal(session.model.r2.total, before)  # what training counts is left as it is
    metric = torchmetrics.R2Score()
    gathered = collected({"r2": hop.WholeSet(metric, made, y)})["r2"]
    assert gathered.mean == torchmetrics.R2Score()(made, y).item()


@pytest.mark.parametrize("reduce", ["sum", "cat", "max", None, torch.prod])
def test_a_metric_whose_states_cannot_be_joined_is_refused(reduce: Any) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")

    class Own(torchmetrics.Metric):
        def __init__(self) -> None:
            super().__init__()
            self.add_state("kept", [] if reduce == "cat" else torch.tensor(0.0), dist_reduce_fx=reduce)

        def update(self, value: Any) -> None:
            if reduce == "cat":
                self.kept.append(value)
            else:
                self.kept = torch.maximum(self.kept, value) if reduce == "max" else self.kept + value

        def compute(self) -> Any:
            return torch.stack(self.kept).sum() if isinstance(self.kept, list) else self.kept

    metric = Own()
    with pytest.raises(TaskError, match=r"self\.log\('own', metric\): call the metric with the batch first"):
        state_of("own", metric)
    states = []
    for value in (2.0, 3.0):
        metric.reset()
        metric.update(torch.tensor(value))
        if reduce not in ("sum", "cat", "max"):
            with pytest.raises(
                TaskError, match=r"the state 'kept' of Own must be merged by 'sum'.*got dist_reduce_fx="
            ):
                state_of("own", metric)
            return
        states.append(collected({"own": state_of("own", metric)})["own"])
    assert (states[0] + states[1]).mean == {"sum": 5, "cat": 5, "max": 3}[reduce]
