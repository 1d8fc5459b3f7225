"""Plans of ``hopfleet plan`` that are run on two cores of this machine: what they promise, and what runs reach.

Networks are measured as ``hopfleet plan`` measures them. Plans are those that two cores have room for: one worker,
all-reduce with two workers, two workers where one serves, and one worker with a server of its own. Each is run as
``hopfleet plan --run`` starts it, with one thread in each process. Rounds alternate: each has a measurement of the
network and of the link, and then a run of every plan, so other load on the machine meets both. The highest prediction
and the fastest unit of all rounds count, since other load only takes time away; the table says what load there was.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hopfleet as hop
from benchmarks.row import Row, table
from benchmarks.runs import scratch
from hopfleet.data import Dataset
from hopfleet.experiment.planning import measure_cluster, measure_model
from hopfleet.experiment.previewing import scratch_folder
from hopfleet.planner.dike.problem import Cluster, Node, Placement, rows_per_second, worker_need
from hopfleet.planner.dike.rings import Ring, throughput

FEATURES, CLASSES, PARTITIONS = 256, 10, 8
GOAL = 0.2
"""How far a prediction may be from the run."""


class Network(hop.TorchTask):
    """A small network whose gradients are large (``wide``), or one whose steps take long (``deep``)."""

    def build(self, config: Mapping[str, Any]) -> Any:
        nn = torch.nn
        if config["network"] == "wide":
            layers = [nn.Linear(FEATURES, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, CLASSES)]
        else:
            convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
            layers = [nn.Unflatten(1, (1, 16, 16)), *convolutions, nn.Flatten(), nn.Linear(32 * FEATURES, CLASSES)]
        model = nn.Sequential(*layers)
        return model, torch.optim.Adam(model.parameters())

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


BATCHES = {"wide": 256, "deep": 64}
"""Rows of a batch of each network."""


def measure(quick: bool = False) -> list[Row]:
    rows, rounds, networks = (512, 1, ("deep",)) if quick else (8_192, 2, (*BATCHES,))
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((rows, FEATURES), np.float32), "y": rng.integers(0, CLASSES, rows)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with scratch() as folder:
            data = hop.partition(arrays, folder / "data", partitions=PARTITIONS)
            return [row for network in networks for row in _compared(network, data, folder, rounds, quick)]
    finally:
        torch.set_num_threads(threads)


def _compared(network: str, data: Dataset, folder: Path, rounds: int, quick: bool) -> list[Row]:
    predicted: dict[str, float] = {}
    reached: dict[str, float] = {}
    for turn in range(rounds):
        for plan, speed in _predictions(_experiment(network, data, folder / f"{network} {turn}", "single")).items():
            predicted[plan] = max(speed, predicted.get(plan, 0.0))
        for plan in predicted:
            place = folder / f"{network} {turn} {plan.replace('/', ' ')}"
            spans = _experiment(network, data, place, plan).fit(quiet=True).history.spans
            fastest = min(span.ended - span.started for span in spans)
            reached[plan] = max(data.rows / PARTITIONS / fastest, reached.get(plan, 0.0))
    load = f"load {os.getloadavg()[0]:.1f}"
    return [_row(network, plan, speed, reached[plan], load, quick) for plan, speed in predicted.items()]


def _row(network: str, plan: str, predicted: float, reached: float, load: str, quick: bool) -> Row:
    ratio = predicted / reached
    ok = None if quick else abs(ratio - 1) <= GOAL
    what = f"{network} network, {plan}: rows per second, predicted and run ({load})"
    return Row("dike_run", what, f"{predicted:,.0f}", f"{reached:,.0f}", ratio, f"within {GOAL:.0%}", ok)


def _predictions(experiment: hop.Experiment) -> dict[str, float]:
    """Return the predicted throughput of each plan, by the settings that train so."""
    definition = experiment.definition
    with scratch_folder(definition) as place:
        measured = measure_model(definition, place)
    (within,) = measure_cluster(definition, definition.find_backend(), measured)[0].seconds_per_byte[0]
    model, worker = measured.model, worker_need(measured.model, 1, 1)

    def cluster(*devices: int) -> Cluster:
        nodes = tuple(Node(f"n{at}", 1 + count, count, 8e9) for at, count in enumerate(devices))
        return Cluster(nodes, ((within,) * len(nodes),) * len(nodes), measured.flops)

    return {
        "single": throughput(cluster(1), model, Ring((0,), (1,), worker, 0.0)),
        "ddp:2": throughput(cluster(2), model, Ring((0,), (2,), worker, 0.0)),
        "ps/1:2": rows_per_second(cluster(2), model, Placement((0,), ((worker, worker),))),
        "ps/0+1:2": rows_per_second(cluster(1, 1), model, Placement((1,), ((worker,), ()))),
    }


def _experiment(network: str, data: Dataset, folder: Path, parallelism: str) -> hop.Experiment:
    return hop.Experiment(
        Network(),
        train=data,
        space={"network": hop.grid_search([network])},
        search=hop.Grid(max_epochs=4),
        metric="train_loss",
        workers=1,
        parallelism=parallelism,
        batch_size=BATCHES[network],
        run_options=hop.RunOptions(folder=folder),
        worker_options=hop.WorkerOptions(device="cpu", threads=1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dike_run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round with few rows: a functional check only")
    print(table(measure(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
