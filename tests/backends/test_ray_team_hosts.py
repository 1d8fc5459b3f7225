"""A team whose members are on hosts of their own: network namespaces with an address each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.helpers.cluster.hosts import WORKERS, hosts, needs_hosts

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, needs_hosts, pytest.mark.filterwarnings("default")]

TEAMS = ("ddp:2", "fsdp:2", "ps:2", "ps_async:2") if os.environ.get("HOPFLEET_LONG") else ("ddp:2",)

SCRIPT = """
    import functools, json, sys
    import numpy, ray, torch
    import hopfleet as hop

    told = json.loads(sys.argv[1])
    ray.init = functools.partial(ray.init, _node_ip_address=told["host"])

    class Net(hop.TorchTask):
        def build(self, config):
            layers = torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
            model = torch.nn.Sequential(*layers).double()
            return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

        def loss(self, model, batch):
            return torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])

    class Watched(hop.Ray):
        hosts = set()

        def _admit(self, handle):
            super()._admit(handle)
            self.hosts |= {self._nodes[node].node.address for node in handle.nodes}

    backend = Watched(told["address"]) if told["address"] else "local"
    x = numpy.random.default_rng(0).normal(size=(128, 8))
    results = hop.Experiment(
        Net(), train={"x": x, "y": x[:, 0]}, space={"lr": hop.choice([0.01, 0.003])}, metric="train_loss",
        search=hop.Grid(max_epochs=2), partitions=2, batch_size=16, workers=1, backend=backend, name=told["name"],
        parallelism=told["parallelism"], run_options=hop.RunOptions(order="fixed"),
        worker_options=hop.WorkerOptions(device="cpu"),
    ).fit(quiet=True)
    saved = [trial.saved.items() for trial in results.history.trials.values()]
    digests = [(version, each.digest) for versions in saved for version, each in versions if each.durable]
    print(json.dumps([sorted(Watched.hosts), digests]))
"""


def test_teams_across_hosts_have_the_bits_of_local_ones(own_home: Path) -> None:
    with hosts(own_home) as made:
        for parallelism in TEAMS:
            told = {"parallelism": parallelism, "name": parallelism.replace(":", "-")}
            made.run(SCRIPT, {**told, "address": made.address})
            places, digests = json.loads(made.said())
            assert places == [made.network.addresses[host] for host in WORKERS]
            if parallelism != "ps_async:2":
                made.run(SCRIPT, {**told, "name": f"local-{told['name']}", "address": ""})
                assert json.loads(made.said()) == [[], digests]
