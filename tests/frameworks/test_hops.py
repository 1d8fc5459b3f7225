"""Each adapter: trials that change workers after every unit end with the bits of the framework's own loop.

JAX and Lightning have this test in files of their own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

import hopfleet as hop
from tests.helpers.hopping import hopped, visited

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROWS = 230
RNG = np.random.default_rng(2)
COLUMNS = {"x": RNG.normal(size=(ROWS, 6)).astype("float32"), "y": RNG.integers(0, 3, ROWS)}
RATES = hop.grid_search([0.1, 0.03, 0.01])


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Loops compute as workers do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Net(hop.TorchTask):
    """Statistics of batches, dropout, momentum, a schedule: all of it hops."""

    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(8, 3),
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)

    def loss(self, model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def test_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, dataset = hopped(Net(), COLUMNS, {"lr": RATES}, tmp_path, monkeypatch)
    for trial in results.trials:
        torch.manual_seed(trial.seed)
        model, optimizer, schedule = Net().build(trial.config)
        losses: list[float] = []
        for unit in visited(dataset, trial):
            for batch in unit:
                optimizer.zero_grad()
                loss = Net().loss(model, {name: torch.from_numpy(value) for name, value in batch.items()})
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
        framework = Net().framework
        assert same(framework.model(trial.config, trial.last_checkpoint).state_dict(), model.state_dict())
        assert len(losses) == 36  # three partitions of 76 or 77 rows, twice


def test_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.helpers.keras_tasks import Net, keras

    results, dataset = hopped(
        Net(), COLUMNS, {"lr": RATES, "optimizer": "adam"}, tmp_path, monkeypatch, metric="accuracy", mode="max"
    )
    for trial in results.trials:
        random.seed(trial.seed)
        torch.manual_seed(trial.seed)
        plain = Net().build(trial.config)
        for unit in visited(dataset, trial):
            for batch in unit:
                plain.train_on_batch(batch["x"], batch["y"])
        found = Net().framework.model(trial.config, trial.last_checkpoint)
        pairs = zip(found.variables, plain.variables, strict=True)
        weights = [tuple(map(keras.ops.convert_to_numpy, pair)) for pair in pairs if "seed" not in pair[0].name]
        assert len(weights) >= 8 and all(np.array_equal(one, other) for one, other in weights)


@pytest.mark.parametrize("kind", ["linear", "net"])
def test_scikit_learn(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Task(hop.SklearnTask):
        classes = (0, 1, 2)
        scoring = ("accuracy",)

        def build(self, config: Mapping[str, Any]) -> Any:
            if kind == "linear":
                return SGDClassifier(loss="log_loss", eta0=config["lr"], learning_rate="adaptive", average=True)
            return MLPClassifier(hidden_layer_sizes=(8,), learning_rate_init=config["lr"])

    results, dataset = hopped(Task(), COLUMNS, {"lr": RATES}, tmp_path, monkeypatch, metric="accuracy", mode="max")
    for trial in results.trials:
        np.random.seed(trial.seed)
        plain = Task().build(trial.config)
        for unit in visited(dataset, trial):
            for batch in unit:
                plain.partial_fit(batch["x"], batch["y"], classes=(0, 1, 2))
        found = Task().framework.model(trial.config, trial.last_checkpoint)
        weights = "coefs_" if kind == "net" else "coef_"
        assert all(map(np.array_equal, getattr(found, weights), getattr(plain, weights)))


def test_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.helpers.transformers_tasks import Classify, classifier

    columns = {"input_ids": RNG.integers(3, 16, (ROWS, 6)), "label": RNG.integers(0, 2, ROWS)}
    space = {"learning_rate": hop.grid_search([0.01, 0.003, 0.001]), "optim": "sgd"}
    results, dataset = hopped(Classify(), columns, space, tmp_path, monkeypatch)
    for trial in results.trials:
        torch.manual_seed(trial.seed)
        model = classifier().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=trial.config["learning_rate"])
        for unit in visited(dataset, trial):
            for batch in unit:
                optimizer.zero_grad()
                given = {name: torch.from_numpy(value) for name, value in batch.items()}
                model(input_ids=given["input_ids"], labels=given["label"]).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        found = Classify().framework.model(trial.config, trial.last_checkpoint)
        assert same(found.state_dict(), model.state_dict())
