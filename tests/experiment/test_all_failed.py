"""What users see when trials fail: one at a time, three in the same way, all of them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.errors import NotFound, UsageError
from hopfleet.monitor.terminal.tables import best_text
from tests.helpers.sample_tasks import Faulty, Plain, arrays


class Late(Plain):
    """Fails in the third batch, which no check before the run has reached."""

    def __init__(self, flag: Path) -> None:
        self.flag = str(flag)

    def loss(self, model: Any, batch: Any) -> Any:
        self.count = getattr(self, "count", 0) + 1
        if not Path(self.flag).exists() and len(batch["y"]) == 8:
            raise ValueError(f"a short batch of {len(batch['y'])} rows, call {self.count}")
        return super().loss(model, batch)


def experiment(task: Any, **changes: Any) -> hop.Experiment:
    given: dict[str, Any] = {
        "train": arrays(240),
        "space": {"lr": hop.loguniform(1e-3, 1e-1)},
        "search": hop.Random(trials=8, max_epochs=1),
        "name": "e",
        "backend": "inline",
        "workers": 1,
        "partitions": 3,
        "worker_options": hop.WorkerOptions(fuse="off"),
        "batch_size": 36,  # 80 rows: two batches of 36 and one of 8
        **changes,
    }
    return hop.Experiment(task, **given)


def test_three_failures_alike_stop_the_run_which_starts_over_once_mended(tmp_path: Path) -> None:
    flag = tmp_path / "mended"
    failing = experiment(Late(flag))
    with pytest.raises(hop.AllTrialsFailed) as stopped:
        failing.fit(quiet=True)
    text = str(stopped.value)
    assert "e: the run was stopped, since 3 trials failed in the same way before any had finished a unit" in text
    assert "ValueError: a short batch of 8 rows" in text and "(test_all_failed.py:" in text
    assert "call fit() again, which starts over" in text and "fail_fast=False" in text
    assert "hopfleet show e --trial t0001" in text
    assert [trial.state for trial in hop.load("e").trials].count(hop.TrialState.FAILED) == 3
    assert failing.results is not None
    flag.touch()
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        results = experiment(Late(flag)).fit()
    assert "e: replaces a run in which every trial failed" in shown.getvalue()
    assert {trial.state for trial in results.trials} == {hop.TrialState.COMPLETED}


def test_all_trials_failed_is_raised_with_the_first_traceback(tmp_path: Path) -> None:
    patient = {"fail_fast": False}
    with pytest.raises(hop.AllTrialsFailed) as failed:
        experiment(Late(tmp_path / "never"), run_options=hop.RunOptions(**patient)).fit(quiet=True)
    text = str(failed.value)
    assert "e: all 8 trials failed, the first one with ValueError: a short batch of 8 rows" in text
    assert "raise ValueError" in text
    assert "hopfleet show e --trial t0001" in text and "hop.load('e')" in text and "all_failed='return'" in text
    options = hop.RunOptions(**patient, all_failed="return")
    results = experiment(Late(tmp_path / "never"), run_options=options).fit(quiet=True)
    assert len(results.trials) == 8
    assert best_text(results.history) == "best  none: all 8 trials failed"
    with pytest.raises(NotFound, match=r"e: all 8 trials failed; results\.trials\[0\]\.error shows why"):
        _ = results.best


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_tracebacks_begin_at_the_users_frame_and_the_log_has_the_whole(backend: str) -> None:
    space = {"fault": hop.grid_search(["none", "raise"])}
    options = {"search": hop.Grid(max_epochs=1), "backend": backend, "batch_size": 20, "valid": arrays(60, seed=1)}
    results = experiment(Faulty(), space=space, metric="loss", **options).fit(quiet=True)
    failed = results.trials[1]
    assert failed.error is not None
    first, _, trace = failed.error.partition("\n\n")
    assert first.startswith("ValueError: a bad batch (sample_tasks.py:")
    files = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    assert "sample_tasks.py" in files[0]
    assert "unit_runner.py" not in trace
    assert "unit_runner.py" in failed.log() and "ValueError: a bad batch" in failed.log()


def test_a_log_shows_why_a_trial_failed() -> None:
    shown = io.StringIO()
    space = {"fault": hop.grid_search(["none", "raise"])}
    asked = experiment(
        Faulty(), space=space, search=hop.Grid(max_epochs=1), batch_size=20, valid=arrays(60, seed=1), metric="loss"
    )
    with contextlib.redirect_stdout(shown):
        asked.fit()
    assert "t0002 failed  0/1 epochs: ValueError: a bad batch (sample_tasks.py:" in shown.getvalue()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"fail_fast": 3}, "fail_fast=3: must be True or False"), ({"all_failed": "ignore"}, "all_failed='ignore': must")],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        hop.RunOptions(**options)
