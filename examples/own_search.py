"""A search of your own: draw a few configurations, then change the best one in one place at a time.

Run it with `python examples/own_search.py`. To be sure of yours, derive `hopfleet.testing.searches.SearchSuite`.
"""

import math

import torch
from sklearn.datasets import load_digits

import hopfleet as hop
from hopfleet.domain.space import configure, values


class Climb(hop.Search):
    adaptive = True  # trials are added as others end, so that it can learn from them

    def __init__(self, trials=10, max_epochs=3, first=4):
        self.count, self.max_epochs, self.first = trials, max_epochs, first

    @property
    def trials(self):
        return self.count

    def setup(self, space, *, seed, goal):
        super().setup(space, seed=seed, goal=goal)
        self.best, self.cost = None, math.inf

    def suggest(self, number):
        if number >= self.count:
            return None
        fixed = {}
        if number >= self.first and self.best is not None:
            fixed = values(self.space, self.best)
            del fixed[sorted(fixed)[number % len(fixed)]]  # this one is drawn anew
        return hop.Suggestion(configure(self.space, seed=self.seed, number=number, fixed=fixed), self.max_epochs)

    def observe(self, trial, epoch, metrics):
        cost = self.goal.cost(metrics)  # small is good, whatever the metric
        if cost < self.cost:
            self.best, self.cost = trial.config, cost
        return []  # or hop.Train, hop.Stop and hop.Clone, for any trial


class Digits(hop.TorchTask):
    def build(self, config):
        model = torch.nn.Sequential(
            torch.nn.Linear(64, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 10)
        )
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model, batch):
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


if __name__ == "__main__":  # so that a test can import the search alone
    digits = load_digits()
    order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0)).numpy()
    x, y = digits.data[order].astype("float32") / 16, digits.target[order]
    results = hop.Experiment(
        Digits(),
        train={"x": x[:1400], "y": y[:1400]},
        valid={"x": x[1400:], "y": y[1400:]},
        space={"lr": hop.loguniform(1e-4, 1e-1), "width": hop.choice([16, 64, 256])},
        search=Climb(),
        metric="accuracy",
        mode="max",
    ).fit()
    print("best:", results.best.config, results.best.metrics)
