"""Augmentation: `transform(batch, rng)` changes each batch on its way to the model.

`transform` runs on numpy arrays in the background while the model trains. If all random numbers come from `rng`, runs
can be repeated bit for bit. Run this example with `python examples/augmentation.py`.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits

import hopfleet as hop


class ShiftedDigits(hop.TorchTask):
    def transform(self, batch, rng):
        if rng is None:  # evaluation: no augmentation
            return batch
        # Shift every image by up to one pixel in each direction. Return a new array: the batch may be used again.
        shifts = rng.integers(-1, 2, size=(len(batch["y"]), 2))
        images = [np.roll(image, shift, axis=(0, 1)) for image, shift in zip(batch["x"], shifts, strict=True)]
        return {"x": np.stack(images), "y": batch["y"]}

    def build(self, config):
        layers = [torch.nn.Flatten(), torch.nn.Linear(64, 128), torch.nn.ReLU()]
        layers += [torch.nn.Dropout(config["dropout"]), torch.nn.Linear(128, 10)]
        model = torch.nn.Sequential(*layers)
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model, batch):
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.images))
x, y = digits.images[order].astype("float32") / 16, digits.target[order]

results = hop.Experiment(
    ShiftedDigits(),
    train={"x": x[:1400], "y": y[:1400]},
    valid={"x": x[1400:], "y": y[1400:]},
    space={"lr": 0.003, "dropout": hop.grid_search([0.0, 0.3])},  # constants are plain values
    search=hop.Grid(max_epochs=4),
    metric="accuracy",
    mode="max",
).fit()
print(results.best.config, results.best.metrics)
