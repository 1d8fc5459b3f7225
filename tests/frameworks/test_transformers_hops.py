"""Transformers: trials that change workers after every unit end with the bits of a plain loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hopfleet as hop
from tests.helpers.hopping import RNG, ROWS, hopped, same_tensors, visited
from tests.helpers.transformers_tasks import Classify, classifier

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


def test_transformers_hops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert same_tensors(found.state_dict(), model.state_dict())
