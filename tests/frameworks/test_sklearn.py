"""scikit-learn: the suite, bits of plain loops of ``partial_fit``, scorers, pipelines, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.cluster import Birch, MiniBatchKMeans
from sklearn.decomposition import IncrementalPCA, LatentDirichletAllocation, MiniBatchDictionaryLearning, MiniBatchNMF
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Perceptron, SGDClassifier, SGDRegressor
from sklearn.metrics import f1_score, mean_squared_error
from sklearn.naive_bayes import BernoulliNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from threadpoolctl import threadpool_limits

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.domain.rowsum import means
from hopfleet.errors import CheckpointError, TaskError, UsageError
from hopfleet.frameworks.sklearn.scores import has_loss
from hopfleet.frameworks.sklearn.state import decode, encode
from hopfleet.testing.frameworks import ROWS, FrameworkSuite
from tests.helpers.marks import LONG

RNG = np.random.default_rng(3)
X = np.abs(RNG.normal(size=(ROWS, 6)))
Y = RNG.integers(0, 3, ROWS)

pytestmark = pytest.mark.slow


class Linear(hop.SklearnTask):
    classes = (0, 1, 2)
    scoring = ("accuracy",)

    def build(self, config):
        return SGDClassifier(loss="log_loss", alpha=config["alpha"], average=config["average"])


class Net(hop.SklearnTask):
    def build(self, config):
        return MLPRegressor(hidden_layer_sizes=(8,), learning_rate_init=config["lr"])


@pytest.mark.slow
class TestLinear(FrameworkSuite):
    module = "sklearn"
    config: ClassVar[dict[str, Any]] = {"alpha": 1e-3, "average": True}
    other: ClassVar[dict[str, Any]] = {"alpha": 1e-2, "average": False}
    bad: ClassVar[dict[str, Any]] = {"alpha": -1, "average": False}

    def make(self):
        return Linear()

    def columns(self):
        return {"x": X, "y": Y}


@pytest.mark.slow
class TestNet(FrameworkSuite):
    module = "sklearn"
    config: ClassVar[dict[str, Any]] = {"lr": 1e-3}
    other: ClassVar[dict[str, Any]] = {"lr": 1e-2}

    def make(self):
        return Net()

    @pytest.fixture(autouse=True)
    def some(self, request):
        """A stack of layers is one more estimator: TestLinear shows that the way to a process is the same."""
        if not LONG and request.node.originalname in COSTLY:
            pytest.skip("HOPFLEET_LONG=1 runs it")


COSTLY = {
    "test_a_fresh_process_continues_to_the_same_bytes",
    "test_trials_hop_and_survive_a_killed_worker_to_the_same_bits",
}


class Given(hop.SklearnTask):
    """A task of one estimator, whatever the configuration."""

    classes = (0, 1, 2)

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def build(self, config):
        return clone(self.estimator)

    def metrics(self, model, batch):
        return super().metrics(model, batch) if has_loss(model) else {"rows": len(batch["x"])}


class Batches(list[Any]):
    rows = ROWS


def batches(y: Any = Y) -> Batches:
    return Batches({"x": X[start : start + 16], "y": y[start : start + 16]} for start in range(0, ROWS, 16))


def opened(task: hop.SklearnTask, config: dict[str, Any] | None = None, seed: int = 5) -> Any:
    return task.framework.open(config or {}, seed=seed, placement=CPU, threads=1)


ESTIMATORS = [
    SGDClassifier(),
    SGDClassifier(loss="modified_huber", average=True, random_state=1),
    SGDRegressor(learning_rate="adaptive"),
    Perceptron(),
    MLPClassifier(hidden_layer_sizes=(5,)),
    MLPClassifier(hidden_layer_sizes=(5,), solver="sgd", nesterovs_momentum=True),
    MLPRegressor(hidden_layer_sizes=(5,), random_state=2),
    GaussianNB(),
    MultinomialNB(),
    BernoulliNB(),
    ComplementNB(),
    MiniBatchKMeans(3),
    MiniBatchDictionaryLearning(3, batch_size=16),
    MiniBatchNMF(3),
    IncrementalPCA(3),
    LatentDirichletAllocation(3),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: f"{type(e).__name__}-{ESTIMATORS.index(e)}")
def test_every_estimator_hops_to_the_bits_of_a_plain_loop(tmp_path: Path, estimator: Any) -> None:
    task = Given(estimator)
    first = opened(task)
    first.train(batches(), last=False)
    first.save(tmp_path / "version")
    second = opened(task, seed=6)
    second.train(batches(Y[::-1]), last=False)  # what a load must forget
    second.load(tmp_path / "version")
    second.train(batches(), last=True)

    np.random.seed(5)
    plain = clone(estimator)
    options = {"classes": [0, 1, 2]} if is_classifier(plain) else {}
    with threadpool_limits(1):
        for batch in [*batches(), *batches()]:
            plain.partial_fit(batch["x"], batch["y"], **options)
    assert _bits(vars(second.model)) == _bits(vars(plain))


def _bits(values: Any) -> Any:
    state = encode(values)
    return state["text"], {name: (array.shape, array.tobytes()) for name, array in state["arrays"].items()}


def test_a_fitted_pipeline_is_trained_in_its_last_step_alone(tmp_path: Path) -> None:
    scaler = StandardScaler().fit(X)
    before = _bits(vars(scaler))

    class Scaled(hop.SklearnTask):
        classes = (0, 1, 2)

        def build(self, config):
            return make_pipeline(FunctionTransformer(np.log1p), scaler, SGDClassifier())

    session = opened(Scaled())
    session.train(batches(), last=True)
    np.random.seed(5)
    plain = SGDClassifier()
    for batch in batches():
        plain.partial_fit(scaler.transform(np.log1p(batch["x"])), batch["y"], classes=[0, 1, 2])
    assert _bits(vars(session.estimator)) == _bits(vars(plain))
    assert _bits(vars(scaler)) == before
    session.save(tmp_path / "version")
    model = Scaled().framework.model({}, tmp_path / "version")
    assert np.array_equal(model.predict(X), session.model.predict(X))


def test_scores_are_those_of_scikit_learn() -> None:
    class Scored(hop.SklearnTask):
        classes = (0, 1, 2)
        scoring = ("accuracy", "f1_macro")

        def build(self, config):
            return SGDClassifier()

    session = opened(Scored())
    session.train(batches(), last=True)
    found = means(session.evaluate(batches(), seed=0))
    predicted = session.model.predict(X)
    assert found["accuracy"] == np.mean(predicted == Y) == 1 - found["loss"]
    assert found["f1_macro"] == f1_score(Y, predicted, average="macro")
    net = opened(Given(MLPRegressor(hidden_layer_sizes=(4,))))
    net.train(batches(), last=True)
    assert net.evaluate(batches(), seed=0)["loss"].mean == pytest.approx(mean_squared_error(Y, net.model.predict(X)))


@pytest.mark.parametrize("estimator", [MiniBatchKMeans(3), IncrementalPCA(3)], ids=["clusters", "components"])
def test_estimators_without_targets_have_a_loss(estimator: Any) -> None:
    session = opened(Given(estimator))
    data = Batches({"x": batch["x"]} for batch in batches())
    session.train(data, last=True)
    assert session.evaluate(data, seed=0)["loss"].mean > 0


def test_metrics_of_the_task_replace_the_scores() -> None:
    class Own(Given):
        def metrics(self, model, batch):
            return {**super().metrics(model, batch), "right": float(np.mean(model.predict(batch["x"]) == batch["y"]))}

    session = opened(Own(SGDClassifier()))
    session.train(batches(), last=True)
    found = means(session.evaluate(batches(), seed=0))
    assert found["right"] == 1 - found["loss"]


def test_classes_that_the_first_partition_lacks_are_learned_later() -> None:
    first, second = Batches([{"x": X[Y == 0], "y": Y[Y == 0]}]), Batches([{"x": X[Y == 2], "y": Y[Y == 2]}])
    session = opened(Given(SGDClassifier(random_state=0)))
    session.train(first, last=False)
    session.train(second, last=True)
    assert session.model.classes_.tolist() == [0, 1, 2]
    assert set(session.model.predict(X)) <= {0, 2}


def test_weights_of_rows_count() -> None:
    class Weighted(Given):
        def example(self, batch):
            return batch["x"], batch["y"], np.where(batch["y"] == 0, 0.0, 1.0)

    session = opened(Weighted(SGDClassifier(random_state=0)))
    session.train(batches(), last=True)
    plain = SGDClassifier(random_state=0)
    for batch in batches():
        plain.partial_fit(batch["x"], batch["y"], [0, 1, 2], np.where(batch["y"] == 0, 0.0, 1.0))
    assert np.array_equal(session.model.coef_, plain.coef_)


def test_objects_inside_an_estimator_are_kept() -> None:
    from scipy.sparse import csr_matrix

    generator, net = np.random.default_rng(4), MLPClassifier()
    generator.random()
    values = {
        "names": np.array(["a", "bc"]),
        "objects": np.array(["a", 1, None], dtype=object),
        "small": np.float32(1 / 3),
        "type": np.float64,
        "dtype": np.dtype("float32"),
        "generator": generator,
        "sparse": csr_matrix(np.eye(3)),
        "itself": net,
    }
    net.itself = net
    found = decode(encode(values))
    assert found["names"].tolist() == ["a", "bc"] and found["names"].dtype == values["names"].dtype
    assert found["objects"].tolist() == ["a", 1, None]
    assert found["small"] == values["small"] and found["small"].dtype == np.float32
    assert found["type"] is np.float64 and found["dtype"] == np.dtype("float32")
    assert found["generator"].random() == generator.random()
    assert (found["sparse"] != values["sparse"]).nnz == 0
    assert found["itself"].itself is found["itself"]


def test_trials_train_together_with_the_bits_of_each_alone() -> None:
    class Greedy(Linear):
        def example(self, batch):
            batch["x"] -= 1.0  # each member may write into its own copy
            return batch["x"], batch["y"]

    configs = [{"alpha": 1e-3, "average": True}, {"alpha": -1, "average": False}, {"alpha": 1e-2, "average": False}]
    task = Greedy()
    together = [opened(task, config) for config in configs]
    flotilla = task.framework.flotilla(together)
    results = flotilla.train(batches(), last=[True, True, False])
    assert isinstance(results[1], ValueError)
    evaluated = flotilla.evaluate(batches(), seed=0)
    for number in (0, 2):
        alone = opened(task, configs[number])
        assert alone.train(copied(batches()), last=number == 0) == results[number]
        assert alone.evaluate(copied(batches()), seed=0) == evaluated[number]
        assert _bits(vars(alone.model)) == _bits(vars(together[number].model))
    assert sum(flotilla.shares) == pytest.approx(1)


def copied(some: Batches) -> Batches:
    return Batches({name: column.copy() for name, column in batch.items()} for batch in some)


@pytest.mark.parametrize(
    "encoded",
    [
        {"object": ["os", "path", {}]},
        {"object": ["sklearn.base", "clone", {}]},
        {"made": ["subprocess", "Popen", [["true"]]]},
        {"type": ["numpy", "load"]},
        {"generator": {"bit_generator": "seed"}},
    ],
    ids=["module", "function", "process", "type", "generator"],
)
def test_a_version_makes_no_other_objects(encoded: dict[str, Any]) -> None:
    text = json.dumps({"tree": {"a": {"$array": "a"}}, "objects": {"a": encoded}})
    with pytest.raises((LookupError, TypeError, AttributeError)):
        decode({"text": text, "arrays": {}})


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (RandomForestClassifier(), "RandomForestClassifier has no partial_fit.*such as SGDClassifier"),
        (LogisticRegression(), "has no partial_fit"),
        (
            make_pipeline(StandardScaler(), SGDClassifier()),
            "'standardscaler' of the pipeline is not fitted: fit it before",
        ),
    ],
    ids=["forest", "logistic", "unfitted"],
)
def test_estimators_that_cannot_work_are_refused(estimator: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        opened(Given(estimator))


def test_wrong_tasks_are_refused() -> None:
    class Build(hop.SklearnTask):
        def __init__(self, built: Any) -> None:
            self.built = built

        def build(self, config):
            return self.built

    with pytest.raises(TaskError, match=r"the class SGDClassifier: return an estimator, SGDClassifier\(...\)"):
        opened(Build(SGDClassifier))
    with pytest.raises(TaskError, match=r"build\(\) returned 3: return an estimator"):
        opened(Build(3))
    with pytest.raises(TaskError, match="is a classifier: set classes"):
        opened(Build(SGDClassifier()))
    with pytest.raises(TaskError, match="override build"):
        opened(hop.SklearnTask())
    with pytest.raises(TaskError, match=r"SklearnTask\(<class .*RandomForestClassifier'>\): takes no.*SGDClassifier\("):
        hop.SklearnTask(RandomForestClassifier)
    with pytest.raises(TaskError, match=r"takes no arguments; derive a class .* build\(.*e.g. MLPClassifier\("):
        hop.SklearnTask(MLPClassifier())
    for classes, odd in (((0, 1), "2"), (("a", "b"), "'c'")):
        task = Given(SGDClassifier())
        task.classes = classes
        with pytest.raises(TaskError, match=rf"y has the value {odd}, which is not in the task's classes = \["):
            opened(task).train(batches(Y if odd == "2" else np.array(["a", "b", "c"])[Y]), last=True)
    unknown = Given(SGDClassifier())
    unknown.scoring = "acuracy"
    with pytest.raises(TaskError, match="did you mean 'accuracy'"):
        opened(unknown)
    unknown.scoring = 3
    with pytest.raises(TaskError, match="must be the name of a scorer"):
        opened(unknown)
    with pytest.raises(TaskError, match="no column 'x', only features, label: override example"):
        hop.SklearnTask().example({"features": 1, "label": 2})
    with pytest.raises(TaskError, match="no column 'y'"):
        opened(Given(SGDClassifier())).train(Batches([{"x": X}]), last=True)
    with pytest.raises(TaskError, match="no batches"):
        opened(Given(SGDClassifier())).train(Batches(), last=True)


def test_a_hook_that_is_never_called_is_refused() -> None:
    class Loop(Linear):
        def train(self, model: Any, batches: Any, config: Any) -> Any: ...

    with pytest.raises(UsageError, match=r"Loop\.train: a SklearnTask has no such hook; partial_fit of the estimator"):
        hop.Experiment(Loop(), train={"x": [1.0]}, space={"alpha": 0.1})
    Loop.train = 3  # type: ignore[method-assign, assignment]
    hop.Experiment(Loop(), train={"x": [1.0]}, space={"alpha": 0.1})


def test_an_estimator_with_arrays_in_the_memory_of_others_is_refused(tmp_path: Path) -> None:
    session = opened(Given(Birch(n_clusters=3)))
    session.train(batches(), last=True)
    with pytest.raises(CheckpointError, match=r"shares memory with .*: use another estimator"):
        session.save(tmp_path / "version")


def test_state_that_would_need_pickle_is_named(tmp_path: Path) -> None:
    class Own(SGDClassifier):
        def partial_fit(self, *arguments: Any, **options: Any) -> Any:
            self.kept = lambda: 0
            return super().partial_fit(*arguments, **options)

    session = opened(Given(Own()))
    session.train(batches(), last=True)
    with pytest.raises(CheckpointError, match="kept: a function cannot be saved without pickle"):
        session.save(tmp_path / "version")


class Columns(Linear):
    """A task that makes its inputs of several columns."""

    def example(self, batch):
        return np.stack([batch["a"], batch["b"]], axis=1), batch["y"]


class Unlabelled(Columns):
    def predict(self, model: Any, batch: Any) -> Any:
        return model.predict_proba(np.stack([batch["a"], batch["b"]], axis=1))


class Binary(hop.SklearnTask):
    classes = (0, 1)
    scoring = "accuracy"

    def build(self, config: dict[str, Any]) -> Any:
        return SGDClassifier(average=config["average"])


def test_an_estimator_that_cannot_be_saved_fails_its_trial_alone(tmp_path: Path) -> None:
    """With two classes, averaged weights share memory with those of the last step."""
    rows = {"x": X, "y": (Y > 0).astype(int)}
    results = hop.Experiment(
        Binary(), train=rows, valid=rows, space={"average": hop.grid_search([True, False])}, batch_size=16,
        search=hop.Grid(max_epochs=2), metric="accuracy", mode="max", partitions=2, workers=2, backend="inline",
        run_options=hop.RunOptions(folder=tmp_path / "run"),
    ).fit(quiet=True)  # fmt: skip
    averaged, plain = results.trials
    assert averaged.state.value == "failed" and "use another estimator" in (averaged.error or "")
    assert plain.state.value == "completed"


def test_bundles_predict(tmp_path: Path) -> None:
    rows = {"a": X[:, 0], "b": X[:, 1], "y": Y}
    results = hop.Experiment(
        Columns(), train=rows, valid=rows, space={"alpha": 1e-3, "average": False}, search=hop.Grid(max_epochs=1),
        batch_size=16, partitions=1, backend="inline", run_options=hop.RunOptions(folder=tmp_path / "run"),
    ).fit(quiet=True)  # fmt: skip
    best, inputs = results.best, np.stack([X[:3, 0], X[:3, 1]], axis=1)
    some = {name: column[:3] for name, column in rows.items()}
    assert best.predict(some)["prediction"].to_pylist() == best.model().predict(inputs).tolist()
    new = {"a": X[:3, 0], "b": X[:3, 1]}
    with pytest.raises(TaskError, match=r"takes the column 'y' out of a batch that has a, b; .* on Columns"):
        best.predict(new)
    made = best.export(tmp_path / "bundle", Unlabelled(), format="bundle")
    assert made.deviation == 0
    found = hop.load_bundle(tmp_path / "bundle").predict(new)["prediction"].to_pylist()
    assert found == best.model().predict_proba(inputs).tolist()
