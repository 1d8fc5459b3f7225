"""Importances of hyper-parameters: data of known functions, pictures by their labels."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from hopfleet.errors import UsageError
from hopfleet.monitor.charts.charts import draw_chart
from hopfleet.monitor.charts.importance import Importances, importance_data
from hopfleet.monitor.history import History
from tests.helpers.searched_runs import RATE, Halving, history_of, made, texts


def known_history(function: Callable[..., float], count: int, seed: int) -> History:
    rng = np.random.default_rng(seed)
    configs = [
        {
            "a": float(rng.random()),
            "b": float(10 ** rng.uniform(-4, 0)),
            "c": str(rng.choice(["x", "y", "z"])),
            "d": float(rng.random()),
        }
        for _ in range(count)
    ]
    return history_of(*((config, {"accuracy": function(**config)}) for config in configs))


def by_name(data: Importances) -> dict[str, float]:
    return {entry.name: entry.importance for entry in data.parameters}


@pytest.mark.slow
def test_importances_of_a_known_function() -> None:
    """Variances: a 9/12, the logarithm of b (over 4 decades, halved) 16/48, c 2/3 of 0.25; d has none."""
    history = known_history(lambda a, b, c, d: 3 * a + 0.5 * math.log10(b) + 0.5 * "xyz".index(c), 200, seed=5)
    data = importance_data(history)
    found = by_name(data)
    whole = 9 / 12 + 16 / 48 + 1 / 6
    assert [entry.name for entry in data.parameters] == ["a", "b", "c", "d"]
    for name, share in {"a": 9 / 12 / whole, "b": 16 / 48 / whole, "c": 1 / 6 / whole, "d": 0.0}.items():
        assert found[name] == pytest.approx(share, abs=0.12), name
    assert data.explained is not None and data.explained > 0.85 and data.notes == []
    assert [entry.clear for entry in data.parameters] == [True, True, True, False]


@pytest.mark.slow
def test_importances_are_the_same_for_the_same_seed() -> None:
    history = known_history(lambda a, b, c, d: a, 20, seed=1)
    assert importance_data(history) == importance_data(history) != importance_data(history, seed=1)


def test_many_trials_are_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.monitor.charts.importance.MOST", 30)
    data = importance_data(known_history(lambda a, b, c, d: a, 40, seed=1))
    assert data.trials == 40 and data.notes == ["computed from 30 of 40 trials, drawn at random"]
    assert data.parameters[0].name == "a"


def test_noise_has_no_importance() -> None:
    rng = np.random.default_rng(0)
    data = importance_data(known_history(lambda **config: float(rng.normal()), 60, seed=2))
    assert not any(entry.clear for entry in data.parameters)
    assert "too little to trust this" in data.notes[-1]


def test_a_conditional_parameter_is_not_credited_with_its_condition() -> None:
    rng = np.random.default_rng(3)
    trials = []
    for index in range(80):
        sgd, momentum = index % 2 == 0, float(rng.random())
        config = {"optimizer": "sgd", "momentum": momentum} if sgd else {"optimizer": "adam"}
        trials.append(({**config, "other": float(rng.random())}, {"accuracy": 1.0 * sgd}))
    found = by_name(importance_data(history_of(*trials)))
    assert found["optimizer"] == pytest.approx(1.0, abs=0.15)
    assert abs(found["momentum"]) < 0.02 and abs(found["other"]) < 0.02


def test_a_parameter_that_is_only_set_or_not_is_one() -> None:
    rng = np.random.default_rng(4)
    trials = [
        ({"lr": float(rng.random()), **({"mix": 1} if n % 3 else {})}, {"accuracy": 1.0 * (n % 3 > 0)})
        for n in range(60)
    ]
    assert by_name(importance_data(history_of(*trials)))["mix"] > 0.7


def test_too_few_trials_say_nothing() -> None:
    history = known_history(lambda a, **others: a, 9, seed=0)
    data = importance_data(history)
    assert (data.parameters, data.explained) == ([], None)
    assert data.notes == ["9 trials with a value: at least 10 are needed"]
    assert "not enough data yet" in texts(draw_chart(history, "importance"))
    few = importance_data(known_history(lambda a, **others: a, 12, seed=0))
    assert few.notes[0] == "12 trials are few for 4 parameters"


def test_trials_of_different_lengths_are_noted_and_can_be_compared_as_equals() -> None:
    history = made(Halving(30, 9), RATE, lambda trial, epoch: {"accuracy": trial.config["lr"] + epoch})
    assert "trials trained for 1 to 9 epochs: epoch=1 makes them comparable" in importance_data(history).notes
    equal = importance_data(history, epoch=1)
    assert equal.trials == 30 and equal.epoch == 1 and not any("epoch=" in note for note in equal.notes)
    with pytest.raises(
        UsageError, match="epoch=10: no trial has a value of accuracy after that epoch; choose one from 1 to 9"
    ):
        importance_data(history, epoch=10)


def test_importance_names_its_parameters_on_the_picture() -> None:
    figure = draw_chart(known_history(lambda a, **others: a, 40, seed=1), "importance")
    assert {"a", "b", "c", "d"} <= set(texts(figure).splitlines())
    assert "importance for accuracy at the best epoch" in texts(figure)
