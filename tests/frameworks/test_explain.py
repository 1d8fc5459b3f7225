"""Exceptions of a task's code: what users read beside the message of Python or PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.errors import MissingKey, NotFinite, TaskError, describe
from hopfleet.frameworks.torch.explain import explain
from hopfleet.frameworks.tracked_config import TrackedConfig
from tests.helpers.mistakes import TrialFailed, experiment, fit, rows, task


def missing(self: Any, model: Any, batch: Any) -> Any:
    return model(batch["image"])


def infinite(self: Any, model: Any, batch: Any) -> Any:
    return model(batch["x"]).sum() * float("inf")


def diverging(self: Any, model: Any, batch: Any) -> Any:
    return (model(batch["x"]) ** 4).sum()


def test_members_of_a_flotilla_are_explained_too() -> None:
    space = {"lr": hop.grid_search([0.1, 0.2])}
    for hook, words in ((missing, "; the batch has x, y; epoch 1, partition 0)"), (infinite, "inputs are finite")):
        run = experiment(task(loss=hook), space=space, search=hop.Grid(max_epochs=1), name=hook.__name__)
        results = run.fit(quiet=True)
        errors = [trial.error or "" for trial in results.trials]
        assert len(errors) == 2 and all(words in error for error in errors), errors


def test_a_secret_stays_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPFLEET_TEST_TOKEN", "correct-horse")

    def build(self: Any, config: Any) -> Any:
        raise ValueError("no such model")

    with pytest.raises(TrialFailed, match=r"no such model \(test_explain.py:\d+; config: lr=0.1, token=") as caught:
        fit(task(build=build), space={"lr": 0.1, "token": hop.secret(env="HOPFLEET_TEST_TOKEN")})
    assert "correct-horse" not in str(caught.value)


def test_a_loss_that_is_not_finite_tells_what_came_before() -> None:
    with pytest.raises(TrialFailed) as caught:
        fit(task(loss=diverging, clip_norm=1e30), space={"lr": 10.0}, train=rows(160))
    assert "NotFinite: the loss is" in str(caught.value)
    assert " and gradients of norm " in str(caught.value)
    with pytest.raises(TrialFailed) as caught:
        fit(task(loss=diverging), space={"lr": 10.0}, train=rows(160), name="unlimited")
    assert " had gradients of norm " in str(caught.value)


def test_a_transform_that_makes_infinite_inputs_is_blamed() -> None:
    def transform(self: Any, batch: Any, rng: Any) -> Any:
        return {**batch, "x": np.full_like(batch["x"], np.inf if rng is not None else 0)}

    words = r"column 'x' of that batch holds NaN or infinity after transform\(\)"
    with pytest.raises(TrialFailed, match=words):
        fit(task(transform=transform))


def test_a_refusal_needs_no_explanation() -> None:
    error = TaskError("no")
    explain(error)
    assert describe(error) == "TaskError: no"


def test_an_exception_without_frames_is_left_alone() -> None:
    error = ValueError("odd")
    error.add_note("said before")
    explain(error)
    assert describe(error) == "ValueError: odd (said before)"


def test_a_missing_key_is_a_key_error() -> None:
    config = TrackedConfig({"width": 8, "net": {"depth": 2}})
    with pytest.raises(KeyError) as caught:
        config["wdith"]
    assert isinstance(caught.value, MissingKey)
    assert str(caught.value) == "config has no 'wdith'; did you mean 'width'? it has width, net"
    with pytest.raises(MissingKey, match=r"config\['net'\] has no 'width'; it has depth"):
        config["net"]["width"]
    assert config.get("wdith", 3) == 3 and "wdith" not in config
    assert not hasattr(config, "width")
    assert NotFinite("x", batch=3).batch == 3


def test_a_changed_configuration_is_noticed() -> None:
    values = {"lr": 0.1, "net": {"depth": 2}, "betas": [0.9, 0.99], "gap": float("nan")}
    config = TrackedConfig(values)
    assert config.changed(values) is None
    config["betas"] = tuple(config["betas"])
    config["new"] = config.pop("lr")
    config["net"] = dict(config["net"])
    assert config.changed(values) is None
    config["net"] = TrackedConfig({"depth": 3}, prefix="net.")
    assert config.changed(values) == ("net.depth", 2, 3)
    config = TrackedConfig(values)
    config["betas"].append(1)
    assert config.changed(values) == ("betas", [0.9, 0.99], [0.9, 0.99, 1])
    assert values["betas"] == [0.9, 0.99], "the trial's own configuration is not touched"
    config = TrackedConfig(values)
    config["betas"] = torch.zeros(2)
    assert config.changed(values) is not None


def test_keys_that_were_asked_for_in_vain_are_known() -> None:
    config = TrackedConfig({"lr": 0.1, "net": {"depth": 2}})
    assert config.get("lr") == config.pop("lr") == 0.1
    assert config.pop("lr", None) is None, "it was there before"
    assert config.get("rate", 1) == 1 and config["net"].get("width") is None
    assert config.absent() == ("net.width", "rate")
    other = TrackedConfig({})
    other.share(config)
    assert other.absent() == ("net.width", "rate")


def test_a_check_explains_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPFLEET_TEST_TOKEN", "correct-horse")

    def build(self: Any, config: Any) -> Any:
        raise ValueError("no such model")

    with pytest.raises(TaskError, match="the batch has x, y"):
        experiment(task(loss=missing)).check(quiet=True)
    space = {"lr": 0.1, "token": hop.secret(env="HOPFLEET_TEST_TOKEN")}
    with pytest.raises(TaskError, match="no such model") as caught:
        experiment(task(build=build), space=space).check(quiet=True)
    assert "correct-horse" not in str(caught.value)
    assert not getattr(caught.value.__cause__, "__notes__", ())
