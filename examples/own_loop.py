"""Write your own training loop: override `train`, which receives the batches of one sub-epoch.

This loop adds mixup and gradient clipping and reports two numbers. Run this example with `python examples/own_loop.py`.
"""

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import hopfleet as hop


class Digits(hop.TorchTask):
    def build(self, config):
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)

    def train(self, model, batches, config):
        # One sub-epoch: all batches of one partition. The next partition may be on another worker; the model, the
        # optimizer, the LR schedule and the random state move there with the trial.
        total_loss = total_norm = 0.0
        for batch in batches:
            mix = torch.distributions.Beta(config["mixup"], config["mixup"]).sample()
            other = torch.randperm(len(batch["y"]))
            scores = model(mix * batch["x"] + (1 - mix) * batch["x"][other])
            loss = mix * F.cross_entropy(scores, batch["y"]) + (1 - mix) * F.cross_entropy(scores, batch["y"][other])
            self.optimizer.zero_grad()  # the optimizer that build returned for this trial
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            self.optimizer.step()
            total_loss += loss.item()
            total_norm += norm.item()
        # Returned values are recorded with a prefix: train_loss, train_gradient.
        return {"loss": total_loss / len(batches), "gradient": total_norm / len(batches)}

    def metrics(self, model, batch):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


digits = load_digits()
order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0)).numpy()
x, y = digits.data[order].astype("float32") / 16, digits.target[order]

results = hop.Experiment(
    Digits(),
    train={"x": x[:1400], "y": y[:1400]},
    valid={"x": x[1400:], "y": y[1400:]},
    space={"lr": hop.grid_search([0.03, 0.3]), "mixup": hop.grid_search([0.1, 1.0])},
    search=hop.Grid(max_epochs=4),  # all combinations
    metric="accuracy",
    mode="max",
).fit()

for epoch in results.best.history:
    print(epoch)
