"""Every adapter passes the suite that third parties pass, and the suite notices adapters that do wrong."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hopfleet.domain.rowsum import RowSum
from hopfleet.frameworks.in_turn import InTurn
from hopfleet.testing.frameworks import ROWS, FrameworkSuite
from hopfleet.testing.tasks import CountingFramework, CountingSession, CountingTask
from tests.helpers import warm
from tests.helpers.sample_tasks import Everything, Faulty


class Images(FrameworkSuite):
    module = "torch"
    _run = staticmethod(warm.run)

    @pytest.fixture(autouse=True)
    def warm(self, request: pytest.FixtureRequest) -> None:
        """Fork fresh processes from one that has imported what optimizers of PyTorch import, which takes seconds."""
        if "fresh_process" in request.node.name:
            request.getfixturevalue("warm_compiler")

    def columns(self):
        rng = np.random.default_rng(0)
        return {"x": rng.normal(size=(ROWS, 1, 6, 6)).astype("float32"), "y": rng.integers(0, 3, ROWS)}


class TestTorch(Images):
    config: ClassVar[dict[str, Any]] = {"optimizer": "adam", "schedule": "cosine"}
    other: ClassVar[dict[str, Any]] = {"optimizer": "sgd", "schedule": "step"}

    def make(self):
        return Everything()


@pytest.mark.slow
class TestTorchWithFaults(Images):
    config: ClassVar[dict[str, Any]] = {"fault": "none"}
    other: ClassVar[dict[str, Any]] = {"fault": "none"}
    bad: ClassVar[dict[str, Any]] = {"fault": "raise"}

    def make(self):
        return Faulty()


class TestCounting(FrameworkSuite):
    """Fresh processes are cold ones here, as users have them."""

    config: ClassVar[dict[str, Any]] = {"seconds": 0.0}
    other: ClassVar[dict[str, Any]] = {"seconds": 0.001}
    bad: ClassVar[dict[str, Any]] = {"fault": True}

    def make(self):
        return CountingTask()


# --------------------------------------------------------------------------------- adapters that do something wrong


class Wrong(CountingSession):
    """A counting session; each test changes one method."""

    shared = 0

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.trials: list[int] = []


def noticed(tmp_path: Path, test: str, words: str, **methods: Any) -> None:
    class Changed(Wrong):
        pass

    for name, method in methods.items():
        setattr(Changed, name, method)

    class Task(CountingTask):
        def open(self, config, **how):
            return Changed(config)

    class Suite(FrameworkSuite):
        config: ClassVar[dict[str, Any]] = {"seconds": 0.0}

        def make(self):
            return Task()

    ran = getattr(Suite(), test)
    with pytest.raises(AssertionError, match=words):
        ran(tmp_path) if "tmp_path" in ran.__code__.co_varnames else ran()


def counts_everybody(self, batches, *, last):
    Wrong.shared += 1
    self.units = Wrong.shared
    return {"train_units": RowSum.of(1.0, 1)}


def forgets(self, path):
    self.units = 1


def evaluates_and_trains(self, batches, *, seed):
    self.units += 1
    return {"loss": RowSum.of(1.0, ROWS)}


@pytest.mark.parametrize(
    ("test", "words", "methods"),
    [
        ("test_sessions_that_take_turns_do_not_affect_each_other", "another session", {"train": counts_everybody}),
        ("test_a_version_loads_and_saves_to_the_same_bytes", "after 0 units", {"load": forgets}),
        ("test_a_damaged_version_is_refused", "damaged file of 0 bytes", {"load": forgets}),
        ("test_evaluation_changes_nothing", "changes the saved state", {"evaluate": evaluates_and_trains}),
        (
            "test_metrics_are_sums_over_rows",
            "two halves add up",
            {"evaluate": lambda self, batches, seed: {"loss": RowSum(1.0, batches.rows)}},
        ),
        (
            "test_metrics_are_sums_over_rows",
            "counts 3 rows",
            {"evaluate": lambda self, batches, seed: {"loss": RowSum.of(1.0, 3)}},
        ),
        ("test_metrics_are_sums_over_rows", "no metric", {"evaluate": lambda self, batches, seed: {}}),
        ("test_training_reports_its_loss", "starts with train_", {"train": lambda self, batches, last: {"a": 1}}),
        (
            "test_a_version_holds_no_pickle",
            "wrote a pickle",
            {"save": lambda self, path: path.write_bytes(pickle.dumps([1]))},
        ),
        (
            "test_random_streams_of_the_process_stay_as_they_are",
            "restore its random streams",
            {"train": lambda self, batches, last: {"train_loss": RowSum.of(random.random(), 1)}},
        ),
        (
            "test_a_snapshot_keeps_the_state_of_its_moment",
            "the snapshot differs",
            {"snapshot": lambda self: self.save},
        ),
        ("test_unused_keys_are_reported", r"unused.. returns \(\)", {"unused": lambda self: ()}),
        ("test_memory_is_freed", "size must be positive", {"size": 0}),
        (
            "test_trials_hop_and_survive_a_killed_worker_to_the_same_bits",
            "trials end differently",
            {"save": lambda self, path: path.write_text(json.dumps([self.units, os.getpid()]))},
        ),
    ],
)
def test_the_suite_notices(tmp_path: Path, test: str, words: str, methods: dict[str, Any]) -> None:
    noticed(tmp_path, test, words, **methods)


def test_the_suite_notices_trials_that_take_the_steps_of_another(tmp_path: Path) -> None:
    class Together(CountingFramework):
        fusion_blocker = ""

        def flotilla(self, sessions, *, fast=False):
            return InTurn([*sessions, sessions[-1]][-len(sessions) :])

    class Task(CountingTask):
        framework = property(lambda self: Together(self))

    class Suite(FrameworkSuite):
        def make(self):
            return Task()

    with pytest.raises(AssertionError, match="the alone trial ends differently beside the other"):
        Suite().test_trials_that_train_together_have_the_bits_of_each_alone(tmp_path)


def test_the_suite_notices_sessions_that_are_kept() -> None:
    kept = []

    class Task(CountingTask):
        def open(self, config, **how):
            kept.append(CountingSession(config))
            return kept[-1]

    class Suite(FrameworkSuite):
        def make(self):
            return Task()

    with pytest.raises(AssertionError, match="still referenced"):
        Suite().test_memory_is_freed()


def test_the_suite_notices_a_bad_configuration_that_works(tmp_path: Path) -> None:
    suite = TestCounting()
    suite.bad = {}
    with pytest.raises(AssertionError, match="raises nothing"):
        suite.test_a_failing_trial_fails_alone(tmp_path)
    with pytest.raises(AssertionError, match="override make"):
        FrameworkSuite().make()
