"""Trials that train together, through whole experiments: as if each had been alone."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.clients.replay import replay
from hopfleet.domain.messages import RunUnit, UnitFinished, UnitStopped, WorkerLost
from hopfleet.errors import HopfleetError, UsageError
from hopfleet.frameworks.torch.framework import TorchFramework
from hopfleet.store.journal import Journal
from hopfleet.worker.interruption import Interruption


class Line(hop.TorchTask):
    def build(self, config):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model, batch):
        return ((model(batch["x"]).squeeze(1) - batch["y"]) ** 2).mean()


def data(rows: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3)).astype("float32")
    return {"x": x, "y": x.sum(1)}


def fitted(task: hop.TorchTask, fuse: str, name: str = "e", **more: Any) -> Any:
    settings: dict[str, Any] = {
        "space": {"lr": hop.loguniform(1e-3, 1e-1)},
        "search": hop.Random(trials=5, max_epochs=2),
        "partitions": 2,
        "run_options": hop.RunOptions(order="fixed"),
        "worker_options": hop.WorkerOptions(fuse=fuse),
        "batch_size": 8,
        "workers": 1,
        "backend": "inline",
        **more,
    }
    train, valid = data(60, 0), data(20, 1)
    experiment = hop.Experiment(task, train=train, valid=valid, name=f"{name}-{fuse}", **settings)
    return experiment.fit(quiet=True)


def sizes(results: Any) -> list[int]:
    """The number of members of all flotillas, of units and evaluations."""
    with contextlib.closing(Journal(results.folder.journal_file)) as journal:
        starts = [message for _, _, message in journal.read() if isinstance(message, RunUnit)]
    numbers = [start.flotilla for start in starts if start.flotilla]
    return [numbers.count(number) for number in dict.fromkeys(numbers)]


def outcome(results: Any) -> list[Any]:
    models = [(trial.checkpoint.read_bytes() if trial.best_epoch else b"") for trial in results.trials]
    return [(trial.id, trial.state, trial.metrics, model) for trial, model in zip(results.trials, models, strict=True)]


@pytest.mark.slow
def test_the_same_bits_and_a_folder_that_is_whole():
    together = fitted(Line(), "exact", run_options=hop.RunOptions())
    assert max(sizes(together)) == 5
    assert together.verify().ok
    again = replay("e-exact", task=Line(), backend="inline", workers=1)
    assert again.ok and {trial.verdict for trial in again.trials} == {"equal"}


def told_ahead(results: Any) -> int:
    with contextlib.closing(Journal(results.folder.journal_file)) as journal:
        return sum(message.lookahead for _, _, message in journal.read() if isinstance(message, RunUnit))


class Tiring(Line):
    """One of the trials fails in its sixth unit, in the middle of the second epoch."""

    def loss(self, model, batch):
        if self.config["lr"] == self.weak and model.training:
            with Path(self.count).open("a+", encoding="utf-8") as file:
                file.write("x")
                if file.tell() > 6 * 2 - 1:
                    raise ArithmeticError("tired")
        return super().loss(model, batch)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inline", "local"])
def test_who_stays_knows_the_next_partition_before_the_end_of_the_last(backend):
    results = fitted(Line(), "exact", run_options=hop.RunOptions(), partitions=4, backend=backend)
    assert told_ahead(results) >= 5 * 2, "two of three partitions that follow another, in the second epoch at least"
    assert results.verify().ok
    again = replay("e-exact", task=Line(), backend="inline", workers=1)
    assert again.ok and {trial.verdict for trial in again.trials} == {"equal"}


@pytest.mark.slow
def test_who_fails_does_not_go_on_and_the_others_do(tmp_path):
    task = Tiring()
    task.weak, task.count = fitted(Line(), "off", partitions=4).trials[2].config["lr"], str(tmp_path / "count")
    results = fitted(task, "exact", run_options=hop.RunOptions(), partitions=4, backend="local")
    assert [trial.state.value for trial in results.trials] == [*["completed"] * 2, "failed", *["completed"] * 2]
    assert "tired" in results.trials[2].error and told_ahead(results) and results.verify().ok
    assert (tmp_path / "count").read_text() == "x" * 12, "nothing follows the unit that failed"


@pytest.mark.slow
def test_batches_of_different_sizes_train_together_on_a_device(monkeypatch):
    """On a device with its own memory; here, the CPU claims to have some."""
    space = {"lr": hop.loguniform(1e-3, 1e-1), "batch_size": hop.choice([4, 8, 16])}
    alone = fitted(Line(), "off", space=space, partitions=1)
    assert len({trial.config["batch_size"] for trial in alone.trials}) > 1
    monkeypatch.setattr(TorchFramework, "spare_memory", lambda self, placement: 1 << 30)
    together = fitted(Line(), "exact", space=space, partitions=1)
    assert set(sizes(together)) == {5} and outcome(together) == outcome(alone)
    again = replay("e-exact", task=Line(), backend="inline", workers=1)
    assert again.ok and {trial.verdict for trial in again.trials} == {"equal"}


@pytest.mark.slow
def test_a_partition_too_large_for_the_device_is_read_once_for_each_batch_size(monkeypatch):
    space = {"lr": hop.loguniform(1e-3, 1e-1), "batch_size": hop.choice([4, 8, 16])}
    alone = fitted(Line(), "off", space=space, partitions=1)
    monkeypatch.setattr(TorchFramework, "spare_memory", lambda self, placement: 1 << 30)
    monkeypatch.setattr("hopfleet.worker.feeding.stream.ROOM", 0)
    together = fitted(Line(), "exact", space=space, partitions=1)
    assert set(sizes(together)) == {5} and outcome(together) == outcome(alone)


@pytest.mark.slow
def test_fixed_orders_give_the_same_bits():
    alone, together = (fitted(Line(), fuse) for fuse in ("off", "exact"))
    assert sizes(alone) == []
    assert len(sizes(together)) > 0
    assert outcome(alone) == outcome(together)


@pytest.mark.slow
def test_other_batches_other_flotillas():
    space = {"lr": hop.loguniform(1e-3, 1e-1), "batch_size": hop.choice([8, 16])}
    alone, together = (fitted(Line(), fuse, space=space) for fuse in ("off", "exact"))
    assert outcome(alone) == outcome(together)


class Talking(Line):
    def loss(self, model, batch):
        print(f"lr {self.config['lr']:.6f}")
        return super().loss(model, batch)


def test_everybody_has_a_log_of_its_own(capsys):
    results = fitted(Talking(), "exact", run_options=hop.RunOptions())
    assert max(sizes(results)) == 5
    for trial in results.trials:
        assert set(trial.log().split("\n")) - {""} == {f"lr {trial.config['lr']:.6f}"}


class NotANumber(Line):
    def metrics(self, model, batch):
        return {"loss": float("nan")}


@pytest.mark.parametrize("fuse", ["exact", "off"])
def test_the_log_of_each_trial_says_once_that_a_metric_is_nan(fuse):
    for trial in fitted(NotANumber(), fuse, search=hop.Random(trials=2, max_epochs=2)).trials:
        assert trial.log().count("the metric 'loss' is NaN after epoch 1") == trial.log().count("is NaN") == 1


class Failing(Line):
    def loss(self, model, batch):
        if self.config["lr"] > 0.03:
            raise ValueError("too fast for me")
        return super().loss(model, batch)


@pytest.mark.slow
def test_one_fails_alone():
    alone, together = (fitted(Failing(), fuse, search=hop.Random(trials=8, max_epochs=2)) for fuse in ("off", "exact"))
    assert outcome(alone) == outcome(together)
    failed = [trial for trial in together.trials if trial.state.value == "failed"]
    assert 0 < len(failed) < 8
    assert "too fast for me" in failed[0].error


class Moody(Line):
    """Draws from a stream that it does not touch with the first batch of its life."""

    def loss(self, model, batch):
        model.seen = getattr(model, "seen", 0) + 1
        noise = random.random() if model.seen > 1 else 0.5
        return super().loss(model, batch) * (0.5 + noise)


def test_who_would_disturb_others_trains_alone(capsys):
    alone, together = (fitted(Moody(), fuse, search=hop.Random(trials=4, max_epochs=1)) for fuse in ("off", "exact"))
    assert len(sizes(together)) > 0
    assert [trial.state.value for trial in together.trials] == ["completed"] * 4
    assert outcome(alone) == outcome(together)
    assert "drew from a random stream" in capsys.readouterr().err


class OutOfMemory(Line):
    """Runs out of memory at a large learning rate, unless the trial is alone."""

    def loss(self, model, batch):
        together = sum(1 for frame in _frames() if frame == "do")
        if together and self.config["lr"] > 0.01:
            raise MemoryError("no room")
        return super().loss(model, batch)

    @property
    def framework(self):
        return OutOfMemoryFramework(self, owns_loop=False)


class OutOfMemoryFramework(TorchFramework):
    def out_of_memory(self, error):
        return isinstance(error, MemoryError)


def _frames() -> list[str]:
    import inspect

    return [frame.function for frame in inspect.stack(0)]


@pytest.mark.slow
def test_out_of_memory_splits_a_flotilla():
    alone, together = (fitted(OutOfMemory(), fuse) for fuse in ("off", "exact"))
    assert outcome(alone) == outcome(together)
    assert all(trial.state.value == "completed" for trial in together.trials)


@pytest.mark.slow
def test_members_that_are_given_up_leave_the_others_alone(monkeypatch):
    """Units given up halfway start anew, and no bit of any trial shows it."""
    rng = random.Random(7)

    def ordered(self, attempts):
        return {attempt for attempt in attempts if rng.random() < 0.06}

    alone = fitted(Line(), "off")
    monkeypatch.setattr(Interruption, "ordered", ordered)
    together, apart = fitted(Line(), "exact"), fitted(Line(), "off", name="f")
    assert outcome(alone) == outcome(together) == outcome(apart)
    assert together.verify().ok
    assert min(kinds(together).count(UnitStopped), kinds(apart).count(UnitStopped)) > 2
    assert WorkerLost not in kinds(together)


def kinds(results: Any) -> list[type]:
    with contextlib.closing(Journal(results.folder.journal_file)) as journal:
        return [type(message) for _, _, message in journal.read()]


class Slow(Line):
    def loss(self, model, batch):
        time.sleep(0.03)
        return super().loss(model, batch)


@pytest.mark.slow
def test_stopping_a_trial_now_costs_the_others_nothing():
    """The worker was killed, and all members of its flotilla repeated their units."""
    answers: list[str] = []

    def stop() -> None:
        deadline = time.monotonic() + 60
        while not answers and time.monotonic() < deadline:
            time.sleep(0.05)
            with contextlib.suppress(HopfleetError):
                if RunUnit in kinds(hop.load("e-exact")):
                    answers.append(hop.control("e-exact", wait=60).stop("t0002", now=True))

    thread = threading.Thread(target=stop)
    thread.start()
    search = hop.Random(trials=4, max_epochs=2)
    results = fitted(Slow(), "exact", search=search, backend="local", run_options=hop.RunOptions())
    thread.join()
    assert answers[0].startswith("t0002 stops")
    found = kinds(results)
    states = {trial.id: trial.state.value for trial in results.trials}
    assert states == {**dict.fromkeys(["t0001", "t0003", "t0004"], "completed"), "t0002": "stopped"}
    assert WorkerLost not in found
    # Each of the others trained two epochs of two units, once.
    assert all(len(trial.visits) == 2 for trial in results.trials if trial.id != "t0002")
    assert found.count(RunUnit) == found.count(UnitFinished) + found.count(UnitStopped)


class Looping(Line):
    def train(self, model, batches, config):
        return super().train(model, batches, config)


def test_a_task_with_a_loop_of_its_own():
    assert sizes(fitted(Looping(), "exact")) == []
    with pytest.raises(UsageError, match="fuse='fast': trials of Looping cannot train together: it owns its"):
        hop.Experiment(Looping(), train=data(60, 0), space={"lr": 0.1}, worker_options=hop.WorkerOptions(fuse="fast"))
    with pytest.raises(UsageError, match="fuse='all': must be one of 'exact', 'fast', 'off'"):
        hop.WorkerOptions(fuse="all")


@pytest.mark.slow
def test_fast_is_nearly_as_alone_and_says_that_it_cannot_be_replayed(capsys):
    class Plain(Line):
        def build(self, config):
            model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
            return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    alone, together = (fitted(Plain(), fuse) for fuse in ("off", "fast"))
    assert len(sizes(together)) > 0
    assert "are stacked" in capsys.readouterr().err
    for one, other in zip(alone.trials, together.trials, strict=True):
        assert other.metrics["loss"] == pytest.approx(one.metrics["loss"], rel=1e-4)
    with pytest.raises(UsageError, match="fuse='fast', where the last bits depend"):
        replay("e-fast", task=Plain())


class Breaking(Line):
    """One of its configurations leaves the device in a state that no trial can use."""

    def loss(self, model, batch):
        if os.environ.get("BROKEN_BY") == str(os.getpid()):
            raise RuntimeError("CUDA error: as before")
        if self.config["lr"] > 0.03:
            os.environ["BROKEN_BY"] = str(os.getpid())
            raise RuntimeError("CUDA error: device-side assert triggered")
        return super().loss(model, batch)


@pytest.mark.slow
def test_who_breaks_the_device_is_found_and_the_others_go_on():
    settings = {"search": hop.Random(trials=6, max_epochs=2), "backend": "local"}
    alone, together = (fitted(Breaking(), fuse, **settings) for fuse in ("off", "exact"))
    assert max(sizes(together)) > 1
    assert outcome(alone) == outcome(together)
    verdicts = [
        (trial.config["lr"] > 0.03, trial.state.value, "device-side" in (trial.error or "")) for trial in alone.trials
    ]
    assert set(verdicts) == {(True, "failed", True), (False, "completed", False)}
