"""Your first model selection: which learning rate, width and batch size read handwritten digits best?

Run this example with `python examples/digits.py`, or with `hopfleet run examples/digits.py`.
"""

import torch
from sklearn.datasets import load_digits

import hopfleet as hop


class Digits(hop.TorchTask):
    def build(self, config):  # the model of one configuration, and its optimizer
        model = torch.nn.Sequential(
            torch.nn.Linear(64, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 10)
        )
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model, batch):  # of one mini-batch; Hopfleet runs the backward pass and the optimizer step
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch):  # on validation data; averaged over all rows
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


# The rows are not in random order, so shuffle them before holding some out for validation.
digits = load_digits()
order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0)).numpy()
x, y = digits.data[order].astype("float32") / 16, digits.target[order]

experiment = hop.Experiment(
    Digits(),
    train={"x": x[:1400], "y": y[:1400]},  # arrays, or a data set: see bring_your_data.py
    valid={"x": x[1400:], "y": y[1400:]},
    space={
        "lr": hop.loguniform(1e-4, 1e-1),
        "width": hop.choice([64, 256]),
        "batch_size": hop.choice([32, 128]),
    },
    search=hop.Random(trials=8, max_epochs=4),
    metric="accuracy",
    mode="max",
    seed=7,
)
results = experiment.fit()

print("best:", results.best.config, results.best.metrics)
print("its model:", results.best.model())
print(results.dataframe()[["trial", "accuracy", "config/lr", "config/width"]])
results.plot(path="digits.png")  # learning curves
