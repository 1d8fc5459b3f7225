"""What every framework adapter must do. Derive ``FrameworkSuite`` in a test file and override ``make``:

    class TestMyFramework(FrameworkSuite):
        module = "my_framework"
        config = {"lr": 0.1}
        other = {"lr": 0.01}

        def make(self):
            return MyTask()

The suite opens sessions, trains, evaluates, saves and loads them, in this process and in new ones, and compares saved
versions byte by byte. Two units of training take 64 rows with the columns ``x`` and ``y``; ``columns`` gives others.
One test runs a whole experiment, in which a worker is killed.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import numpy as np

from hopfleet.clients.replay import replay
from hopfleet.domain.space import grid_search
from hopfleet.experiment.experiment import Experiment
from hopfleet.experiment.options import RunOptions, WorkerOptions
from hopfleet.extend import (
    Batch,
    Batches,
    CheckpointError,
    EngineCache,
    Framework,
    IsolationError,
    Placement,
    RowSum,
    Session,
    Task,
)
from hopfleet.search.grid import Grid
from hopfleet.support.files import overwrite

SEED = 7
BATCH = 8
"""Rows of a batch."""

ROWS = 64
"""Rows of a unit, in whole batches."""

PICKLES = (b"\x80", b"PK\x03\x04")
"""First bytes of pickled objects, and of archives that may contain pickled objects."""

Columns = Mapping[str, np.ndarray[Any, Any]]


class FrameworkSuite:
    """The tests."""

    #: The package that the adapter imports; empty for an adapter without one.
    module = ""
    #: Two configurations whose keys the task reads, all of them.
    config: Mapping[str, Any] = {}
    other: Mapping[str, Any] = {}
    #: A configuration that makes ``open`` or ``train`` raise an exception; None leaves out its test.
    bad: Mapping[str, Any] | None = None
    #: The device to test on.
    device = "cpu"
    #: Versions that a session reaches without an interruption, by the number of units; made once for all tests.
    _versions: ClassVar[dict[int, bytes]] = {}
    #: Runs the command of a fresh process.
    _run = staticmethod(subprocess.run)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._versions = {}

    def make(self) -> Task:
        raise AssertionError("override make()")

    def columns(self) -> Columns:
        """Return ``ROWS`` rows of data."""
        rng = np.random.default_rng(SEED)
        return {"x": rng.normal(size=(ROWS, 4)).astype("float32"), "y": rng.normal(size=ROWS).astype("float32")}

    # ------------------------------------------------------------------------------------------------- saved versions

    def test_a_version_loads_and_saves_to_the_same_bytes(self, tmp_path: Path) -> None:
        for units in range(3):
            first, again = self._open(), self._open(seed=SEED + 1)
            self._train(first, units)
            first.save(tmp_path / "first")
            again.load(tmp_path / "first")
            again.save(tmp_path / "again")
            assert _same(tmp_path, "first", "again"), f"another file after load() and save(), after {units} units"

    def test_the_same_seed_gives_the_same_bytes(self, tmp_path: Path) -> None:
        self._alone(tmp_path / "first")
        session = self._open()
        self._train(session, 2)
        session.save(tmp_path / "second")
        assert _same(tmp_path, "first", "second"), "two sessions with one seed differ"

    def test_a_loaded_version_continues_to_the_same_bytes(self, tmp_path: Path) -> None:
        self._alone(tmp_path / "alone")
        self._half(tmp_path / "half")
        _continue(self, tmp_path / "half", tmp_path / "continued", None)
        assert _same(tmp_path, "alone", "continued"), "training goes on differently after load()"

    def test_a_fresh_process_continues_to_the_same_bytes(self, tmp_path: Path) -> None:
        self._alone(tmp_path / "alone")
        self._half(tmp_path / "half")
        _elsewhere(partial(_continue_twice, self, tmp_path), self._run)
        assert _same(tmp_path, "alone", "continued"), "training goes on differently in a new process"
        assert _same(tmp_path, "alone", "later"), "training depends on what the process trained before"

    def test_trials_hop_and_survive_a_killed_worker_to_the_same_bits(self, tmp_path: Path) -> None:
        results = Experiment(
            _Mortal(self.make(), tmp_path / "killed"),
            train=dict(self.columns()),
            valid=dict(self.columns()),
            space=_either(self.config, self.other or self.config),
            search=Grid(max_epochs=2),
            metric="train_loss",
            seed=SEED,
            name="suite",
            workers=2,
            batch_size=BATCH,
            partitions=2,
            run_options=RunOptions(folder=str(tmp_path / "run")),
            worker_options=WorkerOptions(device=self.device, fuse="off"),
        ).fit(quiet=True)
        assert (tmp_path / "killed").exists(), "train() was not called in a worker"
        again = replay(results, task=self.make(), backend="inline")
        different = [f"{trial.trial}: {trial.verdict} {trial.reason}" for trial in again.trials]
        assert again.ok and again.trials, f"trained alone in this process, trials end differently: {different}"

    def test_sessions_that_take_turns_do_not_affect_each_other(self, tmp_path: Path) -> None:
        self._alone(tmp_path / "alone")
        session, neighbour = self._open(), self._open(self.other, seed=SEED + 1)
        for unit in range(2):
            self._unit(session, unit)
            self._unit(neighbour, unit)
        session.save(tmp_path / "beside")
        assert _same(tmp_path, "alone", "beside"), "training depends on another session"

    def test_trials_that_train_together_have_the_bits_of_each_alone(self, tmp_path: Path) -> None:
        framework, cache = self.make().framework, EngineCache()
        if framework.fusion_blocker:
            return
        configs = self.config, self.other or self.config
        self._alone(tmp_path / "alone")
        neighbour = self._open(configs[1], seed=SEED + 1)
        self._train(neighbour, 2)
        neighbour.save(tmp_path / "neighbour")
        where: dict[str, Any] = {"placement": Placement.on(self.device), "threads": 1, "cache": cache}
        sessions = [framework.open(dict(config), seed=SEED + n, **where) for n, config in enumerate(configs)]
        for unit in range(2):
            batches = _Batches(sessions[0], self._rows(unit))
            try:
                results = framework.flotilla(sessions).train(batches, last=[unit == 1] * 2)
            except IsolationError:
                return
            assert not any(isinstance(each, Exception) for each in results), f"members failed: {results}"
        for name, session in zip(("alone", "neighbour"), sessions, strict=True):
            session.save(tmp_path / "member")
            assert _same(tmp_path, name, "member"), f"the {name} trial ends differently beside the other"

    def test_a_snapshot_keeps_the_state_of_its_moment(self, tmp_path: Path) -> None:
        session = self._open()
        self._unit(session, 0)
        session.save(tmp_path / "saved")
        write = session.snapshot()
        if write is None:
            return
        self._unit(session, 1)
        write(tmp_path / "snapshot")
        assert _same(tmp_path, "saved", "snapshot"), "the snapshot differs from the version saved at the same moment"

    def test_a_version_holds_no_pickle(self, tmp_path: Path) -> None:
        self._half(tmp_path / "half")
        content = (tmp_path / "half").read_bytes()
        assert content, "save() wrote nothing"
        assert not content.startswith(PICKLES), "save() wrote a pickle, which runs code when it is loaded"

    def test_a_damaged_version_is_refused(self, tmp_path: Path) -> None:
        self._half(tmp_path / "half")
        content = (tmp_path / "half").read_bytes()
        for damaged in (b"", content[: len(content) // 2], bytes(range(128, 256))):
            overwrite(tmp_path / "damaged", [damaged])
            try:
                self._open().load(tmp_path / "damaged")
            except CheckpointError:
                continue
            raise AssertionError(f"load() accepts a damaged file of {len(damaged)} bytes")

    def test_a_model_comes_out_of_a_version(self, tmp_path: Path) -> None:
        self._half(tmp_path / "half")
        assert self.make().framework.model(dict(self.config), tmp_path / "half") is not None

    # ----------------------------------------------------------------------------------------- training and evaluation

    def test_evaluation_changes_nothing(self, tmp_path: Path) -> None:
        self._alone(tmp_path / "alone")
        session = self._open()
        self._unit(session, 0)
        session.save(tmp_path / "before")
        first, second = self._evaluate(session), self._evaluate(session)
        session.save(tmp_path / "after")
        assert first == second, f"two evaluations of one model give {first} and {second}"
        assert _same(tmp_path, "before", "after"), "evaluate() changes the saved state"
        self._unit(session, 1)
        session.save(tmp_path / "trained")
        assert _same(tmp_path, "alone", "trained"), "evaluate() changes how training goes on"

    def test_metrics_are_sums_over_rows(self) -> None:
        session = self._open()
        self._unit(session, 0)
        whole = self._evaluate(session)
        assert whole, "evaluate() returns no metric"
        parts = [self._evaluate(session, start, start + ROWS // 2) for start in (0, ROWS // 2)]
        for name, total in whole.items():
            assert isinstance(total, RowSum), f"{name}: is a {type(total).__name__}, must be a RowSum"
            assert total.rows == ROWS, f"{name}: counts {total.rows} rows instead of {ROWS}"
            added = parts[0][name] + parts[1][name]
            assert added == total, f"{name}: two halves add up to {added}, the whole is {total}"

    def test_training_reports_its_loss(self) -> None:
        sums = self._unit(self._open(), 0)
        names = [name for name in sums if name.startswith("train_")]
        assert names, f"train() returns {sorted(sums)}: must have a name that starts with train_"

    def test_random_streams_of_the_process_stay_as_they_are(self) -> None:
        before = random.getstate(), json.dumps(np.random.get_state(legacy=False), default=str)
        session = self._open()
        self._unit(session, 0)
        self._evaluate(session)
        after = random.getstate(), json.dumps(np.random.get_state(legacy=False), default=str)
        assert before == after, "a session in the user's own process must restore its random streams"

    def test_a_failing_trial_fails_alone(self, tmp_path: Path) -> None:
        if self.bad is None:
            return
        self._alone(tmp_path / "alone")
        session = self._open()
        self._unit(session, 0)
        try:
            self._unit(self._open(self.bad), 0)
        except Exception:
            pass
        else:
            raise AssertionError(f"{dict(self.bad)}: raises nothing")
        self._unit(session, 1)
        session.save(tmp_path / "beside")
        assert _same(tmp_path, "alone", "beside"), "a trial that failed affects another one"

    def test_unused_keys_are_reported(self) -> None:
        session = self._open({**self.config, "unheard_of": 1})
        self._unit(session, 0)
        self._evaluate(session)
        assert session.unused() == ("unheard_of",), f"unused() returns {session.unused()}, not ('unheard_of',)"

    # ---------------------------------------------------------------------------------------- processes and resources

    def test_memory_is_freed(self) -> None:
        session = self._open()
        self._unit(session, 0)
        assert session.size > 0, "size must be positive"
        gone = weakref.ref(session)
        del session
        self.make().framework.free_memory()
        gc.collect()
        assert gone() is None, "a closed session is still referenced"

    def test_settings_of_the_process_are_json_and_can_be_restored(self) -> None:
        framework = self.make().framework
        before = framework.settings()
        assert json.loads(json.dumps(before)) == before, "settings() returns other values than JSON has"
        with framework.applied({}):
            assert framework.settings() == {}, "apply({}) leaves settings that are not the defaults"
        assert framework.settings() == before, "apply() does not restore the settings"

    def test_weights_are_exported(self, tmp_path: Path) -> None:
        framework = self.make().framework
        if framework.weights_file:
            self._half(tmp_path / "half")
            framework.export(self.config, tmp_path / "half", tmp_path / framework.weights_file)
            assert (tmp_path / framework.weights_file).stat().st_size

    def test_there_is_a_device(self) -> None:
        kind, count = self.make().framework.devices()
        assert kind and count >= 1, f"devices() returns {(kind, count)}"

    def test_hopfleet_does_without_the_framework(self, tmp_path: Path) -> None:
        _elsewhere(partial(_import_without, self.module))

    # ------------------------------------------------------------------------------------------------------- sessions

    def _open(self, config: Mapping[str, Any] | None = None, seed: int = SEED) -> Session:
        chosen = dict(self.config if config is None else config)
        return self.make().framework.open(chosen, seed=seed, placement=Placement.on(self.device), threads=1)

    def _unit(self, session: Session, unit: int) -> dict[str, RowSum]:
        """Train on the rows of a unit."""
        return session.train(_Batches(session, self._rows(unit)), last=unit == 1)

    def _rows(self, unit: int) -> Columns:
        """Return all rows, in another order in each unit."""
        order = np.random.default_rng([SEED, unit]).permutation(ROWS)
        return {name: column[order] for name, column in self.columns().items()}

    def _train(self, session: Session, units: int) -> None:
        for unit in range(units):
            self._unit(session, unit)

    def _evaluate(self, session: Session, start: int = 0, stop: int = ROWS) -> dict[str, RowSum]:
        rows = {name: column[start:stop] for name, column in self.columns().items()}
        return session.evaluate(_Batches(session, rows), seed=SEED)

    def _alone(self, path: Path) -> None:
        """Write the version after two units without an interruption."""
        self._version(2, path)

    def _half(self, path: Path) -> None:
        """Write the version after one unit."""
        self._version(1, path)

    def _version(self, units: int, path: Path) -> None:
        if units in self._versions:
            overwrite(path, [self._versions[units]])
            return
        session = self._open()
        self._train(session, units)
        session.save(path)
        self._versions[units] = path.read_bytes()


class _Batches:
    """Rows as batches that are prepared for a session."""

    def __init__(self, session: Session, columns: Columns) -> None:
        self._session, self._columns = session, columns
        self.rows = len(next(iter(columns.values())))

    def __len__(self) -> int:
        return self.rows // BATCH

    def __iter__(self) -> Iterator[Batch]:
        dtypes = {name: str(column.dtype) for name, column in self._columns.items()}
        for start in range(0, self.rows, BATCH):
            batch = {name: column[start : start + BATCH].copy() for name, column in self._columns.items()}
            yield self._session.prepare(batch, dtypes)


class _Mortal(Task):
    """A task whose first worker is killed by SIGKILL once, before it can report its first unit."""

    def __init__(self, task: Task, killed: Path) -> None:
        self._task, self._killed = task, killed
        self.preload, self.transform = task.preload, task.transform

    @property
    def framework(self) -> Framework:
        return _MortalFramework(self._task.framework, self._killed)  # type: ignore[return-value]


class _MortalFramework:
    """The framework of a mortal task. Everything but ``open`` is the framework's own."""

    def __init__(self, framework: Framework, killed: Path) -> None:
        self._framework, self._killed = framework, killed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._framework, name)

    def open(self, *arguments: Any, **options: Any) -> Session:
        session = self._framework.open(*arguments, **options)
        train = session.train

        def train_or_die(batches: Batches, *, last: bool) -> dict[str, RowSum]:
            found = train(batches, last=last)
            if not self._killed.exists() and not session.guest:
                overwrite(self._killed, [])
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        session.train = train_or_die  # type: ignore[method-assign]
        return session


def _continue(suite: FrameworkSuite, version: Path, path: Path, before: Mapping[str, Any] | None) -> None:
    """Load a version after one unit, train the second, and save; train another configuration ``before``."""
    if before is not None:
        suite._train(suite._open(before, seed=SEED + 1), 2)
    session = suite._open(seed=SEED + 2)
    session.load(version)
    suite._unit(session, 1)
    session.save(path)


def _continue_twice(suite: FrameworkSuite, folder: Path) -> None:
    """Continue a version as the first work of a process, and again after training another configuration."""
    _continue(suite, folder / "half", folder / "continued", None)
    _continue(suite, folder / "half", folder / "later", suite.other)


def _either(*configs: Mapping[str, Any]) -> Any:
    """Return a space that includes some configurations with the same keys."""
    return {
        key: grid_search([config[key] for n, config in enumerate(configs) if config[key] != configs[n - 1][key]])
        if any(config[key] != value for config in configs)
        else value
        for key, value in configs[0].items()
    }


def _import_without(module: str) -> None:
    if module:
        sys.modules[module] = None  # type: ignore[assignment]
    import hopfleet.experiment.experiment  # noqa: F401


_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import cloudpickle
cloudpickle.load(sys.stdin.buffer)()
"""


def _elsewhere(work: Callable[[], None], run: Callable[..., Any] = subprocess.run) -> None:
    """Call a function in a new process, which gets it through a pipe."""
    command = [sys.executable, "-c", _CHILD, json.dumps(sys.path)]
    done = run(command, input=cloudpickle.dumps(work), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def _same(folder: Path, first: str, second: str) -> bool:
    return (folder / first).read_bytes() == (folder / second).read_bytes()
