"""Lightning: logged values are those of a Trainer, and what steps return and loaders do is honoured or refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset, WeightedRandomSampler

import hopfleet as hop
from hopfleet.errors import TaskError, UsageError
from hopfleet.frameworks.whole_set import scored
from hopfleet.testing.frameworks import BATCH, ROWS, _Batches
from tests.helpers.lightning_tasks import Loader, Net, data, fitted, hopped, lightning, opened, unit

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CONFIG = {"lr": 0.05}


def task_of(kind: Any, **config: Any) -> Any:
    class Made(hop.LightningTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            return kind(**config)

    return Made()


class Logs(Net):
    """Logs numbers that float32 holds exactly, so that sums in any order are the same."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self._log(batch, batch_idx)
        self.log("last", float(batch_idx), on_step=True, on_epoch=False)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._log(batch, batch_idx)

    def _log(self, batch: Any, batch_idx: int) -> None:
        third = batch[0].sum() / 3
        for name in ("sum", "min", "MAX"):
            self.log(name, third, on_step=False, on_epoch=True, reduce_fx=name)
        self.log("avg", torch.tensor(batch_idx), on_step=False, on_epoch=True, reduce_fx="avg", prog_bar=True)
        self.log("count", len(batch[0]), on_epoch=True, reduce_fx=torch.sum, on_step=False, sync_dist=True)
        self.log("least", 7.0 - batch_idx, False, True, False, True, min)
        self.log("weighted", float(batch_idx), on_epoch=True, on_step=False, batch_size=2 if batch_idx % 4 else 10)
        self.log_dict({"wide": torch.tensor(1.5 * batch_idx).double()}, on_step=False, on_epoch=True, reduce_fx=sum)

    def on_train_epoch_start(self) -> None:
        self.log("begun", float(self.current_epoch))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("ended", float(batch_idx), on_epoch=True, on_step=False, reduce_fx=max)

    def on_train_epoch_end(self) -> None:
        self.log("whole", float(self.global_step))


NAMES = ("sum", "min", "MAX", "avg", "count", "least", "weighted", "wide")


def test_values_of_training_are_those_of_a_trainer_after_hops(tmp_path: Path) -> None:
    _, sums = hopped(task_of(Logs), CONFIG, tmp_path)
    expected = fitted(task_of(Logs), CONFIG, tmp_path).callback_metrics
    for name in (*NAMES, "begun", "ended", "whole"):
        assert sums[f"train_{name}"].mean == expected[name].item(), name
    assert "train_last" not in sums and expected["last"] == ROWS // BATCH - 1


def test_values_of_validation_are_those_of_a_trainer() -> None:
    session = opened(task_of(Logs), CONFIG)
    half = [{name: column[start : start + 32] for name, column in data().items()} for start in (0, 32)]
    parts = [session.evaluate(_Batches(session, rows), seed=0) for rows in half]
    whole = session.evaluate(_Batches(session, data()), seed=0)
    trainer = lightning.Trainer(logger=False, enable_progress_bar=False, accelerator="cpu", enable_model_summary=False)
    (expected,) = trainer.validate(task_of(Logs).build(CONFIG), DataLoader(Loader(), batch_size=BATCH), verbose=False)
    assert expected.keys() == whole.keys() == set(NAMES)
    for name in NAMES:
        assert whole[name].mean == expected[name], name
    # Batches are counted anew in each partition, whichever worker has it.
    assert parts[0]["avg"] == parts[1]["avg"] and scored(parts)["sum"].mean == expected["sum"]
    assert session.evaluate(_Batches(session, half[1]), seed=0)["avg"] == parts[1]["avg"]


def test_steps_and_hooks_are_told_what_a_trainer_tells_them(tmp_path: Path) -> None:
    heard: list[Any] = []

    class Hears(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            heard.append((batch_idx, self.global_step))
            loss = torch.nn.functional.mse_loss(self.net(batch[0])[:, 0], batch[1])
            return None if batch_idx == 1 else loss if batch_idx % 2 else {"loss": loss, "rows": len(batch[0])}

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            heard.append((batch_idx, self.global_step, {name: float(value) for name, value in outputs.items()}))

        def on_train_epoch_end(self) -> None:
            heard.append(self.global_step)

    task = task_of(Hears)
    task.accumulate = 2
    hopped(task, CONFIG, tmp_path)
    ours = list(heard)
    heard.clear()
    fitted(task, CONFIG, tmp_path, accumulate_grad_batches=2)
    assert ours == heard and len(ours) == 2 * (2 * ROWS // BATCH + 1)


def test_batches_without_a_loss_do_not_count_in_the_mean() -> None:
    class Skips(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx % 2 or self.current_epoch else self.net(batch[0]).mean() * 0 + 1

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return {"ones": torch.ones(())}

    session = opened(task_of(Skips), CONFIG)
    assert unit(session)["train_loss"].mean == 1
    before = [weight.clone() for weight in session.model.parameters()]
    assert "train_loss" not in unit(session)
    assert all(torch.equal(*pair) for pair in zip(before, session.model.parameters(), strict=True))
    Skips.validation_step = lightning.LightningModule.validation_step
    Skips.current_epoch = 0
    assert session.evaluate(_Batches(session, data()), seed=0)["loss"].mean == 1


def test_trials_that_skip_batches_train_together() -> None:
    class Skips(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx == self.hparams.skip else super().training_step(batch, batch_idx)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            return -1 if batch_idx == 2 + self.hparams.skip else None

        def __init__(self, lr: float, skip: int) -> None:
            super().__init__(lr)
            self.hparams.skip = skip

    task, configs = task_of(Skips), [{"lr": 0.1, "skip": skip} for skip in (1, 3, 4)]
    for _ in range(2):
        together, alone = ([opened(task, config) for config in configs] for _ in range(2))
        for _ in range(2):
            results = task.framework.flotilla(together).train(_Batches(together[0], data()), last=[True] * 3)
            assert results == [unit(session) for session in alone]
        for one, other in zip(together, alone, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))


class Ends(Net):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        return -1


class Without(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (Ends, {"ema": 0.9}, r"on_train_batch_start\(\) returned -1: must not be used with ema"),
        (Without, {"precision": "fp16"}, r"training_step\(\) returned None.* must not be used with precision='fp16'"),
    ],
)
def test_options_that_need_an_update_of_each_batch(kind: Any, options: dict[str, Any], words: str) -> None:
    task = task_of(kind)
    for name, value in options.items():
        setattr(task, name, value)
    with pytest.raises(TaskError, match=words):
        unit(opened(task, CONFIG))


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ({"reduce_fx": "median"}, "self.log('a', reduce_fx='median'): must be 'mean', 'sum', 'min' or 'max'; for"),
        ({"reduce_fx": torch.prod}, "must be 'mean', 'sum', 'min' or 'max'"),
        ({"on_step": False, "on_epoch": False}, "self.log('a', on_step=False, on_epoch=False): one of both must be"),
        ({"value": torch.ones(2), "reduce_fx": "max"}, "self.log('a', ...): must be one number, got tensor([1., 1.])"),
        ({"value": "text", "reduce_fx": "sum"}, "self.log('a', ...): must be one number, got 'text'"),
        ({"hook": "on_train_epoch_end", "on_step": True}, "self.log('a', on_step=True, on_epoch=None) in on_train_epo"),
        ({"hook": "on_train_epoch_end", "name": "train_loss"}, "on_train_epoch_end() and a step log it; use another"),
        ({"hook": "on_fit_start"}, "self.log('a', ...): must be called in a step, or in a hook of a batch or an epoch"),
        ({"hook": "configure_optimizers"}, "self.log('a', ...): must be called in a step, or in a hook of a batch or"),
        ({"metric": True, "on_epoch": True}, "the module does not have it; assign the metric to an attribute of it"),
    ],
)
@pytest.mark.parametrize("validates", [False, True])
def test_arguments_of_log_that_a_trainer_refuses_too(log: dict[str, Any], words: str, validates: bool) -> None:
    log = dict(log)
    hook = log.pop("hook", "validation_step" if validates else "training_step")
    name, value = log.pop("name", "a"), log.pop("value", 1.0)
    if metric := log.pop("metric", False):
        value = pytest.importorskip("torchmetrics").MeanSquaredError()
    if validates and (metric or hook != "validation_step"):
        return

    def logs(self: Any, *arguments: Any) -> Any:
        self.log(name, value, **log)

    with pytest.raises(TaskError) as caught:
        session = opened(task_of(type("Wrong", (Net,), {hook: logs})), CONFIG)
        session.evaluate(_Batches(session, data()), seed=0) if validates else unit(session)
    assert words in str(caught.value)


def pairs(rows: Any) -> Any:
    return rows


WEIGHTED = WeightedRandomSampler([1.0] * ROWS, ROWS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": WEIGHTED}, "sampler=WeightedRandomSampler: each epoch takes all rows once"),
        ({"sampler": RandomSampler(Loader(), replacement=True)}, "sampler=RandomSampler(replacement=True"),
        ({"sampler": RandomSampler(Loader(), num_samples=8)}, "num_samples=8): each epoch takes all 64 rows once"),
        ({"batch_sampler": BatchSampler(WEIGHTED, 4, False)}, "sampler=WeightedRandomSampler"),
        ({"batch_sampler": BatchSampler(SequentialSampler(Loader()), 5, True)}, "WorkerOptions(drop_last=True)"),
        ({"batch_sampler": [[1, 2], [3]]}, "batch_sampler=list: the experiment makes the batches"),
        ({"batch_size": None}, "batch_size=None: the experiment makes the batches"),
        ({"batch_size": 5, "drop_last": True}, "drop_last=True: leave it out, and set worker_options="),
        (
            {"collate_fn": pairs},
            "collate_fn=pairs: the experiment makes the batches; give it hop.live(dataset, collate",
        ),
        ({"worker_init_fn": pairs}, "worker_init_fn=pairs: no worker of the loader is started"),
    ],
)
@pytest.mark.parametrize("hook", ["train_dataloader", "val_dataloader"])
def test_loaders_that_do_more_are_refused(hook: str, options: dict[str, Any], words: str) -> None:
    loaders = {name: lambda self: DataLoader(Loader()) for name in ("train_dataloader", "val_dataloader")}
    loaders[hook] = lambda self: DataLoader(Loader(), **options)
    with pytest.raises(UsageError) as caught:
        hop.LightningTask.data(type("Data", (lightning.LightningDataModule,), loaders)())
    assert f"{hook}() returned a loader with " in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize("base", [lightning.LightningDataModule, Net])
def test_loaders_of_all_rows_are_taken(base: Any) -> None:
    class Streamed(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(Loader())

    stream = Streamed()
    given = type("Data", (lightning.LightningDataModule,), {"train_dataloader": lambda self: DataLoader(stream)})
    assert hop.LightningTask.data(given()) == {"train": stream}
    rows = Subset(Loader(), range(8))
    loaders = {"train_dataloader": lambda self: DataLoader(rows, batch_size=3, shuffle=True, num_workers=1)}
    made = type("Data", (base,), loaders)
    assert hop.LightningTask.data(made(**CONFIG) if base is Net else made()) == {"train": rows}
