"""A check of the task before a run: mistakes are found in seconds, with the user's own traceback."""

from __future__ import annotations

import contextlib
import io
import math
import traceback
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.errors import TaskError, UsageError
from hopfleet.forecast import forecast
from hopfleet.forecast.profiling import ARCHITECTURES, architectures
from hopfleet.worker import profiler
from tests.helpers.sample_tasks import Everything, Faulty, Plain, arrays


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checks take their time: on a busy machine, parts of them would be left out."""
    monkeypatch.setattr(profiler, "QUICK", math.inf)
    monkeypatch.setattr(forecast, "CHECKS_SECONDS", math.inf)


def experiment(task: Any = None, **changes: Any) -> hop.Experiment:
    given: dict[str, Any] = {
        "train": arrays(),
        "valid": arrays(60, seed=1),
        "space": {"lr": hop.loguniform(1e-3, 1e-1)},
        "search": hop.Random(trials=4, max_epochs=1),
        "metric": "accuracy",
        "mode": "max",
        "name": "e",
        "backend": "inline",
        "workers": 1,
        "partitions": 3,
        **changes,
    }
    return hop.Experiment(task or Plain(), **given)


def test_one_configuration_per_architecture(own_home: Path) -> None:
    space = {"optimizer": hop.grid_search(["sgd", "adam"]), "schedule": "step", "lr": hop.grid_search([0.1, 0.2])}
    checked = experiment(Everything(), space=space, search=hop.Grid(max_epochs=1)).check(quiet=True)
    assert [config["optimizer"] for config in checked] == ["sgd", "adam"]
    assert not own_home.exists() or list(own_home.iterdir()) == []


def test_architectures_differ_in_more_than_numbers() -> None:
    configs = [
        {"net": {"kind": "cnn", "width": 3}, "lr": 0.1},
        {"net": {"kind": "cnn", "width": 4}, "lr": 0.2},
        {"net": {"kind": "mlp"}, "lr": 0.2},
        {"net": {"kind": "mlp"}, "lr": 0.2, "bias": True},
    ]
    assert architectures(dict(enumerate(configs))) == {number: configs[number] for number in (0, 2, 3)}
    assert len(architectures({number: {"name": str(number)} for number in range(20)})) == ARCHITECTURES


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("build", r"^Faulty\.build: RuntimeError: no such architecture \(sample_tasks\.py:\d+\), with the config"),
        ("raise", r"^Faulty\.loss: ValueError: a bad batch \(sample_tasks\.py:\d+; batch: x float32"),
        ("metrics", r"^Faulty\.metrics: ValueError: no metric today"),
        ("vector", r"^Faulty: TaskError: .*shape \(2,\)"),
    ],
)
def test_an_error_names_the_hook_and_has_the_users_traceback(fault: str, words: str) -> None:
    with pytest.raises(TaskError, match=words) as refused:
        experiment(Faulty(), space={"fault": fault}).check(quiet=True)
    cause = refused.value.__cause__
    assert cause is not None
    frames = traceback.extract_tb(cause.__traceback__)
    assert fault == "vector" or Path(frames[0].filename).name == "sample_tasks.py"


class Counting(Plain):
    """Depends on how many batches this object has seen, which does not hop."""

    def __init__(self) -> None:
        self.seen = [0]  # a list stays as it is, whereas a number would belong to the trial

    def loss(self, model: Any, batch: Any) -> Any:
        self.seen[0] += 1
        return super().loss(model, batch) * self.seen[0]


def test_a_task_that_does_not_survive_a_hop() -> None:
    with pytest.raises(TaskError, match="trains differently after a hop"):
        experiment(Counting()).check(quiet=True)


def test_a_missing_metric_and_data() -> None:
    with pytest.raises(UsageError, match=r"metric='recall': metrics\(\) does not return it; it returns accuracy, loss"):
        experiment(metric="recall").check(quiet=True)
    with pytest.raises(UsageError, match=r"metric='recall': there is no valid=\.\.\. data"):
        experiment(metric="recall", valid=None).check(quiet=True)


def test_fit_refuses_a_task_that_fails_whatever_the_configuration(own_home: Path) -> None:
    space = {"fault": "build", "lr": hop.loguniform(1e-3, 1e-1)}
    with pytest.raises(TaskError) as refused:
        experiment(Faulty(), space=space).fit(quiet=True)
    text = str(refused.value)
    assert "the first 3 configurations failed in the same way before the run" in text
    assert "RuntimeError: no such architecture (sample_tasks.py:" in text
    assert 'raise RuntimeError("no such architecture")' in text
    assert "profiler.py" not in text and "experiment.check()" in text and "fail_fast=False" in text
    assert list(own_home.iterdir()) == []


# -------------------------------------------------------------------------------------------------- at the start of fit


def told(**changes: Any) -> str:
    """Train, and return what the terminal showed."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(shown):
        experiment(**changes).fit()
    return " ".join(shown.getvalue().split())


def test_fit_warns_of_an_architecture_that_fails() -> None:
    space = {"fault": hop.grid_search(["none", "raise"])}
    shown = told(task=Faulty(), space=space, search=hop.Grid(max_epochs=1))
    assert "the check before the run, with fault=raise, failed: ValueError: a bad batch (sample_tasks.py:" in shown
    assert "with fault=none" not in shown


def test_fit_warns_of_a_task_that_does_not_survive_a_hop() -> None:
    shown = told(task=Counting())
    assert "the check before the run, with lr=" in shown and "the trial trains differently after a hop" in shown
    assert "trains differently" not in told(name="other")


def test_fit_refuses_a_task_that_fails_in_training_without_evaluation(own_home: Path) -> None:
    space = {"fault": "raise", "lr": hop.loguniform(1e-3, 1e-1)}
    with pytest.raises(TaskError, match="ValueError: a bad batch"):
        experiment(Faulty(), space=space, valid=None, metric=None, mode=None).fit(quiet=True)
    assert list(own_home.iterdir()) == []


def test_fit_leaves_out_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "QUICK", 0.0)
    assert "left out saving, loading and hopping: the check took 0 s without them" in told(task=Counting())
    monkeypatch.setattr(forecast, "CHECKS_SECONDS", -1.0)
    assert "checked 0 of 1 architectures before the run" in told(name="other")
