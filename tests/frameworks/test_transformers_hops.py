"""Transformers: trials that change workers after every unit end with the bits of a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from tests.helpers.hopping import RNG, ROWS, hopped, same_tensors, visited
from tests.helpers.transformers_tasks import Classify, classifier, writer

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


class Write(hop.TransformersTask):
    def build(self, config: Any) -> Any:
        return writer()


def test_labels_are_counted_over_the_batches_of_each_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = RNG.integers(3, 16, (ROWS, 6))
    columns = {"input_ids": ids, "labels": np.where(RNG.random(ids.shape) < 0.5, -100, ids)}
    space = {"learning_rate": 0.1, "optim": "sgd", "gradient_accumulation_steps": hop.grid_search([2, 4, 6])}
    results, dataset = hopped(Write(), columns, space, tmp_path, monkeypatch)
    for trial in results.trials:
        torch.manual_seed(trial.seed)
        model, accumulate = writer().train(), trial.config["gradient_accumulation_steps"]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for unit in visited(dataset, trial):
            for start in range(0, len(unit), accumulate):
                given = [
                    {name: torch.from_numpy(value) for name, value in batch.items()}
                    for batch in unit[start : start + accumulate]
                ]
                number = sum((batch["labels"][:, 1:] != -100).sum() for batch in given)
                optimizer.zero_grad()
                for batch in given:
                    model(**batch, num_items_in_batch=number).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        found = Write().framework.model(trial.config, trial.last_checkpoint)
        assert same_tensors(found.state_dict(), model.state_dict())
