"""What a run says of batches, and of trials, that cannot be shared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.domain.messages import RunUnit
from hopfleet.domain.placement import CPU
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import UsageError
from hopfleet.worker.feeding.feed import Feed
from hopfleet.worker.logs import copied
from hopfleet.worker.worker import Worker
from tests.helpers.feeding import Late, Noisy, arrays, sources

# A process of pytest has threads; the children of these tests use none of what those hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.mark.parametrize(
    ("column", "found"),
    [
        ("none", ("", "")),
        ("evaluation", ("", "x")),
        ("global", ("x", "x")),
        ("type", ("x", "x")),
        ("list", ("texts", "texts")),
        ("length", ("texts", "texts")),
        ("object", ("objects", "objects")),
        ("torch", ("tensor", "tensor")),
        ("new", ("new1", "new3")),
    ],
)
def test_a_transform_that_is_not_the_same_each_time_is_found(data, column, found):
    feed = Feed(Late(column))
    assert tuple(feed.unsteady(source, {}) for source in (sources(data)[0], sources(data)[2])) == found


def small(task: Any, **how: Any) -> hop.Experiment:
    settings: dict[str, Any] = {"search": hop.Grid(max_epochs=1), "batch_size": 4, "partitions": 1, **how}
    space = {"lr": hop.grid_search([0.01, 0.02])}
    return hop.Experiment(task, train=arrays(16), backend="inline", **{"space": space, **settings})


def said(capfd: Any) -> str:
    captured = capfd.readouterr()
    return " ".join((captured.out + captured.err).split())


@pytest.mark.parametrize("valid", [None, arrays(8)])
def test_it_is_said_once_and_the_run_goes_on(capfd, valid):
    results = small(Late("global"), valid=valid).fit()
    assert {trial.state.value for trial in results.trials} == {"completed"}
    text = said(capfd)
    assert text.count("Late.transform is not reproducible: column 'x' differs") == 1
    assert "let it draw from its rng alone" in text
    small(Late("none"), valid=valid).fit()
    assert "not reproducible" not in said(capfd)


@pytest.mark.slow
def test_a_preview_says_it_too():
    assumed = small(Late("global"), valid=arrays(8)).preview(quiet=True).assumed
    assert [text for text in assumed if "transform() is not reproducible: column 'x'" in text]


# ----------------------------------------------------------------------------------------------- who cannot sail


class Owner(Noisy):
    seconds = 0.0

    def train(self, model, batches, config):
        return {"loss": sum(float(self.loss(model, batch).detach()) for batch in batches)}


def test_a_task_that_owns_its_loop_is_told_so_once(capfd):
    small(Owner()).fit()
    assert said(capfd).count("trials of Owner train one at a time, not together: it owns its training loop") == 1
    small(Owner(), worker_options=hop.WorkerOptions(fuse="off")).fit()
    assert "one by one" not in said(capfd)
    with pytest.raises(UsageError, match="fuse='fast': trials of Owner cannot train together: it owns"):
        small(Owner(), worker_options=hop.WorkerOptions(fuse="fast"))


def test_nobody_fits_anybody(capfd):
    sizes = {"lr": 0.01, "batch_size": hop.grid_search([4, 8]), "width": 3}
    small(Late("none"), space=sizes, worker_options=hop.WorkerOptions(fuse="fast")).fit()
    assert "fuse='fast': no two trials can be stacked, since stacking needs the same batch_size" in said(capfd)
    sizes |= {"batch_size": 4, "width": hop.grid_search([3, 4])}
    small(Late("none"), space=sizes, worker_options=hop.WorkerOptions(fuse="fast")).fit()
    assert "fuse='fast': any two trials differ in width; they can be stacked only if" in said(capfd)
    small(Late("none"), space=sizes, worker_options=hop.WorkerOptions(fuse="exact")).fit()
    small(Late("none"), worker_options=hop.WorkerOptions(fuse="fast")).fit()
    assert "two trials" not in said(capfd)


@pytest.mark.parametrize("fast", [True, False])
def test_batches_of_different_sizes_that_are_not_on_the_device(spec, capfd, fast):
    """Units that are sent out together, over a partition that is not on the device, train one size after another."""
    events: list[Any] = []
    spec = replace(spec, task=Late("none"), fast=fast, checkpoints=spec.logs)
    worker = Worker("w1", spec, CPU, events.extend, capture=copied, guest=True)
    for number, size in enumerate((4, 8)):
        trial = Trial(f"t{number}", number, {"lr": 0.1, "batch_size": size}, 0, 1)
        worker.execute(
            RunUnit("w1", Unit(trial.id, 1, 0), number + 1, VersionRef(trial.id, 0, None), flotilla=1, more=not number),
            trial,
        )
    worker.close()
    assert [type(event).__name__ for event in events] == ["UnitFinished"] * 2
    assert events[0].ended <= events[1].started and "one by one" not in said(capfd)
