"""Each adapter: trials that change workers after every unit end with the bits of the framework's own loop.

The others have this test in files of their own, which run in processes of their own.
"""

from __future__ import annotations

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
from tests.helpers.hopping import COLUMNS, RATES, hopped, same_tensors, visited

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Loops compute as workers do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)


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
        assert same_tensors(framework.model(trial.config, trial.last_checkpoint).state_dict(), model.state_dict())
        assert len(losses) == 36  # three partitions of 76 or 77 rows, twice


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
