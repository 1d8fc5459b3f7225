"""Three functions instead of a class: input_fn, model_fn and train_fn, as in the Cerebro paper.

This form is convenient for an existing training script. Run this example with `python examples/three_functions.py`.
"""

import torch
from sklearn.datasets import load_digits

import hopfleet as hop


def input_fn(batch):
    """Convert a batch of the data to the form that train_fn iterates over."""
    return batch["x"] / 16, batch["y"]


def model_fn(config):
    """Return the model of one configuration and its optimizer."""
    model = torch.nn.Sequential(
        torch.nn.Linear(64, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 10)
    )
    return model, torch.optim.Adam(model.parameters(), lr=config["lr"])


def train_fn(model, optimizer, batches, config):
    """Train for one sub-epoch, or evaluate without updating the model if the optimizer is None."""
    loss_sum = right = rows = 0.0
    for x, y in batches:
        scores = model(x)
        loss = torch.nn.functional.cross_entropy(scores, y)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss_sum += loss.item() * len(y)
        right += (scores.argmax(1) == y).sum().item()
        rows += len(y)
    return {"loss": loss_sum / rows, "accuracy": right / rows}


digits = load_digits()
order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0)).numpy()
x, y = digits.data[order].astype("float32"), digits.target[order]

results = hop.Experiment(
    hop.FunctionTask(input_fn, model_fn, train_fn),
    train={"x": x[:1400], "y": y[:1400]},
    valid={"x": x[1400:], "y": y[1400:]},
    space={"lr": hop.loguniform(1e-3, 1e-2), "width": hop.choice([32, 64, 128])},
    search=hop.Random(trials=4, max_epochs=3),
    metric="accuracy",
    mode="max",
).fit()

# Training metrics have a prefix, validation metrics have none.
print(results.dataframe()[["trial", "train_accuracy", "accuracy", "train_loss", "loss"]])
