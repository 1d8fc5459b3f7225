"""Wrong uses of the public names, one in each numbered line. Type checkers refuse every one; nothing here runs."""

from __future__ import annotations

import numpy as np
import torch

import hopfleet as hop
from hopfleet import extend


class Net(hop.TorchTask[torch.nn.Linear]):
    """A task; its hooks do not matter here."""


data = {"x": np.zeros((8, 4)), "y": np.zeros(8)}
space = {"lr": hop.loguniform(1e-4, 1e-1)}
experiment = hop.Experiment(Net(), train=data, space=space)
results = experiment.fit()

hop.Experiment(Net(), trian=1, train=data, space=space)  # 1
hop.Experiment(Net(), train=data, space=space, metric="accuracy", mode="maxx")  # 2
hop.Experiment(Net(), train=data, space=space, metric=["loss"], mode=["mni"])  # 3
hop.Experiment(Net(), train=data)  # 4
hop.Experiment(train=data, space=space)  # 5
hop.Experiment(Net, train=data, space=space)  # 6
hop.Experiment(Net(), data, space)  # 7
hop.Experiment(Net(), train=data, space=space, folder="runs/one")  # 8
hop.Experiment(Net(), train=data, space=space, points=[{"lr": 0.1}])  # 9
hop.Experiment(Net(), train=data, space=space, initial_configs={"lr": 0.1})  # 10
hop.Experiment(Net(), train=data, space=space, seed="3")  # 11
hop.Experiment(Net(), train=data, space=space, workers="all")  # 12
hop.Experiment(Net(), train=data, space=space, batch_size=[16, 32])  # 13
hop.Experiment(Net(), train=data, space=space, search=hop.Random)  # 14
hop.Experiment(Net(), train=data, space=space, stop={"loss": 0.1})  # 15
hop.Experiment(Net(), train=data, space=space, callbacks=hop.Callback())  # 16
hop.Experiment(Net(), train=data, space=space, backend=4)  # 17
hop.Experiment(Net(), train=data, space=space, run_options={"policy": "exact"})  # 18
hop.Experiment(Net(), train=data, space=[0.1, 0.2])  # 19
hop.Experiment(Net(), train=data, space=space, parallelism=2)  # 20
hop.RunOptions(order="opne")  # 21
hop.RunOptions(unit_timeout="never")  # 22
hop.RunOptions(all_failed="rase")  # 23
hop.RunOptions("runs/one")  # 24
hop.WorkerOptions(fuse="exat")  # 25
hop.WorkerOptions(transform_workers="many")  # 26
hop.WorkerOptions(drop_last="yes")  # 27
hop.Expriment  # 28
hop.Random(n_trials=16)  # 29
hop.Random(trials=16, concurrency="worker")  # 30
hop.Hyperband(trials="twice")  # 31
hop.simulate(costs="cnns")  # 32
hop.prepare("raw/*.csv", "data/one", on_error="ignore")  # 33
hop.prepare("raw/*.csv", "data/one")["valid"]  # 34
experiment.fit(overwite=True)  # 35
experiment.use(fuse="of")  # 36
results.bset  # 37
results.best.config["lr"] = 0.1  # 38
results.plot("curvs")  # 39
extend.Goal("loss", mode=1, metrics=2)  # 40
results.plot("curves", epoch=3)  # 41
results.best.model().predict(data)  # 42
