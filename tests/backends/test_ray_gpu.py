"""Ray with GPUs. Where PyTorch has one: bits as on the machine alone, and GPU and CPU workers in one experiment.

Two nodes on this machine, one with a GPU and one without. It needs PyTorch, pytest and no more of Ray than its
core. Without a GPU one is declared to Ray, and what is tested is who goes where: HOPFLEET_LONG=1 runs that.

    PYTHONPATH=src:. python -m pytest tests/backends/test_ray_gpu.py
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

ray = pytest.importorskip("ray")
torch = pytest.importorskip("torch")

import hopfleet as hop  # noqa: E402
from hopfleet.domain.messages import UnitFinished, WorkerJoined  # noqa: E402
from hopfleet.store.journal import Journal  # noqa: E402
from hopfleet.support.files import digest  # noqa: E402
from tests.helpers.cluster.joined import Clusters  # noqa: E402
from tests.helpers.sample_tasks import Everything, arrays  # noqa: E402

GPU = torch.cuda.is_available()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not GPU and not os.environ.get("HOPFLEET_LONG"), reason="no GPU; HOPFLEET_LONG=1 runs a part"),
]
only_with_gpu = pytest.mark.skipif(not GPU, reason="no GPU")

TRIALS, EPOCHS, PARTITIONS = 6, 3, 4


@pytest.fixture(scope="module", autouse=True)
def cluster(clusters: Clusters) -> Iterator[Any]:
    """A node with one GPU and one without, of one CPU each."""
    with clusters.joined({"num_cpus": 1, "num_gpus": 1}, {"num_cpus": 1, "num_gpus": 0}) as joined:
        yield joined


def experiment(name: str, backend: Any, device: str, **more: Any) -> hop.Experiment:
    """Convolution, BatchNorm, dropout and three optimizers, in an order that depends on nothing but its seed."""
    optimizers = hop.grid_search(["sgd", "adam", "adamw"])
    return hop.Experiment(
        Everything(),
        train=arrays(240),
        valid=arrays(60, seed=1),
        space={"optimizer": optimizers, "schedule": hop.grid_search(["step", "none"]), "batch_size": 16},
        search=hop.Grid(max_epochs=EPOCHS),
        metric="loss",
        partitions=PARTITIONS,
        name=name,
        backend=backend,
        run_options=hop.RunOptions(order="fixed"),
        worker_options=hop.WorkerOptions(device=device),
        **more,
    )


def messages(results: hop.Results, kind: type) -> list[Any]:
    with contextlib.closing(Journal(results.folder.journal_file)) as journal:
        return [message for _, _, message in journal.read() if isinstance(message, kind)]


def fingerprints(results: hop.Results) -> dict[str, str]:
    return {trial.id: digest(trial.last_checkpoint) for trial in results.trials}


@only_with_gpu
def test_a_gpu_of_a_cluster_gives_the_bits_that_it_gives_alone() -> None:
    """Only the node that has a GPU is used."""
    results = experiment("cluster", "ray", device="cuda", workers=1).fit(quiet=True)
    assert [str(worker.placement) for worker in messages(results, WorkerJoined)] == ["cuda:0"]
    alone = experiment("alone", "local", device="cuda", workers=1).fit(quiet=True)
    assert fingerprints(results) == fingerprints(alone)


def test_workers_with_and_without_a_gpu_share_one_experiment() -> None:
    """Every unit counts once, wherever it ran. Devices round differently, so bits cannot be compared; losses can."""
    results = experiment("mixed", "ray", device="auto", workers=2).fit(quiet=True)
    joined = {worker.worker: worker for worker in messages(results, WorkerJoined)}
    assert sorted(str(worker.placement) for worker in joined.values()) == ["cpu", "cuda:0" if GPU else "cpu"]
    held = [set(range(PARTITIONS) if one.partitions is None else one.partitions) for one in joined.values()]
    assert set.union(*held) == set(range(PARTITIONS))
    units = [message for message in messages(results, UnitFinished) if message.unit.trains]
    assert {unit.worker for unit in units} == joined.keys()
    assert any(unit.hopped for unit in units)
    counted = Counter((done.trial, done.unit.epoch, done.unit.partition) for done in units)
    assert set(counted.values()) == {1} and len(counted) == TRIALS * EPOCHS * PARTITIONS
    plain = experiment("plain", "local", device="cpu", workers=1).fit(quiet=True)
    for mixed, alone in zip(results.trials, plain.trials, strict=True):
        assert mixed.config == alone.config
        # Dropout draws other numbers on a GPU; what is learned is the same thing.
        assert mixed.metrics["loss"] == pytest.approx(alone.metrics["loss"], abs=0.3 if GPU else 0.0)
    if not GPU:
        assert fingerprints(results) == fingerprints(plain)


def test_a_gpu_is_asked_for_where_there_is_none_left() -> None:
    with pytest.raises(hop.HopfleetError, match=r"workers=2: only 1 fit, at 1 GPU each .*1 of 1 GPUs free, room for 1"):
        experiment("two", "ray", device="cuda", workers=2).fit(quiet=True)


def test_two_workers_share_a_gpu() -> None:
    results = experiment("halves", hop.Ray(gpus=0.5), device="auto", workers=3).fit(quiet=True)
    devices = sorted(str(worker.placement) for worker in messages(results, WorkerJoined))
    assert devices == (["cpu", "cuda:0", "cuda:0"] if GPU else ["cpu"] * 3)
    assert len({unit.worker for unit in messages(results, UnitFinished)}) == 3
