"""Live data sets in whole experiments: the bits of a plain loop, wherever and whenever an item is made."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import hopfleet as hop
from hopfleet.clients.replay import replay
from hopfleet.errors import DataError, ExperimentExists, Interrupted, TaskError, UsageError
from hopfleet.runtime.loop import Loop
from tests.helpers.plain_loop import derived_seed
from tests.helpers.sample_tasks import Augmented, Dropping
from tests.helpers.states import assert_same_state

SEED = 3


def experiment(name: str, *, seconds: float = 0.0, **more: Any) -> hop.Experiment:
    given: dict[str, Any] = {
        "train": hop.live(Augmented(60, seconds)),
        "valid": hop.live(Augmented(20)),
        "space": {"lr": hop.grid_search([0.1, 0.2])},
        "search": hop.Grid(max_epochs=2),
        "seed": SEED,
        "partitions": 2,
        "batch_size": 8,
        "backend": "inline",
        "workers": 1,
        "run_options": hop.RunOptions(order="fixed"),
        **more,
    }
    return hop.Experiment(Dropping(), name=name, metric="accuracy", mode="max", **given)


def models(results: hop.Results) -> list[bytes]:
    return [trial.last_checkpoint.read_bytes() for trial in results.trials]


@pytest.mark.slow
def test_the_bits_of_a_plain_loop() -> None:
    results = experiment("live").fit(quiet=True)
    assert results.verify().ok
    for trial in results.trials:
        assert_same_state(trial.last_checkpoint, *_trained_in_sequence(trial, results.folder.path / "data" / "train"))
    alone = experiment("alone", worker_options=hop.WorkerOptions(fuse="off")).fit(quiet=True)
    assert models(alone) == models(results)
    assert [trial.metrics for trial in alone.trials] == [trial.metrics for trial in results.trials]


def _trained_in_sequence(trial: hop.TrialResult, folder: Path) -> tuple[Any, Any, None]:
    items = Augmented(60)
    torch.manual_seed(trial.seed)
    model, optimizer = Dropping().build(trial.config)
    stream = torch.get_rng_state()
    for epoch, partitions in enumerate(trial.visits, 1):
        for partition in partitions:
            with pa.OSFile(str(folder / f"part-{partition:05d}.arrow")) as file:
                rows = np.array(pa.ipc.open_file(file).read_all()["row"].to_pylist())
            order = np.random.Generator(np.random.PCG64(derived_seed(SEED, "order", epoch, partition)))
            rows = rows[order.permutation(len(rows))]
            for start in range(0, len(rows), 8):
                made = []
                for row in rows[start : start + 8].tolist():
                    seed = derived_seed(SEED, "live", epoch, row)
                    random.seed(seed)
                    np.random.seed(seed)
                    torch.manual_seed(seed)
                    made.append(items[row])
                torch.set_rng_state(stream)
                batch = {"x": torch.stack([x for x, _ in made]), "y": torch.tensor([y for _, y in made])}
                optimizer.zero_grad()
                Dropping().loss(model, batch).backward()
                optimizer.step()
                stream = torch.get_rng_state()
    random.seed(trial.seed)  # the model draws from torch alone
    np.random.seed(trial.seed)
    return model, optimizer, None


@pytest.mark.slow
def test_the_same_bits_from_transform_workers_and_after_a_resumption(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = models(experiment("wanted").fit(quiet=True))
    options = hop.WorkerOptions(transform_workers=1)
    slowly = experiment("slowly", seconds=0.002, backend="local", workers=2, worker_options=options)
    with monkeypatch.context() as patched:
        patched.setattr(Loop, "run", _interrupted(Loop.run))
        with pytest.raises(Interrupted):
            slowly.fit(quiet=True)
    other = experiment("slowly", train=hop.live(Augmented(59)), backend="local")
    with pytest.raises(ExperimentExists, match="train: rows 60 → 59"):
        other.fit(quiet=True)
    results = experiment("slowly", seconds=0.002, backend="local", workers=2, worker_options=options).fit(quiet=True)
    assert models(results) == wanted
    log = results.folder.logs / "transform-workers.log"
    assert not log.exists() or "Traceback" not in log.read_text()


def _interrupted(run: Any) -> Any:
    def drained(self: Loop, first: list[Any]) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return bool(run(self, first))

    return drained


def test_replays_take_the_object_again(tmp_path: Path) -> None:
    results = experiment("first").fit(quiet=True)
    with pytest.raises(UsageError, match=r"live data set.*train=hop.live\(dataset\)"):
        replay(results, backend="inline")
    found = replay(results, backend="inline", train=hop.live(Augmented(60)))
    assert found.ok and not found.notes and len(found.trials) == 2
    with pytest.raises(DataError, match="rows 60 → 61"):
        replay(results, backend="inline", train=hop.live(Augmented(61)))
    stored = hop.open_dataset(results.folder.path / "data" / "train")
    with pytest.raises(DataError, match="is a live data set"):
        experiment("second", train=stored).fit(quiet=True)


def test_an_object_that_cannot_travel_is_named() -> None:
    items = Augmented(60)
    items.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match=r"the task or the live data set cannot be sent.*in __getitem__ on first use"):
        experiment("heavy", train=hop.live(items), backend="local").fit(quiet=True)
