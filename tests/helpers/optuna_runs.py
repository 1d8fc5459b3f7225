"""Runs of Optuna's samplers, in which trials end, fail and come from elsewhere, and which can be resumed."""

from __future__ import annotations

import math

from hopfleet.domain import space as spaces
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.search.base import Goal

LOSS = Goal("loss", "min")
SPACE = {
    "lr": spaces.loguniform(1e-4, 1),
    "net": {"width": spaces.randint(1, 9), "drop": spaces.quniform(0, 0.5, 0.1)},
    "kind": spaces.choice(["a", [1, 2], None]),
    "shift": spaces.normal(1, 2),
    "turn": spaces.grid_search([10, 20]),
    "fixed": 5,
    "twice": spaces.sample_from(lambda config: config["net"]["width"] * 2),
}


def conditional(trial):
    depth = trial.suggest_int("depth", 1, 3)
    return {"widths": [trial.suggest_int(f"width{layer}", 1, 9) for layer in range(depth)]}


def named(trial):
    trial.suggest_float("x", -1, 1)


def result(config):
    if "widths" in config:
        return {"loss": float(sum(config["widths"])), "params": float(len(config["widths"]))}
    if "x" in config:
        return {"loss": config["x"] ** 2, "params": 1.0}
    loss = (math.log(config["lr"]) + 3) ** 2 + config["net"]["width"] + config["shift"] ** 2
    return {"loss": loss, "params": 10.0 - config["net"]["width"]}


class Run:
    """Plays the controller: two trials behind, two epochs each, every fifth a foreign one, every seventh fails."""

    def __init__(self, make, space=SPACE, goal=LOSS, seed=3):
        self.make, self.space, self.goal, self.seed = make, space, goal, seed
        self.log, self.configs, self.suggested = [], [], 0
        self.afresh()

    def afresh(self):
        self.search = self.make()
        self.search.setup(self.space, seed=self.seed, goal=self.goal)

    def resume(self):
        self.afresh()
        for name, *arguments in self.log:
            getattr(self.search, name)(*arguments)

    def call(self, name, *arguments):
        self.log.append((name, *arguments))
        assert getattr(self.search, name)(*arguments) in ((), None)

    def trial(self, number):
        return Trial(f"t{number}", number, self.configs[number], 0, 2)

    def step(self):
        number = len(self.configs)
        if number % 5 == 4:
            config = spaces.configure(self.space, seed=77, number=number)
        else:
            config = self.search.suggest(self.suggested).config
            self.suggested += 1
        self.configs.append(config)
        self.call("added", self.trial(number))
        if number >= 2:
            trial = self.trial(number - 2)
            metrics = result(trial.config)
            self.call("observe", trial, 1, {name: value + 1 for name, value in metrics.items()})
            if number % 7 == 6:
                self.call("ended", trial, TrialState.FAILED)
            else:
                self.call("observe", trial, 2, metrics)
                self.call("ended", trial, TrialState.COMPLETED)

    def steps(self, count):
        for _ in range(count):
            self.step()
        return self
