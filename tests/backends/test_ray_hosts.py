"""A cluster on hosts of its own: network namespaces with an address each.

A team has members on several hosts; then the driver's link, the head, and the storage fail in turn. Ray has the
settings that deploy/by-hand.md recommends. HOPFLEET_LONG=1 makes the outages minutes instead of seconds.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopfleet.domain.messages import SaveDelayed, TrialRolledBack, UnitFinished, UnitOverdue
from hopfleet.store.folder import RunFolder
from tests.helpers.cluster.hosts import (
    DRIVER,
    HEAD,
    REDIS_SERVER,
    STORAGE,
    WORKERS,
    Hosts,
    hosts,
    needs_hosts,
    needs_redis,
    recommended,
)
from tests.helpers.cluster.started import messages, wait_until
from tests.helpers.marks import long

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, needs_hosts, pytest.mark.filterwarnings("default")]

LONG = bool(os.environ.get("HOPFLEET_LONG"))
LINK_SECONDS, HEAD_SECONDS, STORAGE_SECONDS = (60.0, 30.0, 120.0) if LONG else (8.0, 5.0, 8.0)
EPOCHS = 60 if LONG else 25
PATIENCE = 400.0
TEAMS = ("ddp:2", "fsdp:2", "ps:2", "ps_async:2") if LONG else ("ddp:2",)

TEAM_SCRIPT = """
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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A cluster of hosts for tests after which all of them are there."""
    with hosts(tmp_path_factory.mktemp("home"), redis=bool(REDIS_SERVER), **recommended()) as found:
        yield found


def done(folder: RunFolder) -> int:
    return len(messages(folder, UnitFinished))


def wait_for_units(made: Hosts, folder: RunFolder, count: int) -> None:
    """Wait until the run has finished ``count`` more units."""
    before = done(folder)
    wait_until(lambda: done(folder) >= before + count or made.driver_ended, PATIENCE)
    assert not made.driver_ended, made.said()


@long
def test_teams_across_hosts_have_the_bits_of_local_ones(made: Hosts) -> None:
    for parallelism in TEAMS:
        told = {"parallelism": parallelism, "name": parallelism.replace(":", "-")}
        made.run(TEAM_SCRIPT, {**told, "address": made.address})
        places, digests = json.loads(made.said())
        assert places == [made.network.addresses[host] for host in WORKERS]
        if parallelism != "ps_async:2":
            made.run(TEAM_SCRIPT, {**told, "name": f"local-{told['name']}", "address": ""})
            assert json.loads(made.said()) == [[], digests]


@long
def test_training_goes_on_while_the_storage_is_gone(made: Hosts) -> None:
    folder = RunFolder(made.home / "unsent")
    made.serve_bucket("bucket")
    made.drive("unsent", epochs=EPOCHS, address=made.address, storage="s3://bucket/runs")
    wait_for_units(made, folder, 10)
    made.network.cut(STORAGE)
    wait_until(lambda: bool(messages(folder, SaveDelayed)) or made.driver_ended, PATIENCE)
    wait_for_units(made, folder, 20)
    made.network.mend(STORAGE)
    unsent = json.loads(made.said())
    delayed = messages(folder, SaveDelayed)
    assert all(delay.on_node and re.search(r"s3://bucket/.* cannot be sent", delay.error) for delay in delayed), delayed
    assert not messages(folder, UnitOverdue) and not messages(folder, TrialRolledBack)
    made.drive("sent", epochs=EPOCHS)
    assert json.loads(made.said()) == unsent


@needs_redis
def test_a_run_survives_a_cut_link_a_restarted_head_and_a_storage_that_is_gone(made: Hosts) -> None:
    folder = RunFolder(made.home / "tried")
    made.serve_bucket("bucket")
    made.drive("tried", epochs=EPOCHS, address=made.address, storage="s3://bucket/runs")
    wait_for_units(made, folder, 10)
    made.network.cut(DRIVER)
    time.sleep(LINK_SECONDS)
    made.network.mend(DRIVER)
    wait_for_units(made, folder, 10)
    made.lose(HEAD)
    time.sleep(HEAD_SECONDS)
    made.start(HEAD)
    wait_for_units(made, folder, 10)
    made.network.cut(STORAGE)
    time.sleep(STORAGE_SECONDS)
    made.network.mend(STORAGE)
    tried = json.loads(made.said())
    delayed = [message.error for message in messages(folder, SaveDelayed)]
    assert all(re.search(r"s3://bucket/.* cannot be sent", error) for error in delayed), delayed
    assert delayed or not LONG, "a storage that stalls is said"
    made.drive("alone", epochs=EPOCHS)
    assert json.loads(made.said()) == tried


@long
def test_a_head_that_is_lost_for_good_ends_the_run_in_time(own_home: Path) -> None:
    folder = RunFolder(own_home / "lost")
    with hosts(own_home, **recommended()) as made:
        made.drive("lost", epochs=2000, address=made.address, outage=20.0)
        wait_for_units(made, folder, 10)
        made.lose(HEAD)
        began = time.monotonic()
        said = made.said(code=1)
        assert time.monotonic() - began < 60
        assert re.search(
            r"WorkersLost: the head of the Ray cluster, \S+, has not answered for .* s; `hopfleet resume`", said
        )


@long
def test_a_head_that_comes_back_without_its_state_ends_the_run(own_home: Path) -> None:
    """Ray would end the process at the next question to such a head."""
    folder = RunFolder(own_home / "forgotten")
    with hosts(own_home, **recommended()) as made:
        made.drive("forgotten", epochs=2000, address=made.address)
        wait_for_units(made, folder, 10)
        made.lose(HEAD)
        made.start(HEAD)
        said = made.said(code=1)
        assert "WorkersLost: the head of the Ray cluster was started again without its state; `hopfleet resume`" in said
