"""A small transformer tells good reviews from bad ones, with a LoRA adapter: which rank and learning rate are best?

The model is made from a configuration and its tokenizer from a list of words, so nothing is downloaded; with
`from_pretrained(folder)` everything else stays as it is.
Run this example with `python examples/transformers_reviews.py`.
"""

import random

from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import hopfleet as hop

GOOD, BAD = ["great", "lovely", "brilliant", "moving"], ["awful", "dull", "boring", "weak"]
PLAIN = ["a", "the", "film", "plot", "was", "and", "with", "some", "scenes"]


def reviews(count, seed):
    """Return reviews with more good words than bad ones, or the other way round."""
    rng = random.Random(seed)
    labels = [rng.randrange(2) for _ in range(count)]
    texts = [" ".join(rng.choices(PLAIN, k=5) + rng.choices(GOOD if label else BAD, k=3)) for label in labels]
    return {"text": texts, "label": labels}


def make_tokenizer():
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *GOOD, *BAD, *PLAIN])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


class Reviews(hop.TransformersTask):
    tokenizer = make_tokenizer()  # or the name of a folder

    def build(self, config):
        shape = BertConfig(
            vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
        )
        adapter = LoraConfig(r=config["rank"], target_modules=["query", "value"], modules_to_save=["classifier"])
        return get_peft_model(BertForSequenceClassification(shape), adapter)


results = hop.Experiment(
    Reviews(),
    train=reviews(512, seed=0),
    valid=reviews(128, seed=1),
    space={"learning_rate": hop.loguniform(5e-3, 5e-2), "rank": hop.choice([2, 8]), "weight_decay": 0.01},
    search=hop.Random(trials=3, max_epochs=4),
    metric="accuracy",
    mode="max",
    batch_size=32,
    workers=1,
    seed=7,
).fit()

print("best:", results.best.config, results.best.metrics)
results.best.model().save_pretrained("reviews-adapter")
