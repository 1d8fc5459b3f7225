"""Small models of Transformers, and tasks that train them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.testing.frameworks import BATCH, ROWS, _Batches

transformers = pytest.importorskip("transformers")
WORDS = ["<pad>", "<unk>", "<eos>", "good", "bad", "film", "a", "very", "one"]


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>"
    )


def classifier() -> Any:
    shape = transformers.BertConfig(
        vocab_size=16,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=2,
        max_position_embeddings=16,
    )
    return transformers.BertForSequenceClassification(shape)


def writer() -> Any:
    shape = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_key_value_heads=1,
        max_position_embeddings=32,
        eos_token_id=2,
        bos_token_id=None,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(shape)


class Classify(hop.TransformersTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        return classifier()


def opened(task: Any, **config: Any) -> Any:
    return task.framework.open(config, seed=7, placement=CPU, threads=1)


def texts() -> dict[str, np.ndarray]:
    good = np.arange(ROWS) % 2
    return {
        "text": np.array([f"a {'very ' * (n % 3)}{WORDS[3 + n % 2]} film" for n in range(ROWS)], dtype=object),
        "label": good,
    }


class Lists(_Batches):
    """Batches as workers make them: columns of text are lists."""

    def __iter__(self) -> Any:
        for start in range(0, self.rows, BATCH):
            batch = {name: column[start : start + BATCH] for name, column in self._columns.items()}
            batch = {k: v.tolist() if v.dtype == object else v.copy() for k, v in batch.items()}
            yield self._session.prepare(batch, {})


def tokens() -> dict[str, np.ndarray]:
    """Return rows of a classification."""
    rng = np.random.default_rng(0)
    return {"input_ids": rng.integers(3, 16, (ROWS, 6)), "label": rng.integers(0, 2, ROWS)}
