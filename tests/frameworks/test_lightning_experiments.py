"""Whole experiments with Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.errors import TaskError, UsageError
from hopfleet.frameworks.lightning.metrics import state_of
from hopfleet.frameworks.whole_set import collected
from hopfleet.testing.frameworks import ROWS, _Batches
from tests.helpers.hopping import elsewhere
from tests.helpers.lightning_tasks import Loader, Net, Task, assert_same, data, fitted, lightning, opened

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Data(lightning.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.rows = Loader()

    def train_dataloader(self) -> Any:
        return DataLoader(self.rows, batch_size=4)

    def val_dataloader(self) -> Any:
        return DataLoader(self.rows, batch_size=4)


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


class Counting(Net):
    """Counts the rows of an epoch."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.rows: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.rows.append(len(batch[0]))
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.log("counted", float(sum(self.rows)))
        self.rows.clear()


class Visits(torch.utils.data.IterableDataset):
    """The batches of an experiment, in the order in which a trial has visited their partitions."""

    def __init__(self, dataset: Any, visits: list[list[int]]) -> None:
        self._dataset, self._visits, self._epoch = dataset, visits, 0

    def __iter__(self) -> Any:
        self._epoch += 1
        for partition in self._visits[self._epoch - 1]:
            for batch in self._dataset.batches(partition, batch_size=13, seed=5, epoch=self._epoch):
                yield torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])


@pytest.mark.parametrize("fuse", ["off", "exact"])
def test_trials_that_hop_after_each_unit_end_with_the_bits_of_trainers(
    fuse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopfleet.experiment.arguments.POLICIES", {"random": lambda: elsewhere})

    class Task(hop.LightningTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            return Counting(**config)

    dataset = hop.partition(data(230), tmp_path / "data", partitions=3, seed=1)
    results = hop.Experiment(
        Task(), train=dataset, valid=data(), space={"lr": hop.grid_search([0.1, 0.03, 0.01]), "schedule": "epoch"},
        metric="val_loss", search=hop.Grid(max_epochs=2), seed=5, batch_size=13, workers=2, backend="inline",
        worker_options=hop.WorkerOptions(fuse=fuse),
        run_options=hop.RunOptions(folder=tmp_path / "run", policy="random"),
    ).fit(quiet=True)  # fmt: skip
    assert results.history.hops == 3 * (2 * 3 - 1) if fuse == "off" else results.history.hops > 0
    for trial in results.trials:
        assert [epoch["train_counted"] for epoch in trial.history] == [230, 230]
        session = opened(Task(), trial.config)
        session.load(trial.last_checkpoint)
        batches = DataLoader(Visits(dataset, trial.visits), batch_size=None, generator=torch.Generator())
        assert_same(fitted(Task(), trial.config, tmp_path, seed=trial.seed, batches=batches), session)


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
