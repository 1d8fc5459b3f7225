"""What the frameworks' tasks can do, tried on one small task of each: docs/features.md has the outcome."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hopfleet as hop
from hopfleet.clients.replay import replay
from hopfleet.errors import HopfleetError

ROWS = 96
RNG = np.random.default_rng(4)
COLUMNS = {"x": RNG.normal(size=(ROWS, 6)).astype("float32"), "y": RNG.integers(0, 3, ROWS)}
TOKENS = {"input_ids": RNG.integers(3, 16, (ROWS, 6)), "label": RNG.integers(0, 2, ROWS)}


class Kind(NamedTuple):
    """A framework: a task, its rows, the name of its learning rate, and a task that logs no values of steps."""

    task: Callable[[], Any]
    columns: Mapping[str, Any]
    rate: str = "lr"
    plain: Callable[[], Any] | None = None


def torch_task(logs: bool = True) -> Any:
    import torch

    class Task(hop.TorchTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
            return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

        def loss(self, model: Any, batch: Any) -> Any:
            return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])

        def predict(self, model: Any, batch: Any) -> Any:
            with torch.no_grad():
                return model(torch.as_tensor(batch["x"]))

    class Logging(Task):
        def loss(self, model: Any, batch: Any) -> Any:
            self.log("rows", len(batch["y"]))
            return super().loss(model, batch)

    return Logging() if logs else Task()


def lightning_task() -> Any:
    import torch

    lightning = importlib.import_module("lightning")

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.lr, self.net = lr, torch.nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("rows", float(len(batch[1])), on_step=True)
            return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("loss", torch.nn.functional.cross_entropy(self(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=self.lr)

    class Task(hop.LightningTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            return Module(config["lr"])

        def predict(self, model: Any, batch: Any) -> Any:
            with torch.no_grad():
                return model(torch.as_tensor(batch["x"]))

    return Task()


def transformers_task(logs: bool = True) -> Any:
    import torch

    from tests.helpers.transformers_tasks import Classify

    class Task(Classify):
        def predict(self, model: Any, batch: Any) -> Any:
            with torch.no_grad():
                return model(input_ids=torch.as_tensor(batch["input_ids"])).logits

    class Logging(Task):
        def loss(self, model: Any, batch: Any) -> Any:
            self.log("rows", len(batch["label"]))
            return super().loss(model, batch)

    return Logging() if logs else Task()


def keras_task() -> Any:
    from tests.helpers.keras_tasks import model

    class Task(hop.KerasTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            return model("adam", config["lr"])

    return Task()


def jax_task() -> Any:
    import jax
    import jax.numpy as jnp
    import optax

    class Task(hop.JaxTask):
        def init(self, config: Mapping[str, Any], key: Any) -> Any:
            return {"w": jax.random.normal(key, (6, 3)), "b": jnp.zeros(3)}

        def optimizer(self, config: Mapping[str, Any]) -> Any:
            return optax.adam(config["lr"])

        def loss(self, params: Any, batch: Any, key: Any) -> Any:
            logits = batch["x"] @ params["w"] + params["b"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

        def predict(self, params: Any, batch: Any) -> Any:
            return np.asarray(batch["x"] @ params["w"] + params["b"])

    return Task()


def sklearn_task() -> Any:
    from sklearn.neural_network import MLPClassifier

    class Task(hop.SklearnTask):
        classes = (0, 1, 2)

        def build(self, config: Mapping[str, Any]) -> Any:
            return MLPClassifier(hidden_layer_sizes=(8,), learning_rate_init=config["lr"])

    return Task()


class Shifted(hop.Recipe):
    """Numbers without their mean, and tokens that are others for other rows."""

    def fit(self, batch: Any) -> Mapping[str, Any]:
        return {name: hop.Moments.of(np.ravel(column)) for name, column in batch.items()}

    def apply(self, batch: Any, fitted: Mapping[str, Any]) -> Any:
        made = dict(batch)
        for name in {"x", "input_ids"} & batch.keys():
            values, shift = np.array(batch[name]), fitted[name].mean
            made[name] = (values - shift).astype("float32") if name == "x" else (values + round(1e3 * shift)) % 16
        return made


KINDS = {
    "PyTorch": Kind(torch_task, COLUMNS, plain=partial(torch_task, logs=False)),
    "Lightning": Kind(lightning_task, COLUMNS),
    "Transformers": Kind(transformers_task, TOKENS, "learning_rate", partial(transformers_task, logs=False)),
    "Keras": Kind(keras_task, COLUMNS),
    "JAX": Kind(jax_task, COLUMNS),
    "scikit-learn": Kind(sklearn_task, COLUMNS),
}


class Trial:
    """One framework, tried out: each method is a feature, and raises what Hopfleet refuses it with."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self._runs: dict[str, Any] = {}

    def _run(self, name: str, **options: Any) -> Any:
        """Return the results of a run with some options; the same ones each time."""
        if name not in self._runs:
            given: dict[str, Any] = {
                "valid": dict(self._kind.columns), "space": {self._kind.rate: hop.grid_search([0.01, 0.03])},
                "search": hop.Grid(max_epochs=2), "train": dict(self._kind.columns), "backend": "inline", **options,
            }  # fmt: skip
            given |= {"partitions": 4} if isinstance(given["train"], dict) else {}
            self._runs[name] = hop.Experiment(
                given.pop("task", None) or self._kind.task(), metric="loss", batch_size=8, seed=3,
                run_options=hop.RunOptions(folder=self._folder / name), **given,
            ).fit(quiet=True)  # fmt: skip
        return self._runs[name]

    @property
    def _plain(self) -> Any:
        return self._run("plain")

    @property
    def _rows(self) -> dict[str, Any]:
        return {name: column[:10] for name, column in self._kind.columns.items()}

    def trials_train_and_are_verified(self) -> None:
        assert self._plain.verify().ok and len(self._plain.trials) == 2

    def a_run_is_replayed_to_the_same_bits(self) -> None:
        assert replay(self._plain, task=self._kind.task(), backend="inline").ok

    def trials_share_batches_with_the_bits_of_each_alone(self) -> None:
        found = self._run("exact", worker_options=hop.WorkerOptions(fuse="exact"))
        alone = self._run("off", worker_options=hop.WorkerOptions(fuse="off"))
        pairs = zip(found.trials, alone.trials, strict=True)
        assert all(one.history == other.history for one, other in pairs)

    def the_best_model_is_tested_and_predicts(self) -> None:
        assert np.isfinite(self._plain.best.test(self._rows, backend="inline")["loss"])
        assert len(self._plain.best.predict(self._rows, backend="inline")) == 10

    def several_trials_are_one_model(self) -> None:
        ensemble = hop.Ensemble(self._plain, weights="uniform")
        assert len(ensemble.predict(self._rows, backend="inline")) == 10

    def models_are_validated_by_folds(self) -> None:
        assert len(self._folds.trials) == 2

    def folds_have_statistics_of_their_own(self) -> None:
        data = hop.prepare(
            dict(self._kind.columns), self._folder / "by-fold", Shifted(), partitions=4, folds=2, quiet=True
        )
        own = self._run("own-folds", valid="kfold(2)", train=data)
        assert len(data.folds) == 2 and own.best.history != self._folds[own.best.id].history
        assert own.verify().ok and replay(own, task=self._kind.task(), backend="inline").ok
        assert len(own.best.predict(backend="inline")) == ROWS

    @property
    def _folds(self) -> Any:
        return self._run("folds", valid="kfold(2)")

    def rows_are_predicted_by_the_model_that_has_not_seen_them(self) -> None:
        assert len(self._folds.best.predict(backend="inline")) == ROWS

    def the_models_of_folds_predict_new_rows_together(self) -> None:
        assert len(self._folds.best.predict(self._rows, backend="inline")) == 10

    def the_best_is_refitted_on_all_rows(self) -> None:
        found = self._plain.refit(backend="inline", quiet=True, name=f"refit-{self._folder.name}")
        assert found.definition["train"]["rows"] == 2 * ROWS

    def weights_are_written_in_the_own_format(self) -> None:
        assert self._plain.best.export(self._folder / "weights").path.exists()

    def a_bundle_predicts_without_the_run(self) -> None:
        self._plain.best.export(self._folder / "bundle", format="bundle")
        assert len(hop.load_bundle(self._folder / "bundle").predict(self._rows)) == 10

    def a_training_loop_of_the_task_itself_trains(self) -> None:
        def train(task: Any, model: Any, batches: Any, config: Any) -> Mapping[str, float]:
            return {"batches": float(sum(1 for _ in batches))}

        found = self._run("own", task=self._with(train=train))
        assert {epoch["train_batches"] for epoch in found.best.history} == {3.0}

    def scores_of_the_whole_set_are_no_means(self) -> None:
        def metrics(task: Any, model: Any, batch: Any) -> Mapping[str, Any]:
            rows = np.zeros(len(next(iter(batch.values()))))
            return {"loss": 1.0, "rows": hop.WholeSet(lambda targets, outputs: float(len(targets)), rows, rows)}

        assert self._run("whole", task=self._with(metrics=metrics)).best.metrics["rows"] == ROWS

    def _with(self, **hooks: Any) -> Any:
        """Return a task with some hooks of its own."""
        task = self._kind.task()
        task.__class__ = type("Own", (type(task),), hooks)
        return task

    def a_team_of_devices_trains_one_trial(self) -> None:
        found = self._run(
            "team", task=(self._kind.plain or self._kind.task)(), parallelism="ddp:2", backend="local", workers=1,
            space={self._kind.rate: 0.01}, search=hop.Grid(max_epochs=1),
        )  # fmt: skip
        assert found.definition["parallelism"] == ["ddp:2"] and found.verify().ok

    def values_of_single_steps_are_logged(self) -> None:
        if not self._plain.best.logged:
            self._kind.task().log("rows", 8)
        assert {value for _, value in self._plain.best.logged["rows"]} == {8.0}


FEATURES = [name for name in vars(Trial) if not name.startswith("_")]


def words(feature: str) -> str:
    """Return a feature as the table has it."""
    return feature.replace("_", " ").capitalize()


def outcomes(framework: str, folder: Path) -> dict[str, str]:
    """Return what became of each feature: "yes", or "refused" by an error of Hopfleet's. Others are raised."""
    trial, found = Trial(KINDS[framework], folder), {}
    for feature in FEATURES:
        try:
            getattr(trial, feature)()
            found[words(feature)] = "yes"
        except HopfleetError as error:
            if len(str(error)) < 20 or "Traceback" in str(error):  # it is not about what was asked for
                raise
            found[words(feature)] = "refused"
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(outcomes(sys.argv[1], Path(place))))
