"""Models of Hugging Face that train together have the bits of training alone: masks, labels that are counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from tests.helpers.hugging_face import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

on_cuda = pytest.mark.skipif(DEVICE == "cpu", reason="needs CUDA, where steps are captured")
ONE, *OTHERS = ("bert", "gpt2", "llama", "t5", "distilbert")
KINDS = [ONE, *(pytest.param(kind, marks=on_cuda) for kind in OTHERS)]
"""Models with masks. Where nothing is captured, one of them stands for all."""


class Masked(hop.TorchTask):
    """A model that takes another way where no text of a batch is padded."""

    def build(self, config: Mapping[str, Any]) -> Any:
        make, none = MODELS[config["kind"]]
        model = make(**none)
        return model, torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x, there = batch["input_ids"], batch["attention_mask"]
        labels = x if self.config["kind"] in ("gpt2", "llama", "t5") else x[:, 0] % 2
        return model(input_ids=x, attention_mask=there, labels=labels).loss


class Counted(hop.TransformersTask):
    """A model whose updates are weighed by their labels."""

    def build(self, config: Mapping[str, Any]) -> Any:
        make, none = MODELS[config["kind"]]
        return make(**none)


def texts(rows: int, seed: int = 0) -> dict[str, Any]:
    """Texts of up to 12 words: few are short, so that some batches of eight have no short one."""
    generator = np.random.default_rng(seed)
    lengths = np.where(generator.random(rows) < 0.1, generator.integers(4, 12, rows), 12)
    there = np.arange(12) < lengths[:, None]
    return {"input_ids": generator.integers(3, 32, (rows, 12)), "attention_mask": there.astype(np.int64)}


def weights(task: Any, fuse: str, data: Any, space: Mapping[str, Any]) -> list[dict[str, Any]]:
    train, valid = data(144), data(48, seed=1)
    results = hop.Experiment(
        task, train=train, valid=valid, batch_size=8, metric="loss", seed=3, name=fuse, partitions=3,
        space={"learning_rate": hop.grid_search([0.01, 0.003, 0.001]), **space}, search=hop.Grid(max_epochs=2),
        backend="inline", worker_options=hop.WorkerOptions(fuse=fuse, device=DEVICE),
        run_options=hop.RunOptions(order="fixed"),
    ).fit(quiet=True)  # fmt: skip
    return [trial.model().state_dict() for trial in results.trials]


def check(task: Any, data: Any, space: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path))
    together, alone = (weights(task, fuse, data, space) for fuse in ("exact", "off"))
    for one, other in zip(together, alone, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_without_padding(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(Masked(), texts, {"kind": hop.grid_search([kind])}, tmp_path, monkeypatch)


def labelled(rows: int, seed: int = 0) -> dict[str, Any]:
    columns = texts(rows, seed)
    padded = columns["attention_mask"] == 0
    return {**columns, "labels": np.where(padded, -100, columns["input_ids"])}


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=on_cuda), 2])
@pytest.mark.parametrize("kind", ["gpt2", pytest.param("llama", marks=on_cuda)])
def test_updates_weighed_by_their_labels(
    kind: str, accumulate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = {"kind": hop.grid_search([kind]), "gradient_accumulation_steps": hop.grid_search([accumulate])}
    check(Counted(), labelled, space, tmp_path, monkeypatch)
