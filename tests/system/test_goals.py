"""Several objectives, constraints, points to try first and warm starts, in whole experiments."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.cli.app import main
from hopfleet.errors import Interrupted, NotFound, SpaceError, UsageError
from tests.helpers.sample_tasks import Plain, arrays


class Wide(Plain):
    def build(self, config: Any) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(36, config["width"]), torch.nn.Linear(config["width"], 3)
        )
        model[1].bias.requires_grad_(False)
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])


def size(width: int) -> float:
    return 36 * width + 3 * width + 3


SPACE = {"lr": hop.loguniform(1e-3, 1e-1), "width": hop.choice([2, 4, 8])}


def experiment(**changes: Any) -> hop.Experiment:
    given: dict[str, Any] = {
        "train": arrays(),
        "valid": arrays(60, seed=1),
        "space": SPACE,
        "search": hop.TPE(trials=4, max_epochs=2, n_startup_trials=2),
        "metric": ["accuracy", "params"],
        "mode": ["max", "min"],
        "name": "e",
        "backend": "inline",
        "workers": 2,
        "partitions": 2,
        **changes,
    }
    return hop.Experiment(Wide(), **given)


def test_several_objectives(capsys: pytest.CaptureFixture[str]) -> None:
    results = experiment().fit(quiet=True)
    assert all(trial.metrics["params"] == size(trial.config["width"]) for trial in results.trials)
    points = {trial.id: (-trial.metrics["accuracy"], trial.metrics["params"]) for trial in results.trials}
    front = [
        name
        for name, one in points.items()
        if not any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in points.values())
    ]
    assert [trial.id for trial in results.pareto] == front
    frame = results.dataframe()
    assert list(frame["trial"][frame["pareto"]]) == front
    assert "feasible" not in frame
    assert [trial.id for trial in hop.load("e").pareto] == front
    capsys.readouterr()
    assert main(["show", "e", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pareto"] == front
    assert main(["show", "e"]) == 0
    assert "pareto" in capsys.readouterr().out


def test_parameters_are_counted_without_validation_data() -> None:
    results = experiment(valid=None, metric=["train_loss", "params"], mode=["min", "min"]).fit(quiet=True)
    assert results.best.metrics["params"] == size(results.best.config["width"])


def test_limits() -> None:
    given: dict[str, Any] = {"metric": "accuracy", "mode": "max", "search": hop.Grid(max_epochs=1)}
    given["space"] = {"lr": 0.05, "width": hop.choice([2, 8])}
    results = experiment(constraints=["params <= 100"], **given).fit(quiet=True)
    assert [trial.config["width"] for trial in results.trials] == [2, 8]
    assert results.best.config["width"] == 2
    assert list(results.dataframe()["feasible"]) == [True, False]
    results = experiment(constraints=["params <= 10"], **given, name="none").fit(quiet=True)
    with pytest.raises(NotFound, match="none has no trial with params <= 10"):
        _ = results.best
    assert results.pareto == []


def test_rules() -> None:
    search = hop.Random(trials=6, max_epochs=1)
    results = experiment(search=search, constraints=[lambda config: config["width"] != 4]).fit(quiet=True)
    assert len(results.trials) == 6
    assert 4 not in {trial.config["width"] for trial in results.trials}


def test_points_come_first() -> None:
    points = [{"lr": 0.01, "width": 8}, {"width": 2}]
    results = experiment(search=hop.Random(trials=2, max_epochs=1), initial_configs=points).fit(quiet=True)
    assert len(results.trials) == 4
    assert results.trials[0].config == points[0]
    assert results.trials[1].config["width"] == 2


def conditional(trial: Any) -> dict[str, Any]:
    width = trial.suggest_categorical("width", [2, 8])
    return {"width": width, "lr": trial.suggest_float("lr", 0.01, 0.1, log=True) if width > 2 else 0.05}


@pytest.mark.parametrize("search", [hop.Random(trials=6, max_epochs=1), hop.TPE(trials=6, max_epochs=1)])
def test_a_function_as_space(search: Any) -> None:
    results = experiment(search=search, space=conditional).fit(quiet=True)
    assert results.definition["space"] == "function conditional"
    assert all(trial.config["lr"] == 0.05 or trial.config["width"] == 8 for trial in results.trials)


class OneByOne(hop.TPE):
    """What it has heard when it is asked does not depend on how fast things go."""

    def concurrency(self, workers: int) -> int:
        return 1


@pytest.mark.slow
def test_a_warm_start_is_kept_for_resumption(monkeypatch: pytest.MonkeyPatch, capsys: Any, own_home: Any) -> None:
    search = OneByOne(trials=4, max_epochs=2, n_startup_trials=2)
    one: dict[str, Any] = {"metric": "accuracy", "mode": "max", "workers": 1, "search": search}
    one["run_options"] = hop.RunOptions(order="fixed")
    earlier = experiment(name="earlier", **one).fit(quiet=True)
    whole = experiment(name="whole", warm_start=earlier, **one).fit(quiet=True)
    told = whole.definition["warm_start"]
    assert told["names"] == ["earlier"]
    assert [trial["config"] for trial in told["trials"]] == [trial.config for trial in earlier.trials]

    from hopfleet.runtime.loop import Loop

    run = Loop.run
    later = experiment(name="later", warm_start=(name for name in ["earlier"]), **one)
    calls = []

    def interrupted(loop: Any, events: Any) -> bool:
        take = loop._controller.take

        def counting(events: Any, now: float) -> Any:
            calls.extend(events)
            if len(calls) >= 12:
                loop.drain()
            return take(events, now)

        monkeypatch.setattr(loop._controller, "take", counting)
        return run(loop, events)

    monkeypatch.setattr(Loop, "run", interrupted)
    with pytest.raises(Interrupted):
        later.fit(quiet=True)
    monkeypatch.setattr(Loop, "run", run)
    shutil.rmtree(own_home / "earlier")
    results = later.fit()
    assert "warm start: 4 of 4 earlier trials (earlier) are of use to OneByOne" in capsys.readouterr().out
    assert [trial.config for trial in results.trials] == [trial.config for trial in whole.trials]
    assert results.trials[2].config != earlier.trials[2].config


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"metric": ["accuracy", "accuracy"]}, UsageError, "names a metric twice"),
        ({"metric": []}, UsageError, "name at least one"),
        ({"metric": [3], "mode": None}, UsageError, r"metric=\[3\]: each must be text"),
        ({"metric": 3}, UsageError, "metric=3: must be text, or a list of text"),
        ({"mode": ["max"]}, UsageError, r"mode=\['max'\]: must have one mode for each of the 2 metrics"),
        ({"mode": "max"}, UsageError, "mode='max': must have one mode for each"),
        ({"mode": ["max", "up"]}, UsageError, "mode='up': must be 'min' or 'max'"),
        ({"mode": None}, UsageError, r"metric='accuracy': set mode=\['max', 'min', ...\]"),
        ({"constraints": ["params ~ 3"]}, UsageError, "e.g. 'params <= 100000'"),
        ({"constraints": [3]}, UsageError, "constraint 3: must be a function of the configuration, or text"),
        ({"constraints": {"a": 1}}, UsageError, "constraints={'a': 1}: must be a list"),
        ({"initial_configs": {"lr": 1}}, UsageError, "initial_configs={'lr': 1}: must be a list"),
        ({"initial_configs": [3]}, UsageError, r"initial_configs=\[3\]: each must be a dict"),
        ({"initial_configs": [{"rate": 1}]}, SpaceError, "the space has no rate; it has lr, width"),
        ({"initial_configs": [{"lr": 5}]}, SpaceError, "point lr=5: is not in loguniform"),
        (
            {"initial_configs": [{"width": 2}], "constraints": [lambda config: config["width"] > 2]},
            SpaceError,
            "no completion of the point {'width': 2} satisfied",
        ),
        ({"warm_start": 3}, UsageError, "warm_start=3: must be the name of an experiment"),
        ({"warm_start": [3]}, UsageError, "warm_start=3: must be the name of an experiment"),
        ({"search": "cmaes"}, UsageError, "CMAES optimises one metric"),
        ({"space": conditional, "search": "grid"}, SpaceError, "a grid cannot enumerate what a function"),
    ],
)
def test_wrong_values_are_refused_at_once(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        experiment(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metric": ["accuracy", "speed"]}, "metric='speed': metrics.. does not return it; it returns accuracy, loss"),
        ({"constraints": ["speed < 3"]}, r"constraints=\['speed < 3'\]: metrics.. does not return it"),
        ({"valid": None, "metric": ["train_loss", "f1"], "mode": ["min", "max"]}, "metric='f1': there is no valid"),
    ],
)
def test_metrics_that_nobody_returns(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        experiment(**changes).fit(quiet=True)


def test_an_earlier_experiment_must_be_there() -> None:
    with pytest.raises(NotFound, match="nothing"):
        experiment(warm_start="nothing").fit(quiet=True)
