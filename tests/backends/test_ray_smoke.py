"""Experiments on a real Ray cluster; ``test_ray.py`` has larger ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain.messages import UnitFinished
from tests.helpers import whole_sets
from tests.helpers.cluster.chained import chained
from tests.helpers.cluster.joined import Clusters
from tests.helpers.cluster.started import fingerprints, messages
from tests.helpers.sample_tasks import Augmented, Changing, Dropping

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", autouse=True)
def cluster(clusters: Clusters) -> Iterator[None]:
    """Nodes with two CPUs each, as for the larger tests, which this process has joined."""
    with clusters.joined(*[{"num_cpus": 2}] * 3):
        yield


def test_a_cluster_gives_the_bits_of_one_process() -> None:
    alone = chained("alone", "inline", workers=1).fit(quiet=True)
    spread = chained("spread", "ray", workers=2).fit(quiet=True)
    assert fingerprints(spread.folder) == fingerprints(alone.folder)
    assert len({unit.worker for unit in messages(spread.folder, UnitFinished)}) == 2


def test_live_items_have_the_same_bits_on_a_cluster() -> None:
    def fitted(name: str, backend: str, workers: int) -> hop.Results:
        return hop.Experiment(
            Dropping(),
            train=hop.live(Augmented(40)),
            valid=hop.live(Augmented(20)),
            space={"lr": hop.grid_search([0.1, 0.2])},
            search=hop.Grid(max_epochs=2),
            partitions=2,
            batch_size=8,
            name=name,
            backend=backend,
            workers=workers,
            run_options=hop.RunOptions(order="fixed"),
        ).fit(quiet=True)

    alone, spread = fitted("alone", "inline", 1), fitted("spread", "ray", 2)
    assert fingerprints(spread.folder) == fingerprints(alone.folder)
    assert [trial.metrics for trial in spread.trials] == [trial.metrics for trial in alone.trials]


def test_whole_sets_are_scored_on_a_cluster(tmp_path: Path) -> None:
    valid = hop.partition(whole_sets.arrays(61, seed=1), tmp_path / "valid", partitions=4)
    alone, spread = (
        whole_sets.fitted(valid, name=backend, backend=backend, workers=workers)
        for backend, workers in (("inline", 1), ("ray", 2))
    )
    assert whole_sets.curves(spread) == whole_sets.curves(alone)
    assert {trial.metrics["rows"] for trial in spread.trials} == {61}


def test_trials_on_a_cluster_do_not_see_what_others_change() -> None:
    x = np.random.default_rng(0).normal(size=(48, 8))

    def fitted(name: str, backend: str, changes: list[bool]) -> dict[str, str]:
        results = hop.Experiment(
            Changing(),
            train={"x": x, "y": x.sum(1)},
            space={"lr": 0.01, "changes": hop.grid_search(changes), "dropout": 0.2},
            search=hop.Grid(max_epochs=2),
            partitions=2,
            batch_size=8,
            name=name,
            backend=backend,
            workers=1,
            run_options=hop.RunOptions(order="fixed"),
        ).fit(quiet=True)
        return fingerprints(results.folder)

    alone = fitted("plain", "inline", [False, False, False])
    found = fitted("dirty", "ray", [False, True, False])
    assert [name for name in alone if found[name] != alone[name]] == ["t0002"]
