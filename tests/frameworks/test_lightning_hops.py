"""Lightning: trials that hop after every unit have the bits of a Trainer, and what modules keep hops along."""

from __future__ import annotations

import functools
import random
import sys
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.errors import TaskError
from hopfleet.testing.frameworks import BATCH, ROWS, _Batches
from tests.helpers.lightning_tasks import (
    Counts,
    Net,
    assert_same,
    data,
    fitted,
    hopped,
    lightning,
    loader,
    opened,
    unit,
)

torchmetrics = pytest.importorskip("torchmetrics")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CONFIG = {"lr": 0.05}


def task_of(kind: Any, *callbacks: Any, **options: Any) -> Any:
    class Made(hop.LightningTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            return kind(**config)

        def callbacks(self, config: Mapping[str, Any]) -> Any:
            return [each() for each in callbacks]

    made = Made()
    for name, value in options.items():
        setattr(made, name, value)
    return made


class Skips(Net):
    """Some batches have no loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("steps", float(self.global_step))
        return None if batch_idx in (0, 1, 6) else super().training_step(batch, batch_idx)


class Ends(Net):
    """Epochs end early: the first in its first unit, the second in its last one."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        return -1 if batch_idx == (2 if self.current_epoch == 0 else 7) else None


@pytest.mark.parametrize("schedule", ["step", "every", "epoch"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", [Net, Skips, Ends])
def test_a_trial_that_hops_after_each_unit_has_the_bits_of_a_trainer(
    kind: Any, accumulate: int, schedule: str, tmp_path: Path
) -> None:
    task, config = task_of(kind, Counts, accumulate=accumulate), {**CONFIG, "schedule": schedule}
    task.clip_norm = 0.5
    session, _ = hopped(task, config, tmp_path)
    assert_same(fitted(task, config, tmp_path, accumulate_grad_batches=accumulate, gradient_clip_val=0.5), session)


def test_gradients_that_wait_are_applied_at_the_end_of_a_partition(tmp_path: Path) -> None:
    task = task_of(Net, Counts, accumulate=3)  # of 4 batches: one waits in each partition
    session, _ = hopped(task, CONFIG, tmp_path, starts=(0, 0))
    by_partition = fitted(task, CONFIG, tmp_path, batches=loader(32), max_epochs=4, accumulate_grad_batches=3)
    for name, value in by_partition.lightning_module.state_dict().items():
        assert torch.equal(value, session.model.state_dict()[name]), name
    assert by_partition.global_step == session.loop.global_step == 4 * 2


class Meter:
    """An object of the user's own."""

    def __init__(self) -> None:
        self.total, self.values = 0.0, deque(maxlen=3)

    def add(self, value: float) -> None:
        self.total += value
        self.values.append(value)


class Accumulates(Net):
    """Keeps values over an epoch in every way that people do."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.seen: list[Any] = []
        self.by_kind: Any = defaultdict(list)
        self.rows, self.total = 0, torch.zeros(())
        self.array = np.zeros(2, "float32")
        self.last, self._private = None, {"a": {1, 2}}
        self.error, self.shown = torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()
        self.meters = {"one": Meter(), "many": [Meter(), 0]}
        self.epochs: list[Any] = []
        self.streams = [np.random.default_rng(0), np.random.RandomState(0), random.Random(0), torch.Generator()]

    def drawn(self) -> list[float]:
        numpy, old, plain, own = self.streams
        return [numpy.random(), old.rand(), plain.random(), torch.rand((), generator=own).item()]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        made = self.net(batch[0])[:, 0]
        loss = torch.nn.functional.mse_loss(made, batch[1])
        self.seen.append(loss)
        self.by_kind["even" if batch_idx % 2 == 0 else "odd"].append(batch_idx)
        self.rows += len(made)
        self.total += made.detach().sum()
        self.array[0] += 1
        self.last = np.float32(loss.item())
        self._private["a"].add(batch_idx)
        self.error(made, batch[1])
        self.shown(made, batch[1])
        self.log("shown", self.shown, on_step=False, on_epoch=True)
        self.meters["one"].add(batch_idx)
        self.meters["many"][0].add(self.rows)
        self.meters["many"][1] += 1
        self.net[2].p = 0.3 / (1 + self.rows)
        self.drawn()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log_dict(dict(zip("abcd", self.drawn(), strict=True)))

    def on_train_epoch_end(self) -> None:
        assert self.rows % ROWS == 0 and len(self.seen) == ROWS // BATCH
        self.log("own", torch.stack([each.detach() for each in self.seen]).mean())
        self.log("error", self.error)
        meters = [(each.total, list(each.values)) for each in (self.meters["one"], self.meters["many"][0])]
        whole = (self.rows, self.total.item(), self.array.tolist(), type(self.last).__name__, float(self.last))
        whole = (*whole, self.drawn())
        self.epochs.append([dict(self.by_kind), *whole, sorted(self._private["a"]), meters, self.meters["many"][1]])
        self.seen.clear()
        self.by_kind.clear()


class Listens(lightning.Callback):
    """Keeps values over an epoch without a ``state_dict``."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(outputs["loss"].item())

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.log("heard", sum(self.losses))
        assert len(self.losses) == ROWS // BATCH
        self.losses = []


def test_what_a_module_keeps_over_an_epoch_hops_along(tmp_path: Path) -> None:
    task = task_of(Accumulates, Listens)
    session, sums = hopped(task, CONFIG, tmp_path)
    trainer = fitted(task, CONFIG, tmp_path)
    assert session.model.epochs == trainer.lightning_module.epochs and len(session.model.epochs) == 2
    assert type(session.model.by_kind) is defaultdict and session.model.meters["one"].values.maxlen == 3
    found = [session.evaluate(_Batches(session, data()), seed=0) for _ in range(2)]
    assert found[0] == found[1] and session.model.drawn() == trainer.lightning_module.drawn()
    assert session.model.net[2].p == trainer.lightning_module.net[2].p
    for name in ("own", "error", "shown", "heard"):
        assert sums[f"train_{name}"].mean == trainer.callback_metrics[name].item(), name
    for name, value in trainer.lightning_module.state_dict().items():
        assert torch.equal(value, session.model.state_dict()[name]), name


def test_a_version_that_is_loaded_takes_later_values_back(tmp_path: Path) -> None:
    class Late(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.global_step == 8:
                self.late, self.epochs_seen, self.net[0].told = [1], 5, torch.ones(1)
                self.tensor += 1
                del self.early
            return super().training_step(batch, batch_idx)

        def __init__(self, **config: Any) -> None:
            super().__init__(**config)
            self.early, self.tensor = ["kept"], torch.zeros(1)

    session = opened(task_of(Late), CONFIG)
    unit(session)
    session.save(tmp_path / "early")
    unit(session)
    session.save(tmp_path / "late")
    fresh = opened(task_of(Late), CONFIG)
    fresh.load(tmp_path / "late")
    assert fresh.model.late == [1] and not hasattr(fresh.model, "early")
    fresh.load(tmp_path / "early")
    assert not hasattr(fresh.model, "late") and fresh.model.early == ["kept"]
    assert fresh.model.tensor == 0 and fresh.model.epochs_seen == 1


class Own:
    def __init__(self) -> None:
        self.count = 0


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda self: setattr(self, "made", Own()), "self.made has another Own than the one that build() made"),
        (lambda self: self.kept.append(Own()), "self.kept.2 has another Own"),
        (lambda self: setattr(self, "rule", lambda: 1), "self.rule has another function"),
        (lambda self: self.kept.append(2), "self.kept.2 has another int"),
        (lambda self: self.own.append(2), "self.own.1 has another int"),
        (lambda self: self.kept.pop(), "self.kept.1 has another Own"),
    ],
    ids=["attribute", "member", "function", "number", "own", "gone"],
)
@pytest.mark.parametrize("saves", [False, True])
def test_an_object_that_cannot_hop_is_refused(step: Any, words: str, saves: bool, tmp_path: Path) -> None:
    class Keeps(lightning.LightningModule):
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.net, self.kept, self.done = torch.nn.Linear(4, 1), [Own(), Own()], False
            self.own = type("Values", (list,), {})([1])

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if not self.done:
                step(self)
                self.done = True
            return self.net(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    if saves:
        Keeps.on_save_checkpoint = lambda self, checkpoint: checkpoint.update(done=self.done)
        session, again = opened(task_of(Keeps), CONFIG), opened(task_of(Keeps), CONFIG)
        unit(session)
        session.save(tmp_path / "version")
        again.load(tmp_path / "version")
        assert again.model.done and len(again.model.kept) == 2
        return
    with pytest.raises(TaskError) as caught:
        unit(opened(task_of(Keeps), CONFIG))
    assert words in str(caught.value) and "on_save_checkpoint()" in str(caught.value)


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (lambda self, x: self.outputs.append(x), "self.outputs"),
        (lambda self, x: setattr(self, "rows", self.rows + len(x)), "self.rows"),
        (lambda self, x: self.total.add_(1), "self.total"),
        (lambda self, x: setattr(self, "fresh", 1), "self.fresh"),
        (lambda self, x: self.metric.update(x[:, 0], x[:, 0]), "the metric self.metric, but does not log it"),
        (lambda self, x: setattr(self, "last", x), ""),
        (lambda self, x: setattr(self, "object", Own()), ""),
        (lambda self, x: self.log("seen", self.metric(x[:, 0], x[:, 0])), ""),
    ],
    ids=["list", "number", "tensor", "new", "metric", "last", "object", "value of a metric"],
)
def test_nothing_can_be_accumulated_over_a_validation(step: Any, name: str) -> None:
    class Validates(Net):
        def __init__(self, **config: Any) -> None:
            super().__init__(**config)
            self.outputs, self.rows, self.total, self.last = [], 0, torch.zeros(1), torch.zeros(1)
            self.object, self.metric = Own(), torchmetrics.MeanSquaredError()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            step(self, batch[0])
            super().validation_step(batch, batch_idx)

    session = opened(task_of(Validates), CONFIG)
    if name:
        with pytest.raises(TaskError, match="evaluated apart") as caught:
            session.evaluate(_Batches(session, data()), seed=0)
        assert name in str(caught.value)
        return
    kept, last = session.model.object, session.model.last
    session.evaluate(_Batches(session, data()), seed=0)
    assert session.model.object is kept and session.model.last is last and session.model.metric.update_count == 0


def test_training_steps_that_stand_for_a_validation_change_nothing(tmp_path: Path) -> None:
    class Only(Net):
        validation_step = lightning.LightningModule.validation_step

        def __init__(self, **config: Any) -> None:
            super().__init__(**config)
            self.rows, self.parts = 0, [1]
            self.total, self.error = torch.zeros(()), torchmetrics.MeanSquaredError()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.rows += len(batch[0])
            self.parts.append(self.rows)
            self.total += 1
            self.error.update(batch[0], batch[0] + 1)
            return super().training_step(batch, batch_idx)

    session = opened(task_of(Only), CONFIG)
    session.save(tmp_path / "before")
    assert session.evaluate(_Batches(session, data()), seed=0).keys() == {"loss"}
    kept = session.model
    assert kept.rows == kept.total == kept.error.total == kept.error.update_count == 0 and kept.parts == [1]
    session.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


def test_modules_of_installed_packages_keep_their_attributes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("installed.parts", "installed.models"):
        module = ModuleType(name)
        module.__file__ = f"/lib/site-packages/{name.replace('.', '/')}.py"
        monkeypatch.setitem(sys.modules, name, module)
    held = type("Held", (), {"__module__": "installed.parts", "count": 0})

    def counts(self: Any, batch: Any, batch_idx: int) -> Any:
        self.held.count += 1
        self.list.append(self.net[2].other)
        self.net[2].other += 1
        return Net.training_step(self, batch, batch_idx)

    def init(self: Any, **config: Any) -> None:
        Net.__init__(self, **config)
        self.held, self.list, self.net[2].other = held(), [], 0
        self.held.count = 1

    kind = type("Installed", (Net,), {"__module__": "installed.models", "training_step": counts, "__init__": init})
    session, _ = hopped(task_of(kind), CONFIG, tmp_path)
    batches = 2 * ROWS // BATCH
    assert session.model.held.count == 1 + batches and session.model.list == list(range(batches))


def test_a_configuration_that_a_module_keeps_is_not_read() -> None:
    class Keeps(hop.LightningTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            made = Net(lr=config["lr"])
            made.config = config
            return made

    session = opened(Keeps(), {**CONFIG, "unheard_of": 1})
    unit(session)
    session.evaluate(_Batches(session, data()), seed=0)
    assert session.unused() == ("unheard_of",)


def test_what_a_module_computes_when_it_is_needed_stays_where_it_is(tmp_path: Path) -> None:
    class Computes(lightning.LightningModule):
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        @functools.cached_property
        def object(self) -> Any:
            return Own()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.net(batch[0]).mean() + self.object.count

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    session, _ = hopped(task_of(Computes), CONFIG, tmp_path)
    assert "object" not in vars(session.model) and session.model.object.count == 0
