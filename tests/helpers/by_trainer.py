"""Training with a Trainer of Transformers, on the batches that Hopfleet trains on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from hopfleet.testing.frameworks import BATCH
from tests.helpers.transformers_tasks import transformers


class Stops(transformers.TrainerCallback):
    """Ends a training before its schedule does. Dropout draws as if the Trainer had drawn nothing."""

    def __init__(self, updates: int) -> None:
        self.updates, self.state = updates, torch.get_rng_state()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            torch.set_rng_state(self.state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == self.updates


class InOrder(transformers.Trainer):
    """A Trainer that does not shuffle, and keeps the loss of each batch."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def training_step(self, *args: Any, **options: Any) -> Any:
        loss = super().training_step(*args, **options)
        self.losses: list[float] = [*getattr(self, "losses", ()), loss.item()]
        return loss


def by_trainer(
    make: Callable[[], Any], columns: Mapping[str, Any], folder: Path, chosen: Mapping[str, Any], collator: Any = None
) -> InOrder:
    """Train a model with a Trainer: once on all rows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = make()
    rows = len(columns["input_ids"])
    stops = Stops(-(-rows // BATCH // chosen.get("gradient_accumulation_steps", 1)))
    quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=BATCH, use_cpu=True, **quiet, **chosen
    )
    data = [{name: column[row] for name, column in columns.items()} for row in range(rows)]
    trainer = InOrder(model, arguments, train_dataset=data, callbacks=[stops], data_collator=collator)
    trainer.train()
    torch.set_num_threads(threads)
    return trainer
