"""Transformers: the numbers of steps that hooks are told are the steps that are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from tests.helpers.counted_steps import trained

transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]


def small() -> Any:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=4, **sizes))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps(tmp_path: Path, accumulate: int) -> None:
    told: list[int] = []

    class Task(hop.TransformersTask):
        def build(self, config: Any) -> Any:
            told.append(self.total_steps)
            return small()

        def inputs(self, model: Any, batch: Any) -> Any:
            return {"input_ids": (batch["x"] > 0).long(), "labels": batch["y"]}

        def metrics(self, model: Any, batch: Any) -> Any:
            schedule = getattr(self.lr_scheduler, "schedule", self.lr_scheduler)
            updates = next(iter(self.optimizer.state.values()))["step"].item()
            rate = schedule.get_last_lr()[0]
            return {**super().metrics(model, batch), "updates": updates, "stepped": schedule.last_epoch, "rate": rate}

    space = {"lr_scheduler_type": "linear", "warmup_ratio": 0.2, "gradient_accumulation_steps": accumulate}
    best, plan = trained(tmp_path, Task(), space=space)
    found = best.history[-1]
    assert set(told) == {plan.total_steps(accumulate)}
    assert found["updates"] == found["stepped"] == plan.total_steps(accumulate)
    assert found["rate"] == 0.0  # the end of a linear schedule


def test_epochs_of_a_trainer_are_refused(tmp_path: Path) -> None:
    class Task(hop.TransformersTask):
        def build(self, config: Any) -> Any:
            return small()

    with pytest.raises(hop.HopfleetError, match=r"num_train_epochs=3: must be left out.*set max_epochs of the search"):
        trained(tmp_path, Task(), space={"num_train_epochs": 3})
