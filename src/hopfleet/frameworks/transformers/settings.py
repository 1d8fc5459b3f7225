"""The settings of a training, under the names that ``transformers.TrainingArguments`` gives them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from transformers import TrainingArguments
from transformers.optimization import Adafactor, get_scheduler
from transformers.trainer_pt_utils import get_parameter_names

from hopfleet.errors import TaskError
from hopfleet.frameworks.paced import Paced
from hopfleet.phrases import did_you_mean

DEFAULTS: Mapping[str, Any] = {
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "bf16": False,
    "fp16": False,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": False,
    "label_smoothing_factor": 0.0,
    "learning_rate": 5e-5,
    "lr_scheduler_kwargs": {},
    "lr_scheduler_type": None,
    "max_grad_norm": 1.0,
    "max_steps": 0,
    "optim": "adamw_torch",
    "warmup_ratio": 0.0,
    "warmup_steps": 0,
    "weight_decay": 0.0,
}
"""The settings that a task may make, and their values otherwise. Without a type, the schedule is linear if
``max_steps`` is given and constant if not."""

ELSEWHERE: Mapping[str, str] = {
    "per_device_train_batch_size": "set batch_size, of the experiment or in the space",
    "per_device_eval_batch_size": "set batch_size, of the experiment or in the space",
    "num_train_epochs": "set max_epochs of the search",
    "output_dir": "set RunOptions(folder=...)",
    "seed": "set the seed of the experiment",
    "eval_strategy": "the model is evaluated after each epoch",
    "save_strategy": "every version that may be needed is saved",
    "load_best_model_at_end": "results.best.model() is the best model",
    "metric_for_best_model": "set metric and mode of the experiment",
    "report_to": "add a tracker to the callbacks of the experiment",
}
"""Settings of a Trainer that Hopfleet has in another place."""

OWN = ("seed", "data_seed")
"""Names of ``TrainingArguments`` that may stand for something of the task's own in a configuration."""


@functools.cache
def refused() -> list[str]:
    """Return the names of ``TrainingArguments`` that a configuration must not have: nothing would come of them."""
    known = {field.name for field in dataclasses.fields(TrainingArguments)} | set(ELSEWHERE)
    return sorted(known - set(DEFAULTS) - set(OWN))


OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd")

UNDECAYED = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")
"""Names of parameters that a Trainer exempts from weight decay."""


def settings(given: object) -> dict[str, Any]:
    """Return all settings, with defaults for those that are not ``given``. Raises TaskError for one that is unknown."""
    if not isinstance(given, Mapping):
        raise TaskError(
            f"arguments() returned a {type(given).__name__}: must be a dict, e.g. {{'learning_rate': 5e-5}}"
        )
    for name in given:
        if name in ELSEWHERE:
            raise TaskError(
                f"{name}={given[name]!r}: must be left out of the space and of arguments(), since Hopfleet does not "
                f"read it; {ELSEWHERE[name]}"
            )
        if name in refused():
            raise TaskError(
                f"{name}={given[name]!r}: is a setting of a Trainer that Hopfleet does not have; leave it out of the "
                f"space and of arguments(), which know {', '.join(DEFAULTS)}"
            )
        if name not in DEFAULTS:
            raise TaskError(
                f"arguments() returned {name!r}: {did_you_mean(name, DEFAULTS)}known are {', '.join(DEFAULTS)}"
            )
    return {**DEFAULTS, **given}


def make_optimizer(model: torch.nn.Module, chosen: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer that a Trainer would make: norms and biases have no weight decay."""
    decayed = set(get_parameter_names(model, [torch.nn.LayerNorm], list(UNDECAYED)))
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for name, weight in trained if name in decayed], "weight_decay": chosen["weight_decay"]},
        {"params": [weight for name, weight in trained if name not in decayed], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise TaskError("build() returned a model without a parameter that requires a gradient: there is none to train")
    rate = chosen["learning_rate"]
    match chosen["optim"]:
        case "adamw_torch" | "adamw_torch_fused" as kind:
            betas = chosen["adam_beta1"], chosen["adam_beta2"]
            fused = kind == "adamw_torch_fused" or None
            return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=chosen["adam_epsilon"], fused=fused)
        case "adafactor":
            adafactor: Optimizer = Adafactor(groups, lr=rate, scale_parameter=False, relative_step=False)
            return adafactor
        case "sgd":
            return torch.optim.SGD(groups, lr=rate)
        case other:
            raise TaskError(
                f"optim={other!r}: must be one of {', '.join(OPTIMIZERS)}; for another optimizer, override "
                "optimizers(self, model, config) and return it"
            )


def make_schedule(optimizer: Optimizer, chosen: Mapping[str, Any], steps: int | None = None) -> Any:
    """Return the schedule of the learning rate, which steps after each update.

    Without ``max_steps``, it ends after all ``steps`` of the trial. Return None if the rate is constant.
    """
    kind = chosen["lr_scheduler_type"] or ("linear" if chosen["max_steps"] else "constant")
    total = chosen["max_steps"] or steps
    warmup = chosen["warmup_steps"] or math.ceil(chosen["warmup_ratio"] * (total or 0))
    if kind == "constant" and not warmup:
        return None
    if kind == "constant":
        kind = "constant_with_warmup"
    try:
        made = get_scheduler(kind, optimizer, warmup, total, chosen["lr_scheduler_kwargs"] or None)
    except (TypeError, ValueError) as error:
        remedy = "; set max_steps, the number of updates until the end" if total is None else ""
        raise TaskError(f"lr_scheduler_type={str(kind)!r}: {error}{remedy}") from None
    accumulate = int(chosen["gradient_accumulation_steps"])
    return made if accumulate == 1 else Paced(made, "step", 1, accumulate)
