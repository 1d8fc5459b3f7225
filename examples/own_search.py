"""Write your own search: draw a few configurations, then change one value of the best configuration at a time.

Run this example with `python examples/own_search.py`. To test your search, subclass
`hopfleet.testing.searches.SearchSuite`.
"""

import math

import torch
from sklearn.datasets import load_digits

import hopfleet as hop
from hopfleet.extend import configure, values


class Climb(hop.Search):
    adaptive = True  # trials are added as others end, so that the search can learn from their results

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
            del fixed[sorted(fixed)[number % len(fixed)]]  # draw this value again
        return hop.Suggestion(configure(self.space, seed=self.seed, number=number, fixed=fixed), self.max_epochs)

    def observe(self, trial, epoch, metrics):
        cost = self.goal.cost(metrics)  # lower is better for every metric and mode
        if cost < self.cost:
            self.best, self.cost = trial.config, cost
        return []  # or hop.Train, hop.Stop and hop.Clone decisions for any trials


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


if __name__ == "__main__":  # so that tests can import the search without running it
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
