"""``python -m tests.helpers.tiny_bert``: write a checkpoint folder and a module with reviews into the working folder.

They stand in for a model of the hub and a user's data: the documentation's scripts run with them, without a network.
"""

from __future__ import annotations

from pathlib import Path

NAME = "bert-base-uncased"
WORDS = ("[PAD]", "[UNK]", "good", "bad", "film", "a", "very")


def main() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    shape = BertConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
    )
    BertForSequenceClassification(shape).save_pretrained(NAME)
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(NAME)
    data = {"text": ["a good film", "a very bad film"] * 64, "label": [1, 0] * 64}
    Path("reviews.py").write_text(f"train = valid = {data}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
