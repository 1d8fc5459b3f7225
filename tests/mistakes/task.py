"""Mistakes in a task: ``build``, ``loss``, ``metrics`` and the options of training."""

from __future__ import annotations

import torch

from tests.helpers.mistakes import Mistake, TrialFailed, fit, task

MISTAKES = [
    Mistake(
        "a loss for each row",
        lambda: fit(task(loss=lambda self, model, batch: model(batch["x"]).mean(1))),
        TrialFailed,
        ("loss()", "shape (8,)", "scalar"),
    ),
    Mistake(
        "only an optimizer is built",
        lambda: fit(task(build=lambda self, config: torch.optim.SGD([torch.zeros(2)], lr=0.1))),
        TrialFailed,
        ("build()", "SGD", "return model, optimizer"),
    ),
]
