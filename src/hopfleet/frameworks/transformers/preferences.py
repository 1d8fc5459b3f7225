"""Direct preference optimization: the loss of a model that should prefer one answer to another.

The model is compared with the model that training started from. That is the model without its adapter or, where there
is none, a frozen copy, which is part of the model and therefore hops with it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch

REFERENCE = "reference"
"""Name of the frozen copy, a child of the model."""

IGNORED = -100
"""The label of tokens that do not count."""

COLUMNS = ("prompt", "chosen", "rejected")


def add_reference(model: Any) -> None:
    """Add a frozen copy to a model without an adapter."""
    if hasattr(model, "disable_adapter"):
        return
    frozen = copy.deepcopy(model).eval()
    frozen.requires_grad_(False)
    model.add_module(REFERENCE, frozen)


@contextlib.contextmanager
def _reference(model: Any) -> Iterator[Any]:
    """Have the model that training started from."""
    with torch.no_grad():
        if hasattr(model, REFERENCE):
            yield getattr(model, REFERENCE).eval()
            return
        trains = model.training
        model.eval()
        try:
            with model.disable_adapter():
                yield model
        finally:
            model.train(trains)


def encoded(tokenizer: Any, batch: Batch, max_length: int | None) -> dict[str, torch.Tensor]:
    """Return prompts with chosen answers, and below them prompts with rejected answers, as padded tokens."""
    for name in COLUMNS:
        if name not in batch:
            raise TaskError(f"the batch has no column {name!r}: preferences have the columns {', '.join(COLUMNS)}")
    rows: list[list[int]] = []
    labels: list[list[int]] = []
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for answers in (batch["chosen"], batch["rejected"]):
        for prompt, answer in zip(batch["prompt"], answers, strict=True):
            before = tokenizer(prompt)["input_ids"]
            after = tokenizer(answer, add_special_tokens=False)["input_ids"] + end
            rows.append((before + after)[:max_length])
            labels.append(([IGNORED] * len(before) + after)[:max_length])
    width = max(map(len, rows))

    def padded(lists: list[list[int]], value: int) -> torch.Tensor:
        return torch.tensor([some + [value] * (width - len(some)) for some in lists])

    return {
        "input_ids": padded(rows, tokenizer.pad_token_id),
        "attention_mask": padded([[1] * len(row) for row in rows], 0),
        "labels": padded(labels, IGNORED),
    }


def _answers(model: Any, tokens: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the log probability of each answer."""
    logits = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).logits[:, :-1]
    labels = tokens["labels"][:, 1:]
    counts = labels != IGNORED
    chosen = logits.log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    found: torch.Tensor = (chosen * counts).sum(-1)
    return found


def margins(model: Any, tokens: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return how much more than at the start the model prefers each chosen answer to the rejected one."""
    ours = _answers(model, tokens)
    with _reference(model) as reference:
        theirs = _answers(reference, tokens)
    chosen, rejected = (ours - theirs).chunk(2)
    return chosen - rejected


def preference_loss(margin: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the loss: small if the model prefers the chosen answers, with strength ``beta``."""
    return -logsigmoid(beta * margin).mean()
