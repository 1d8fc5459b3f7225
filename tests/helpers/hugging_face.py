"""Small models of Hugging Face and of torch, as they come: with dropout, masks and shared heads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from tests.helpers.transformers_tasks import transformers

SMALL = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
ENCODER = {**SMALL, "max_position_embeddings": 24}


def gpt2(**rates: float) -> Any:
    shape = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, **rates)
    return transformers.GPT2LMHeadModel(shape)


def llama(**_: float) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, num_key_value_heads=1))


def bert(**rates: float) -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**ENCODER, **rates))


def roberta(**rates: float) -> Any:
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**ENCODER, **rates))


def distilbert(**rates: float) -> Any:
    shape = transformers.DistilBertConfig(vocab_size=32, dim=16, n_layers=2, n_heads=2, hidden_dim=24, **rates)
    return transformers.DistilBertForSequenceClassification(shape)


def t5(**rates: float) -> Any:
    shape = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**shape, decoder_start_token_id=0, **rates))


class Encoder(torch.nn.Module):
    """An encoder of torch's own layers, called like one of Hugging Face."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(16, 2, 24, dropout, batch_first=True)
        self.words, self.layers = torch.nn.Embedding(32, 16), torch.nn.TransformerEncoder(layer, 2)
        self.out = torch.nn.Linear(16, 2)

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:
        found = self.layers(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
        return SimpleNamespace(loss=torch.nn.functional.cross_entropy(self.out(found.mean(1)), labels))


OF_BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS: dict[str, tuple[Any, dict[str, float]]] = {
    "gpt2": (gpt2, {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "llama": (llama, {}),
    "t5": (t5, {"dropout_rate": 0.0}),
    "torch": (Encoder, {"dropout": 0.0}),
    "bert": (bert, OF_BERT),
    "roberta": (roberta, OF_BERT),
    "distilbert": (distilbert, {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}),
}
"""A model with its own rates of dropout, and the arguments without dropout."""
