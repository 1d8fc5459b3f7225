"""Trials that fine-tune one model: its frozen part is saved once and never hops, and the bits are as before."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.clients.replay import replay
from hopfleet.domain.messages import VersionSaved
from hopfleet.frameworks.torch.trial import TrialContext
from hopfleet.runs.verify import verify
from hopfleet.store.journal import Journal
from tests.helpers.plain_loop import train_in_sequence
from tests.helpers.sample_tasks import Adapters, arrays
from tests.helpers.states import assert_same_state

SEED = 11
BASE = 36 * 512 * 4  # bytes of the frozen weights


def experiment(folder: Path, space: dict[str, Any], **options: Any) -> hop.Experiment:
    return hop.Experiment(
        Adapters(),
        train=folder,
        valid=arrays(60, seed=1),
        space={"lr": 0.05, "rank": hop.grid_search([1, 4]), **space},
        search=hop.Grid(max_epochs=2),
        metric="accuracy",
        mode="max",
        seed=SEED,
        name="adapters",
        batch_size=16,
        **options,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hop.partition(arrays(), tmp_path / "train", partitions=3, seed=3)
    return tmp_path / "train"


def check_bits(results: hop.Results, folder: Path) -> None:
    for trial in results.trials:
        assert trial.state is hop.TrialState.COMPLETED, trial.error
        where = {"config": trial.config, "trial_seed": trial.seed, "seed": SEED, "visits": trial.visits}
        task = Adapters()
        plain = task.for_trial(TrialContext(trial.config))
        assert_same_state(trial.last_checkpoint, *train_in_sequence(plain, folder, **where, batch_size=16))


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "workers"), [pytest.param("inline", 1, marks=pytest.mark.slow), ("local", 2)])
def test_the_frozen_part_is_saved_once_and_never_hops(folder: Path, backend: str, workers: int) -> None:
    results = experiment(folder, {}, backend=backend, workers=workers).fit(quiet=True)
    check_bits(results, folder)
    (shared,) = results.folder.shared.iterdir()
    assert shared.stat().st_size > BASE
    with contextlib.closing(Journal(results.folder.journal_file)) as journal:
        sizes = [message.size for _, _, message in journal.read() if isinstance(message, VersionSaved)]
    assert sizes and max(sizes) < BASE
    model = results.best.model()
    assert torch.equal(model.base.weight, hop.state_dict(results.folder.path)["base.weight"])
    assert torch.equal(model.base.weight, hop.state_dict(results.best.checkpoint)["base.weight"])
    replayed = replay(results.folder.path, backend="inline", workers=1)
    assert {trial.verdict for trial in replayed.trials} == {"equal"}, replayed.trials
    assert verify(results.folder).ok
    stray = shared.with_name(f"{'0' * 64}.safetensors")
    shared.rename(stray)
    assert sorted(fault.problem for fault in verify(results.folder).faults) == [
        "is a stray file: it is not in the journal",
        "is missing, and models refer to it",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "workers", "fuse"), [("inline", 1, "off"), pytest.param("local", 2, "exact", marks=pytest.mark.slow)]
)
def test_a_frozen_part_that_is_thawed_becomes_the_trials_own(
    folder: Path, backend: str, workers: int, fuse: str
) -> None:
    space = {"thaw_after": hop.grid_search([12, 1000])}
    options = hop.WorkerOptions(fuse=fuse)
    results = experiment(folder, space, backend=backend, workers=workers, worker_options=options).fit(quiet=True)
    check_bits(results, folder)
    sizes = {trial.config["thaw_after"]: trial.last_checkpoint.stat().st_size for trial in results.trials}
    assert sizes[12] > BASE > sizes[1000]
    replayed = replay(results.folder.path, backend="inline", workers=1)
    assert {trial.verdict for trial in replayed.trials} == {"equal"}, replayed.trials
