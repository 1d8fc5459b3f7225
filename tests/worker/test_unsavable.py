"""A version that cannot be written or read again fails its trial, with the reason; a disk that is full does not."""

from __future__ import annotations

import dataclasses
import errno
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.backends.inline import Inline
from hopfleet.domain.messages import SaveDelayed, SaveFailed, SaveVersion, VersionLost, VersionSaved, WorkerJoined
from hopfleet.domain.placement import Placement
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError
from hopfleet.frameworks.base import Session
from hopfleet.store.versions.local import Versions
from hopfleet.testing.backends import spec, trial, unit, wait_for, wait_for_any
from hopfleet.testing.tasks import CountingSession, CountingTask
from hopfleet.worker.saver import Saver

COMMAND = SaveVersion("w1", VersionRef("t0001", 4, 7), True)


class Model:
    """A session that raises when it is saved, as the task's code or as a disk does."""

    spread = False
    size = 1

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def save(self, path: Path) -> None:
        if self.error is not None:
            raise self.error
        path.write_bytes(b"many" * 1000)


class Failing(Versions):
    """A disk with one kind of trouble."""

    error = OSError()

    def write(self, *arguments: Any, **options: Any) -> tuple[str, int]:
        raise self.error


def reported(versions: Versions, model: Any, threads: int) -> list[Any]:
    """What becomes of a save before the saver is closed."""
    events: list[Any] = []
    saver = Saver(versions, events.append, worker="w1", threads=threads)
    saver.save(COMMAND, model)
    saver.close()
    return events


def failed(code: int) -> OSError:
    return OSError(code, os.strerror(code))


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize(
    ("error", "waits"),
    [
        *((code, True) for code in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES)),
        *((code, False) for code in (errno.EFBIG, errno.EMFILE, errno.ENAMETOOLONG)),
    ],
)
def test_disks_are_waited_for_and_limits_are_not(error: int, waits: bool, threads: int, tmp_path: Path) -> None:
    versions = Failing(tmp_path / "c", tmpfs=tmp_path)
    versions.error = failed(error)
    (event,) = reported(versions, Model(), threads)
    assert isinstance(event, SaveDelayed if waits else SaveFailed) and event.ref == COMMAND.ref
    assert ("raise the limits of the process" in event.error) is not waits


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize(
    "error",
    [TypeError("a lock"), CheckpointError("odd"), SystemExit(1), ConnectionRefusedError("no"), MemoryError("full")],
    ids=repr,
)
def test_what_the_task_s_code_raises_is_no_matter_of_disks(error: BaseException, threads: int, tmp_path: Path) -> None:
    (event,) = reported(Versions(tmp_path / "c", tmpfs=tmp_path), Model(error), threads)
    assert isinstance(event, SaveFailed) and str(error) in event.error


@pytest.mark.parametrize("threads", [0, 1])
def test_a_limit_on_file_sizes_is_named(threads: int, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        (event,) = reported(Versions(tmp_path / "c", tmpfs=tmp_path), Model(), threads)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(event, SaveFailed)
    assert "(File too large); raise the limits of the process (ulimit -a shows them)" in event.error


@pytest.mark.parametrize("threads", [0, 1])
def test_a_size_that_cannot_be_told_is_the_matter_of_the_save(threads: int, tmp_path: Path) -> None:
    class Sizeless(Model):
        @property
        def size(self) -> int:  # type: ignore[override]
            raise CheckpointError("an estimator cannot be saved")

    (event,) = reported(Versions(tmp_path / "c", tmpfs=tmp_path), Sizeless(CheckpointError("an estimator")), threads)
    assert isinstance(event, SaveFailed) and "an estimator" in event.error


def test_an_upload_that_fails_for_good_is_reported(tmp_path: Path) -> None:
    class Sending(Versions):
        sends = True

        def send(self, ref: VersionRef) -> None:
            raise RuntimeError("no such bucket")

    here, event = reported(Sending(tmp_path / "c", tmpfs=tmp_path), Model(), 1)
    assert isinstance(here, VersionSaved) and not here.durable
    assert isinstance(event, SaveFailed) and "no such bucket" in event.error


def test_loading_tells_a_model_that_cannot_be_made_from_a_file_that_is_gone(tmp_path: Path) -> None:
    backend, odd = Inline(), trial(number=2)
    backend.start(dataclasses.replace(spec(tmp_path), task=Odd("load")), 2)
    wait_for(backend, WorkerJoined, 2)
    backend.send(unit("w1"), odd)
    backend.send(dataclasses.replace(COMMAND, ref=VersionRef("t0001", 1, 7)), odd)
    _, saved = wait_for_any(backend, 2)
    for attempt in (7, 8):
        backend.send(unit("w2", version=1, partition=1, saved=attempt, digest=saved.digest), odd)
    whole, gone = wait_for(backend, VersionLost, 2)
    assert (whole.intact, whole.reason) == (True, "load is impossible")
    assert not gone.intact and "is not saved anywhere" in gone.reason
    backend.close()


# ---------------------------------------------------------------------------------------------- whole experiments


class Odd(CountingTask):
    """The trial with number 2 is odd in one way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def open(self, config: Mapping[str, Any], *, seed: int, placement: Placement, threads: int) -> Session:
        return OddSession(config, self.way if config["number"] == 2 else "")


class OddSession(CountingSession):
    def __init__(self, config: Mapping[str, Any], way: str) -> None:
        super().__init__(config)
        self.way = way

    def _if(self, way: str) -> None:
        if self.way == way:
            raise CheckpointError(f"{way} is impossible")

    @property
    def size(self) -> int:
        self._if("size")
        return super().size

    def save(self, path: Path) -> None:
        self._if("size")
        self._if("save")
        super().save(path)

    def load(self, path: Path) -> None:
        self._if("load")
        super().load(path)

    def train(self, *arguments: Any, **options: Any) -> Any:
        self._if("train")
        return super().train(*arguments, **options)

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        self._if("evaluate")
        return super().evaluate(*arguments, **options)


@pytest.mark.parametrize("way", ["size", "save", "train", "evaluate"])
def test_other_trials_go_on(way: str, tmp_path: Path) -> None:
    """Two workers take turns, so models hop."""
    results = hop.Experiment(
        Odd(way),
        train={"x": np.arange(40.0)},
        valid={"x": np.arange(8.0)},
        space={"number": hop.grid_search([1, 2, 3])},
        search=hop.Grid(max_epochs=2),
        metric="loss",
        mode="min",
        partitions=2,
        batch_size=8,
        backend="inline",
        workers=2,
        run_options=hop.RunOptions(folder=tmp_path / "run", policy="random"),
    ).fit(quiet=True)
    ended = {trial.config["number"]: trial for trial in results.trials}
    assert [ended[number].state.value for number in (1, 2, 3)] == ["completed", "failed", "completed"]
    assert f"{way} is impossible" in (ended[2].error or "")
    assert results.verify().ok
