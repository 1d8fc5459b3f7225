"""Right uses of the public names, one in each numbered statement. Type checkers accept them; nothing here runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import torch

import hopfleet as hop
from hopfleet import extend


class Net(hop.TorchTask[torch.nn.Linear]):
    def build(self, config: Mapping[str, Any]) -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
        model = torch.nn.Linear(4, config["width"])
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])


class Fewest(extend.Search):
    @property
    def trials(self) -> int:
        return 2

    def suggest(self, number: int) -> extend.Suggestion | None:
        return extend.Suggestion(self.draw(number), 1) if number < self.trials else None


def first(schedule: extend.ScheduleView, rng: Any) -> extend.Assignment | None:
    return None


data = {"x": np.zeros((8, 4)), "y": np.zeros(8)}
space = {"lr": hop.loguniform(1e-4, 1e-1), "width": hop.choice([1, 2])}

hop.Experiment(Net(), train=data, space=space)  # 1
hop.Experiment(Net(), train=data, space=space, search="asha")  # 2
hop.Experiment(Net(), train=data, space=space, search=hop.TPE(trials=8))  # 3
hop.Experiment(Net(), train=data, space=space, metric="accuracy", mode="max")  # 4
hop.Experiment(Net(), train=data, space=space, metric=["loss", "params"], mode=["min", "min"])  # 5
hop.Experiment(Net(), train=data, space=space, initial_configs=[{"lr": 0.1}])  # 6
hop.Experiment(Net(), train=data, space=space, warm_start="earlier")  # 7
hop.Experiment(Net(), train=data, space=space, warm_start=[Path("runs/earlier"), "later"])  # 8
hop.Experiment(Net(), train=data, space=space, stop=hop.Patience(epochs=2))  # 9
hop.Experiment(Net(), train=data, space=space, stop=["median", hop.Budget(seconds=60)])  # 10
hop.Experiment(Net(), train=data, space=space, callbacks=["csv", hop.Callback()])  # 11
hop.Experiment(Net(), train=data, space=space, workers=4, backend="local")  # 12
hop.Experiment(Net(), train=data, space=space, workers="auto", backend=hop.Inline())  # 13
hop.Experiment(Net(), train=data, space=space, parallelism="ddp:2")  # 14
hop.Experiment(Net(), train=data, space=space, parallelism={"width": {2: "fsdp:2"}})  # 15
hop.Experiment(Net(), train="data/train", valid="data/valid", space=space, batch_size=64)  # 16
hop.Experiment(Net(), train=data, space=space, valid="kfold(5)", partitions=8, name="kfold", seed=3)  # 17
hop.Experiment(Net(), train=data, space=space, constraints=["params <= 1000", lambda config: config["lr"] < 1])  # 18
hop.Experiment(Net(), train=data, space=lambda ask: {"lr": ask.uniform("lr", 0, 1)})  # 19
hop.Experiment(Net(), train=data, space=space, run_options=hop.RunOptions(policy="exact", order="fixed"))  # 20
hop.Experiment(Net(), train=data, space=space, run_options=hop.RunOptions(policy="a-package's-own"))  # 21
hop.Experiment(Net(), train=data, space=space, worker_options=hop.WorkerOptions(device="cuda", fuse="fast"))  # 22
hop.RunOptions(unit_timeout=None, checkpoint_every=0, all_failed="return", folder=Path("runs/one"))  # 23
hop.WorkerOptions(transform_workers="auto", threads=2, drop_last=True, start_timeout=60)  # 24
hop.Random(trials=8, max_epochs=3, concurrency="workers")  # 25
hop.Hyperband(trials="once", max_epochs=9)  # 26
hop.simulate(trials=8, partitions=4, costs="cnn", policy="auto", order="open")  # 27

experiment = hop.Experiment(Net(), train=data, space=space, search=Fewest())  # 28
experiment.use(workers="auto", policy="random", fuse="off", unit_timeout="none")  # 29
configs = experiment.check(quiet=True)  # 30
results = experiment.fit(overwrite=True, quiet=True, ui=False)  # 31
rate = results.best.config["lr"] * results.best.metrics["loss"]  # 32
names = [trial.id for trial in results if trial.state is hop.TrialState.COMPLETED]  # 33
figure = results.plot("importance", metric="loss")  # 34
score = results.test(data, top=3, workers=2, backend="inline")[names[0]]["loss"]  # 35
assert_type(hop.prepare("raw/*.csv", "data/one", hop.Tabular(), on_error="skip"), hop.Dataset)  # 36
assert_type(hop.prepare("raw/*.csv", "data/two", split={"train": 0.8, "valid": 0.2})["valid"], hop.Dataset)  # 37
loaded = hop.load("earlier").best.model().of_an_unknown_class  # 38
policy: extend.Policy = first  # 39
goal = extend.Goal("loss", "min").cost({"loss": 1.0}) + extend.RowSum.of(0.5, 8).mean  # 40
assert_type(results.best.model(), torch.nn.Linear)  # 41
assert_type(hop.load("earlier", task=Net()).best.predict(data, to="predictions.csv", workers=2), int)  # 42
