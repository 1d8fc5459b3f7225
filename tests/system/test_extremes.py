"""Experiments of unusual size: many trials, epochs and metrics, and a lot of printed text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.cli import main
from hopfleet.domain.rowsum import RowSum
from hopfleet.frameworks.base import Batches
from hopfleet.testing.tasks import CountingSession, CountingTask
from tests.helpers.marks import LONG


def fit(task: CountingTask | None = None, **changes: Any) -> hop.Results:
    asked: dict[str, Any] = {"space": {"number": hop.uniform(0, 1)}, "search": hop.Random(trials=1, max_epochs=1)}
    asked |= {"partitions": 1, "batch_size": 8, "backend": "inline", "name": "large"}
    return hop.Experiment(task or CountingTask(), train={"x": np.arange(8.0)}, **asked | changes).fit(quiet=True)


class ManyMetrics(CountingTask):
    """A task that reports a thousand metrics."""

    def open(self, config: Mapping[str, Any], **more: Any) -> CountingSession:
        return Reporting(config)


class Reporting(CountingSession):
    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        metrics = {f"train_{number}": RowSum.of(float(number), 1) for number in range(1000)}
        return super().train(batches, last=last) | metrics


def test_a_thousand_metrics() -> None:
    results = fit(ManyMetrics())
    assert len(results.best.metrics) >= 1000 and results.verify().ok
    assert main(["show", "large", "--trial", "1"]) == 0


@pytest.mark.slow
def test_five_hundred_epochs() -> None:
    results = fit(search=hop.Random(trials=1, max_epochs=500))
    assert len(results.best.history) == 500 and results.verify().ok


@pytest.mark.slow
def test_many_trials() -> None:
    count = 2000 if LONG else 500
    results = fit(search=hop.Random(trials=count, max_epochs=1))
    assert len(results.trials) == count and results.verify().ok


def test_a_log_with_endless_lines(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit()
    log = own_home / "large" / "logs" / "t0001.log"
    log.write_bytes(b"".join(b"x" * (1 << 20) + b"\n" for _ in range(25)))
    assert main(["show", "large", "--trial", "1"]) == 0
    shown = capsys.readouterr().out
    assert len(shown) < 50_000 and "(1,048,576 characters)" in shown and "the last 20 lines of 25" in shown


def test_a_folder_in_place_of_a_log(own_home: Path) -> None:
    results = fit()
    log = own_home / "large" / "logs" / "t0001.log"
    log.unlink(missing_ok=True)
    log.mkdir()
    assert results.best.log() == "" and main(["show", "large", "--trial", "1"]) == 0
