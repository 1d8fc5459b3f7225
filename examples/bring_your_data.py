"""Bring your data: `hop.partition` shuffles rows from any source into a data set that all experiments can use.

Run this example with `python examples/bring_your_data.py`.
"""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import hopfleet as hop

folder = Path(tempfile.mkdtemp())  # in practice a permanent folder, or a URL such as s3://bucket/digits
rng = np.random.default_rng(0)

# Arrays or tensors of any shape: a dict of columns with one row per example.
arrays = {"image": rng.random((600, 8, 8), dtype="float32"), "digit": rng.integers(0, 10, 600)}
print(hop.partition(arrays, folder / "arrays", partitions=4))

# A pandas DataFrame.
frame = pd.DataFrame({"age": rng.integers(18, 90, 600), "income": rng.random(600)})
print(hop.partition(frame, folder / "pandas", partitions=4))

# A Parquet file, or a folder of Parquet files.
frame.to_parquet(folder / "people.parquet")
print(hop.partition(folder / "people.parquet", folder / "parquet", partitions=4))


# An iterator of rows, each a dict. All rows together may be larger than memory.
GOOD, BAD, NEUTRAL = ["fine", "great", "lovely"], ["awful", "boring", "dull"], ["a", "film", "plot", "the"]


def reviews(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        label = int(rng.integers(2))
        words = rng.choice(NEUTRAL + (GOOD if label else BAD), size=rng.integers(5, 20))
        yield {"text": " ".join(words), "label": label}  # texts of different lengths


train = hop.partition(reviews(1200, seed=1), folder / "train", partitions=4)
valid = hop.partition(reviews(300, seed=2), folder / "valid", partitions=1)

# A batch contains the original values: a column of strings is a list of strings. `transform` converts the strings to an
# array, which is as wide as the longest text of the batch.
VOCABULARY = {word: number for number, word in enumerate(["", *NEUTRAL, *GOOD, *BAD])}


class Reviews(hop.TorchTask):
    def transform(self, batch, rng):  # rng is None in evaluation; padding does not need it
        rows = [[VOCABULARY[word] for word in text.split()] for text in batch["text"]]
        tokens = np.zeros((len(rows), max(map(len, rows))), dtype="int64")
        for row, numbers in enumerate(rows):
            tokens[row, : len(numbers)] = numbers
        return {"tokens": tokens, "label": batch["label"]}

    def build(self, config):
        model = torch.nn.Sequential(
            torch.nn.EmbeddingBag(len(VOCABULARY), config["width"], padding_idx=0), torch.nn.Linear(config["width"], 2)
        )
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def loss(self, model, batch):
        return torch.nn.functional.cross_entropy(model(batch["tokens"]), batch["label"])

    def metrics(self, model, batch):
        return {"accuracy": (model(batch["tokens"]).argmax(1) == batch["label"]).float().mean()}


results = hop.Experiment(
    Reviews(),
    train=train,  # or the path of its folder
    valid=valid,
    space={"width": hop.grid_search([4, 32])},
    search=hop.Grid(max_epochs=3),
    metric="accuracy",
    mode="max",
).fit()
print(results.best.config, results.best.metrics)
