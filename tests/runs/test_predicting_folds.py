"""Predictions of trials with folds: of unseen rows by one model, of new rows by all of them together."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.cli import main
from hopfleet.errors import UsageError
from tests.helpers.sample_tasks import arrays

FOLDS = 3


class Scores(hop.TorchTask):
    """Three classes, whose scores are predicted."""

    def build(self, config: Any) -> Any:
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 3))
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model: Any, batch: Any) -> Any:
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}

    def predict(self, model: Any, batch: Any) -> Any:
        with torch.no_grad():
            return model(torch.from_numpy(np.array(batch["x"])))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hop.Results[Any]:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    data = hop.partition(arrays(100), tmp_path / "train", partitions=5)
    return hop.Experiment(
        Scores(), train=data, valid=f"kfold({FOLDS})", space={"lr": hop.grid_search([0.01, 0.03])},
        search=hop.Grid(max_epochs=2), metric="accuracy", mode="max", batch_size=8, name="folds", backend="inline",
    ).fit(quiet=True)  # fmt: skip


def fold_models(results: hop.Results[Any], trial: str) -> list[torch.nn.Module]:
    """The models of a trial's folds, loaded by hand."""
    framework = Scores().framework
    folder = results.folder.path.parent / "by-hand" / trial
    with zipfile.ZipFile(results[trial].checkpoint) as archive:
        archive.extractall(folder)
    return [framework.model(results[trial].config, folder / "models" / str(fold)) for fold in range(FOLDS)]


def scores(table: Any, column: str = "prediction") -> np.ndarray[Any, Any]:
    return np.array(table[column].to_pylist(), np.float32)


def train_data(results: hop.Results[Any]) -> hop.Dataset:
    return hop.open_dataset(results.definition["train"]["url"])


def test_each_row_is_predicted_by_the_model_that_has_not_seen_it(results: hop.Results[Any]) -> None:
    data, models = train_data(results), fold_models(results, results.best.id)
    wanted = []
    for part in range(len(data)):
        (batch,) = data.batches(part, batch_size=100)
        wanted.append(Scores().predict(models[part % FOLDS], batch).numpy())
    for to in (None, iter):
        made = results.best.predict(to=to, backend="inline", keep="y")
        tables = [made] if to is None else list(made)
        assert np.array_equal(np.concatenate([scores(table) for table in tables]), np.concatenate(wanted))
    table = results.best.predict(backend="inline", keep="y")
    right = scores(table).argmax(axis=1) == table["y"].to_numpy()
    assert right.mean() == pytest.approx(results.best.metrics["accuracy"])


def test_pieces_of_a_partition_belong_to_its_fold(results: hop.Results[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = results.best.predict(backend="inline")
    monkeypatch.setattr("hopfleet.runs.inference.PIECE_ROWS", 7)
    pieces = results.best.predict(backend="inline", batch_size=20)
    assert np.allclose(scores(pieces), scores(whole), atol=1e-6)  # products of fewer rows may round otherwise


@pytest.mark.slow
def test_workers_predict_the_same(results: hop.Results[Any]) -> None:
    assert results.best.predict(workers=2).equals(results.best.predict(backend="inline"))


def test_new_rows_are_predicted_by_all_models(results: hop.Results[Any], tmp_path: Path) -> None:
    new, models = arrays(20, seed=9), fold_models(results, results.best.id)
    wanted = torch.stack([Scores().predict(model, new) for model in models]).mean(0).numpy()
    made = scores(results.best.predict({"x": new["x"]}, backend="inline"))
    assert np.allclose(made, wanted, rtol=1e-6)
    assert np.array_equal(made, Scores().predict(results.best.model(), new).numpy())
    right = made.argmax(axis=1) == new["y"]
    assert results.best.test(new, backend="inline")["accuracy"] == pytest.approx(right.mean())
    results.best.export(tmp_path / "bundle", format="bundle")
    bundle = hop.load_bundle(tmp_path / "bundle")
    assert np.allclose(scores(bundle.predict({"x": new["x"]})), made, rtol=1e-6)
    assert list(bundle.metrics) == [results.best.id]
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert f"trial {results.best.id}, each with a model for each of 3 folds" in card
    assert sum(model["weight"] for model in bundle.content["models"]) == pytest.approx(1)


def test_an_ensemble_of_trials_with_folds(results: hop.Results[Any]) -> None:
    data, names = train_data(results), [trial.id for trial in results.trials]
    ensemble = hop.Ensemble(results, weights="uniform")
    models = [fold_models(results, name) for name in names]
    wanted, right = [], 0
    for part in range(len(data)):
        (batch,) = data.batches(part, batch_size=100)
        each = [Scores().predict(of[part % FOLDS], batch) for of in models]
        wanted.append(torch.stack(each).mean(0).numpy())
        right += int((wanted[-1].argmax(axis=1) == batch["y"]).sum())
    assert np.allclose(scores(ensemble.predict(backend="inline")), np.concatenate(wanted), rtol=1e-6)
    assert ensemble.test(backend="inline")["accuracy"] == pytest.approx(right / data.rows)
    greedy = hop.Ensemble(results)
    assert greedy.test(backend="inline")["accuracy"] >= results.best.metrics["accuracy"]
    new = arrays(20, seed=9)
    by_all = torch.stack([Scores().predict(model, new) for of in models for model in of]).mean(0).numpy()
    assert np.allclose(scores(ensemble.predict({"x": new["x"]}, backend="inline")), by_all, rtol=1e-6)


def test_without_folds_the_rows_are_those_of_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    given: dict[str, Any] = {"space": {"lr": 0.01}, "search": hop.Grid(max_epochs=1), "backend": "inline"}
    given["batch_size"] = 4
    valid = hop.partition(arrays(30, seed=4), tmp_path / "valid", partitions=2)
    goal: dict[str, Any] = {"metric": "accuracy", "mode": "max"}
    validated = hop.Experiment(Scores(), train=arrays(60), valid=valid, name="valid", **goal, **given).fit(quiet=True)
    assert validated.best.predict(backend="inline").equals(validated.best.predict(valid, backend="inline"))
    without = hop.Experiment(Scores(), train=arrays(60), name="without", **given).fit(quiet=True)
    with pytest.raises(UsageError, match="without: has no validation data, whose rows are the default; pass data"):
        without.best.predict()


def test_on_the_command_line(results: hop.Results[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert results.folder.path.is_dir()
    task = ["--workers", "1", "--backend", "inline"]
    code = main(["predict", "folds", "--to", str(tmp_path / "made.csv"), *task])
    assert code == 0, capsys.readouterr().err
    assert f"100 predictions of {results.best.id}" in capsys.readouterr().out
    assert len((tmp_path / "made.csv").read_text().splitlines()) == 101


def test_labels_to_keep_are_in_the_terms_of_the_raw_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    prices = np.linspace(100, 900, 40)
    names = ["cat", "dog"] * 20
    rows = [f"{price / 7},{price},{name}\n" for price, name in zip(prices, names, strict=True)]
    (tmp_path / "raw.csv").write_text("x,price,kind\n" + "".join(rows))

    class Price(hop.TorchTask):
        def build(self, config: Any) -> Any:
            model = torch.nn.Linear(1, 1)
            return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

        def loss(self, model: Any, batch: Any) -> Any:
            return torch.nn.functional.mse_loss(model(batch["x"][:, None])[:, 0], batch["price"])

        def predict(self, model: Any, batch: Any) -> Any:
            return {"guess": np.zeros(len(batch["x"]), np.float32)}

    data = hop.prepare(
        tmp_path / "raw.csv", tmp_path / "data", hop.Tabular(labels=["price", "kind"]), partitions=4, quiet=True
    )
    results = hop.Experiment(
        Price(), train=data, valid="kfold(2)", space={"lr": 0.01}, search=hop.Grid(max_epochs=1), name="prices",
        batch_size=8, backend="inline",
    ).fit(quiet=True)  # fmt: skip
    for table in (
        results.best.predict(keep=["price", "kind"], backend="inline"),
        results.best.predict(data, keep=["price", "kind"], backend="inline"),
    ):
        assert sorted(table["price"].to_pylist()) == pytest.approx(prices.tolist(), rel=1e-5)
        assert sorted(table["kind"].to_pylist()) == sorted(names)


class Price(hop.TorchTask):
    """One number, predicted with a line."""

    def build(self, config: Any) -> Any:
        model = torch.nn.Linear(1, 1)
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: Any) -> Any:
        return torch.nn.functional.mse_loss(model(batch["x"]), batch["price"][:, None])

    def metrics(self, model: Any, batch: Any) -> Any:
        return {"loss": self.loss(model, batch)}

    def predict(self, model: Any, batch: Any) -> Any:
        with torch.no_grad():
            return model(torch.from_numpy(np.array(batch["x"])))[:, 0]


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hop.Results[Any]:
    """Trials whose folds have statistics of their own."""
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    random = np.random.default_rng(0)
    raw = {"a": random.normal(5, 2, 60), "price": random.normal(100, 30, 60) * np.arange(60)}
    recipe = hop.Tabular({"a": hop.Number()}, stack="x", labels="price")
    data = hop.prepare(raw, tmp_path / "data", recipe, partitions=4, folds=2, quiet=True)
    return hop.Experiment(
        Price(), train=data, valid="kfold(2)", space={"lr": hop.grid_search([0.01, 0.1])}, metric="loss",
        search=hop.Grid(max_epochs=1), name="apart", batch_size=8, backend="inline",
    ).fit(quiet=True)  # fmt: skip


def test_unseen_rows_are_in_the_unit_of_the_raw_rows_whatever_the_fold(
    apart: hop.Results[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, task, wanted, prices = train_data(apart), Price(), [], []
    with zipfile.ZipFile(apart.best.checkpoint) as archive:
        archive.extractall(apart.folder.path / "by-hand")
    for part in range(len(data)):
        rows = data.folds[part % 2]
        model = task.framework.model(apart.best.config, apart.folder.path / "by-hand" / "models" / str(part % 2))
        (batch,), (whole,) = (each.batches(part, batch_size=60) for each in (rows, data))
        outcome = hop.load_recipe(rows).outcomes["price"]
        wanted += outcome.restored(task.predict(model, batch).numpy()).to_pylist()
        prices += hop.load_recipe(data).outcomes["price"].raw(whole["price"]).to_pylist()
        assert not np.array_equal(batch["price"], whole["price"])
    found = apart.best.predict(backend="inline", keep=["price"])
    assert found["prediction"].to_pylist() == wanted
    assert found["price"].to_pylist() == prices
    monkeypatch.setattr("hopfleet.runs.inference.PIECE_ROWS", 7)
    pieces = apart.best.predict(backend="inline", keep=["price"])
    assert np.allclose(pieces["prediction"], wanted) and pieces["price"].to_pylist() == prices
    every = hop.Ensemble(apart, weights="uniform")
    assert len(every.predict(backend="inline")) == 60
    assert hop.Ensemble(apart).test(backend="inline")["loss"] <= apart.best.metrics["loss"] + 1e-9
    assert every.test(backend="inline")["loss"] >= 0


def test_models_with_statistics_of_their_own_are_no_model_of_new_rows(apart: hop.Results[Any], tmp_path: Path) -> None:
    new, ensemble = {"a": [1.0, 2.0]}, hop.Ensemble(apart, weights="uniform")
    for use in (
        lambda: apart.best.predict(new),
        lambda: apart.best.predict(new, to=iter),
        lambda: apart.best.test({**new, "price": [1.0, 2.0]}),
        lambda: apart.best.model(),
        lambda: apart.best.export(tmp_path / "bundle", format="bundle"),
        lambda: ensemble.predict(new),
        lambda: ensemble.test({**new, "price": [1.0, 2.0]}),
        lambda: ensemble.model,
    ):
        with pytest.raises(UsageError, match=r"trained with the statistics of its own fold.*results\.refit\(\)"):
            use()
    final = apart.refit(backend="inline", quiet=True)
    assert len(final.best.predict(new, backend="inline")) == 2
