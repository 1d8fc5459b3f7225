"""HopSearchCV in the place of GridSearchCV and RandomizedSearchCV."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from scipy.stats import loguniform
from sklearn import config_context
from sklearn.cluster import MiniBatchKMeans
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import GridSearchCV, KFold, ParameterSampler, RepeatedKFold, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import hopfleet as hop
from hopfleet.errors import UsageError
from hopfleet.frameworks.sklearn.folds import Table
from tests.helpers.marks import long

X, Y = load_breast_cancer(return_X_y=True)
PIPELINE = make_pipeline(StandardScaler(), SGDClassifier(random_state=0))
GRID = {"sgdclassifier__alpha": [1e-4, 1e-2, 10.0]}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> Any:
    return hop.HopSearchCV(PIPELINE, GRID, cv=KFold(3), epochs=2, batch_size=100, random_state=0).fit(X, Y)


def test_the_results_have_the_form_of_grid_search(found: Any) -> None:
    theirs = GridSearchCV(PIPELINE, GRID, cv=KFold(3)).fit(X, Y)
    assert found.cv_results_.keys() == theirs.cv_results_.keys() | {"n_epochs"}
    assert found.cv_results_["params"] == theirs.cv_results_["params"]
    assert found.n_splits_ == theirs.n_splits_
    assert found.best_score_ > 0.93
    assert found.best_params_["sgdclassifier__alpha"] < 10
    assert found.best_index_ == found.cv_results_["rank_test_score"].argmin()
    assert found.predict(X).shape == Y.shape and found.score(X, Y) > 0.93


def test_each_split_is_trained_and_scored_as_if_alone(found: Any) -> None:
    """The same batches for a plain loop give the same score, split by split."""
    results = found.results_
    trial = results.trials[0]
    assert {"score", "score.0", "score.1", "score.2"} <= trial.history[-1].keys()
    scores = [trial.history[-1][f"score.{split}"] for split in range(3)]
    assert trial.history[-1]["score"] == pytest.approx(np.mean(scores))
    assert found.cv_results_["mean_test_score"][0] == pytest.approx(np.mean(scores))


RNG = np.random.default_rng(0)
DRAWN = [(RNG.integers(0, 569, 400), RNG.integers(0, 569, 200)) for _ in range(3)]
"""Splits with rows that come twice, and rows that are in both parts."""
MASKS = [(np.arange(569) < 400, np.arange(569) >= 400), (np.arange(-300, 0), np.arange(-500, -300))]
WEIGHTS = RNG.random(569)
BAYES = {"var_smoothing": [1e-9, 1e-3, 1.0]}
GRID_OF_BAYES = {"gaussiannb__var_smoothing": [1e-9, 1.0]}
BY_CLASS = make_scorer(accuracy_score)
SEVERAL = np.stack([Y, 1 - Y, X[:, 0] > 14], axis=1).astype(int)
STEPS = make_pipeline(StandardScaler(), MinMaxScaler(), GaussianNB())


def two_scores(model: Any, x: Any, y: Any) -> dict[str, float]:
    return {"share": model.score(x, y), "size": -len(x)}


@pytest.mark.parametrize(
    ("estimator", "grid", "y", "options", "fit"),
    [
        (GaussianNB(), BAYES, Y, {"cv": DRAWN, "return_train_score": True}, {}),
        (GaussianNB(), BAYES, Y, {"cv": RepeatedKFold(n_splits=2, n_repeats=2, random_state=0)}, {}),
        (GaussianNB(), BAYES, Y, {"cv": MASKS}, {}),
        (GaussianNB(), BAYES, Y, {"scoring": ["roc_auc", "neg_log_loss"], "refit": "neg_log_loss"}, {}),
        (GaussianNB(), BAYES, Y, {"scoring": {"a": "f1", "b": BY_CLASS}, "refit": lambda results: 1}, {}),
        (GaussianNB(), BAYES, Y, {"scoring": two_scores, "refit": "share", "return_train_score": True}, {}),
        (GaussianNB(), BAYES, Y, {}, {"sample_weight": WEIGHTS}),
        (STEPS, GRID_OF_BAYES, Y, {}, {"gaussiannb__sample_weight": WEIGHTS}),
        (STEPS, {"standardscaler__copy": [True, False], "minmaxscaler": ["passthrough", MinMaxScaler()]}, Y, {}, {}),
        (STEPS, [{"gaussiannb": [MultinomialNB()], "gaussiannb__alpha": [0.1, 1.0]}, {"minmaxscaler__clip": [True]}],
         Y, {}, {}),
        (STEPS, {"minmaxscaler__feature_range": [(1, 0), (0, 1)]}, Y, {"error_score": 0.25}, {}),
        (MultiOutputClassifier(GaussianNB()), {"estimator__var_smoothing": [1e-9, 1.0]}, SEVERAL, {}, {}),
        (OneVsRestClassifier(SGDClassifier(random_state=0)), {"estimator__alpha": [1e-3, 1.0]}, SEVERAL, {}, {}),
        (RandomForestClassifier(5, random_state=0), {"max_depth": [1, 3]}, Y, {"return_train_score": True}, {}),
    ],
    ids=["overlapping", "repeated", "masks", "scores", "callable_refit", "callable_scores", "weights",
         "weights_of_a_step", "steps", "last_step", "failing_step", "outputs", "multilabel", "without_partial_fit"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.FitFailedWarning")
def test_scores_are_those_of_grid_search_to_the_bit_where_the_training_is_the_same(
    estimator: Any, grid: Any, y: Any, options: Any, fit: Any
) -> None:
    options = {"cv": 3, **options}
    theirs = GridSearchCV(estimator, grid, **options).fit(X, y, **fit)
    ours = hop.HopSearchCV(estimator, param_grid=grid, epochs=1, **options).fit(X, y, **fit)
    assert ours.cv_results_.keys() - {"n_epochs"} == theirs.cv_results_.keys()
    for name, values in theirs.cv_results_.items():
        if name.startswith("param"):
            assert str(ours.cv_results_[name]) == str(values)
        elif "time" not in name:
            assert ours.cv_results_[name].dtype == values.dtype
            assert ours.cv_results_[name].tolist() == values.tolist(), name
    assert str(ours.best_params_) == str(theirs.best_params_) and ours.best_index_ == theirs.best_index_
    assert np.array_equal(ours.predict(X), theirs.predict(X))
    if not callable(theirs.refit):
        assert ours.score(X, y) == theirs.score(X, y)
    assert ours.multimetric_ == theirs.multimetric_ and np.array_equal(ours.classes_, theirs.classes_)


def test_weights_reach_the_steps_that_ask_for_them() -> None:
    with config_context(enable_metadata_routing=True):
        scaler = StandardScaler().set_fit_request(sample_weight=True)
        pipeline = make_pipeline(scaler, GaussianNB().set_fit_request(sample_weight=True))
        options: Any = {"cv": 3, "scoring": make_scorer(accuracy_score).set_score_request(sample_weight=False)}
        theirs = GridSearchCV(pipeline, GRID_OF_BAYES, **options).fit(X, Y, sample_weight=WEIGHTS)
        ours = hop.HopSearchCV(pipeline, GRID_OF_BAYES, epochs=1, **options).fit(X, Y, sample_weight=WEIGHTS)
    assert ours.cv_results_["mean_test_score"].tolist() == theirs.cv_results_["mean_test_score"].tolist()
    assert np.array_equal(ours.best_estimator_[-1].var_, theirs.best_estimator_[-1].var_)
    assert not np.array_equal(ours.best_estimator_[0].mean_, X.mean(axis=0))


def test_a_scorer_of_ones_own_sees_the_whole_pipeline() -> None:
    def scale(model: Any, x: Any, y: Any) -> float:
        return float(model["sgdclassifier"].coef_.size * model["standardscaler"].n_samples_seen_ + len(x))

    search = hop.HopSearchCV(PIPELINE, GRID, cv=[(np.arange(300), np.arange(300, 569))], epochs=1, scoring=scale)
    assert search.fit(X, Y).best_score_ == 30 * 300 + 269


def test_no_row_is_trained_on_and_tested_in_one_split() -> None:
    # A memory of all rows is right about every row that it has seen, and about no other.
    x, y = np.arange(90.0).reshape(-1, 1), np.arange(90) % 2
    search = hop.HopSearchCV(Memory(), {"unused": [0]}, cv=KFold(3, shuffle=True, random_state=0), epochs=1).fit(x, y)
    assert search.best_score_ == 0
    assert search.score(x, y) == 1


class Memory(SGDClassifier):
    """A classifier that knows the rows it was trained on, and is wrong about all others."""

    def __init__(self, unused: int = 0) -> None:
        super().__init__()
        self.unused = unused

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"unused": self.unused}

    def partial_fit(self, X, y, classes=None, sample_weight=None):  # noqa: N803
        self.classes_ = classes
        self.known = {**getattr(self, "known", {}), **dict(zip(X[:, 0].tolist(), y.tolist(), strict=True))}
        self.coef_ = X
        return self

    def predict(self, X):  # noqa: N803
        return np.array([self.known.get(each, -1) for each in X[:, 0].tolist()])


def test_random_candidates_are_those_of_scikit_learn_and_halving_stops_most() -> None:
    params = {"alpha": loguniform(1e-6, 1e-1)}
    search = hop.HopSearchCV(
        SGDClassifier(), params, n_iter=6, cv=2, epochs=4, halving=True, scoring=["accuracy", "roc_auc"],
        refit="roc_auc", random_state=3,
    )  # fmt: skip
    names = np.where(Y, "good", "bad")
    search.fit(StandardScaler().fit_transform(X), names)
    assert search.cv_results_["params"] == list(ParameterSampler(params, 6, random_state=3))
    epochs = search.cv_results_["n_epochs"]
    assert epochs.min() == 1 and epochs.max() == 4 and (epochs == 1).sum() >= 3
    assert epochs[search.best_index_] == 4
    assert set(search.predict(StandardScaler().fit_transform(X))) == {"good", "bad"}
    assert "mean_test_accuracy" in search.cv_results_ and search.best_score_ > 0.9


def test_a_folder_keeps_the_run_and_an_estimator_without_targets_is_searched(tmp_path: Path) -> None:
    search = hop.HopSearchCV(
        MiniBatchKMeans(random_state=0), {"n_clusters": [2, 5]}, cv=2, epochs=1, folder=str(tmp_path)
    ).fit(X)
    assert search.best_params_ == {"n_clusters": 5}
    assert hop.load(tmp_path / "run").finished


def test_halving_may_begin_with_a_share_of_the_rows(tmp_path: Path) -> None:
    search = hop.HopSearchCV(
        SGDClassifier(random_state=0), {"alpha": [1e-6, 1e-5, 1e-4, 1e-3, 1.0, 10.0]}, cv=2, epochs=1, halving=True,
        min_epochs=1 / 3, random_state=0, folder=str(tmp_path),
    ).fit(StandardScaler().fit_transform(X), Y)  # fmt: skip
    epochs = search.cv_results_["n_epochs"]
    assert sorted(epochs) == pytest.approx([1 / 3] * 4 + [1] * 2)
    assert epochs[search.best_index_] == 1 and search.best_score_ > 0.9
    spans = [span for span in search.results_.history.spans if span.work.value == "train"]
    assert len(spans) == 4 + 2 * 3  # a unit for each share

    assert search.fit(X[:300], Y[:300]).n_splits_ == 2  # other data replace those in the folder


def test_halving_counts_like_the_halving_searches_of_scikit_learn() -> None:
    search = hop.HopSearchCV(
        SGDClassifier(random_state=0), param_distributions={"alpha": loguniform(1e-6, 10)}, n_iter=13, cv=2, epochs=4,
        halving=True, factor=2, random_state=0, refit=False,
    ).fit(StandardScaler().fit_transform(X), Y)  # fmt: skip
    assert search.n_resources_ == [1, 2, 4]
    assert search.n_candidates_ == [13, 6, 3]
    assert (search.n_iterations_, search.n_possible_iterations_, search.n_required_iterations_) == (3, 3, 4)
    assert search.n_remaining_candidates_ == 2
    assert [search.n_resources_[rung] for rung in search.cv_results_["iter"]] == search.cv_results_["n_epochs"].tolist()
    assert np.bincount(search.cv_results_["iter"]).tolist() == [7, 3, 3]


def test_distributions_by_that_name_are_drawn_ten_times() -> None:
    search = hop.HopSearchCV(
        GaussianNB(), param_distributions={"var_smoothing": loguniform(1e-9, 1)}, cv=2, epochs=1, random_state=3
    ).fit(X, Y)
    assert search.cv_results_["params"] == list(ParameterSampler(search.param_distributions, 10, random_state=3))


@pytest.mark.parametrize("share", [0, -1, 0.4, 1.5])
def test_a_share_that_does_not_divide_an_epoch_is_refused(share: float) -> None:
    with pytest.raises(UsageError, match=r"min_epochs=.*: must be a whole number, or a share such as 1/3 or 1/9"):
        hop.HopSearchCV(SGDClassifier(), {}, halving=True, min_epochs=share).fit(X, Y)


def test_a_share_needs_halving() -> None:
    with pytest.raises(UsageError, match=r"min_epochs=0.5: needs halving=True"):
        hop.HopSearchCV(SGDClassifier(), {}, min_epochs=0.5).fit(X, Y)


@pytest.mark.parametrize("start", [0.0, 1e9])
def test_processes_are_started_where_they_pay(start: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.clients.search_cv.START_SECONDS", start)
    search = hop.HopSearchCV(PIPELINE, GRID, cv=2, epochs=1, batch_size=100, n_jobs=2, random_state=0).fit(X, Y)
    assert len({span.worker for span in search.results_.history.spans}) == (1 if start else 2)
    assert search.best_score_ > 0.9


class Noting(SGDClassifier):
    """A classifier with an attribute that only pickle can store."""

    def partial_fit(self, *arguments: Any, **keywords: Any) -> Noting:
        self.places = {Path("a")}
        super().partial_fit(*arguments, **keywords)
        return self


@pytest.mark.parametrize("mask", [0o022, 0o002])
def test_estimators_of_ones_own_hop_between_processes(mask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.clients.search_cv.START_SECONDS", 0.0)
    before = os.umask(mask)
    try:
        search = hop.HopSearchCV(
            Noting(random_state=0), {"alpha": [1e-4, 1e-3, 1e-2]}, cv=2, epochs=2, batch_size=100, n_jobs=2
        ).fit(StandardScaler().fit_transform(X), Y)
    finally:
        os.umask(before)
    assert search.best_score_ > 0.9 and search.best_estimator_.places == {Path("a")}


TEXTS = [f"{'good' if number % 2 else 'bad'} film number {number}" for number in range(120)]
FRAME = pd.DataFrame({"size": X[:120, 0], "kind": np.where(np.arange(120) % 2, "a", "b")})
SIDES = np.where(np.arange(120) % 2, "left", "right")


@pytest.mark.parametrize(
    ("steps", "x"),
    [
        ((), csr_matrix(OneHotEncoder().fit_transform(FRAME[["kind"]]))),
        ((TfidfVectorizer(),), TEXTS),
        ((make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["kind"])),), FRAME),
    ],
    ids=["sparse", "texts", "frame"],
)
def test_rows_are_of_any_kind_that_the_pipeline_takes(steps: tuple[Any, ...], x: Any) -> None:
    pipeline = make_pipeline(*steps, SGDClassifier(random_state=0))
    search = hop.HopSearchCV(pipeline, GRID, cv=3, epochs=2, batch_size=30, random_state=0).fit(x, SIDES)
    assert search.best_score_ == 1
    assert search.predict(x[:4]).tolist() == ["right", "left", "right", "left"]
    if x is FRAME:
        assert search.feature_names_in_.tolist() == ["size", "kind"]


def test_worker_processes_map_one_copy_of_an_array_and_receive_other_rows(tmp_path: Path) -> None:
    table = Table(X, Y)
    table.share(tmp_path / "x.npy")
    sent = pickle.dumps(table)
    assert len(sent) < X.nbytes / 10
    received = pickle.loads(sent)
    assert isinstance(received.x, np.memmap)
    some = received.take(np.array([3, 1]))
    assert np.array_equal(some.x, X[[3, 1]]) and np.array_equal(some.y, Y[[3, 1]])
    texts = Table(TEXTS)
    texts.share(tmp_path / "texts.npy")
    assert pickle.loads(pickle.dumps(texts)).take(np.array([1])).x == TEXTS[1:2]
    assert not (tmp_path / "texts.npy").exists()


def test_a_fitted_search_is_pickled_without_its_rows(found: Any) -> None:
    pickled = pickle.dumps(found)
    assert len(pickled) < X.nbytes / 4
    assert np.array_equal(pickle.loads(pickled).predict(X), found.predict(X))


def test_searches_in_threads_take_turns() -> None:
    search = hop.HopSearchCV(PIPELINE, GRID, cv=2, epochs=1, batch_size=100, random_state=0)
    alone = cross_val_score(search, X, Y, cv=2)
    with joblib.parallel_config(backend="threading"):
        assert np.array_equal(cross_val_score(search, X, Y, cv=2, n_jobs=2), alone)


def test_several_scores_need_no_refit() -> None:
    options: Any = {"scoring": ["accuracy", "f1"], "cv": 2, "epochs": 1, "random_state": 0}
    search = hop.HopSearchCV(PIPELINE, GRID, refit=False, **options).fit(X, Y)
    assert search.cv_results_["mean_test_f1"].max() > 0.9
    last = hop.HopSearchCV(PIPELINE, GRID, refit=lambda results: 2, **options).fit(X, Y)
    assert last.best_params_ == {"sgdclassifier__alpha": 10.0}


def test_failing_candidates_have_no_score() -> None:
    search = hop.HopSearchCV(SGDRegressor(), {"alpha": [1e-3, -1.0]}, cv=2, epochs=1, refit=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(X / X.max(axis=0), Y.astype(float))
        assert np.isnan(search.cv_results_["mean_test_score"][1])
        assert search.best_index_ == 0 and not hasattr(search, "best_estimator_")
        with pytest.raises(ValueError, match=r"A candidate failed: .*'alpha'"):
            search.set_params(error_score="raise").fit(X, Y.astype(float))
        with pytest.raises(ValueError, match=r"(?s)All the 2 fits failed.*'alpha'"):
            search.set_params(params={"alpha": [-1.0]}, error_score=np.nan).fit(X, Y.astype(float))


def test_what_cannot_work_is_refused() -> None:
    for option in ({"halving": True}, {"folder": "run"}):
        with pytest.raises(UsageError, match=r"RandomForestClassifier has no partial_fit .* leave .* out"):
            hop.HopSearchCV(RandomForestClassifier(), {}, **option).fit(X, Y)
    with pytest.raises(UsageError, match=r"factor=1: must be an integer of at least 2"):
        hop.HopSearchCV(PIPELINE, GRID, halving=True, factor=1).fit(X, Y)
    with pytest.raises(UsageError, match=r"params and param_grid: one of .* must be given, got 2"):
        hop.HopSearchCV(PIPELINE, GRID, param_grid=GRID).fit(X, Y)
    with pytest.raises(UsageError, match=r"params: one of params, param_grid and .* must be given, got 0"):
        hop.HopSearchCV(PIPELINE).fit(X, Y)
    with pytest.raises(ValueError, match="write sgdclassifier__sample_weight"):
        hop.HopSearchCV(PIPELINE, GRID).fit(X, Y, sample_weight=np.ones(len(Y)))
    with pytest.raises(ValueError, match="refit must be set to a scorer key"):
        hop.HopSearchCV(PIPELINE, GRID, scoring=["accuracy"]).fit(X, Y)
    with pytest.raises(UsageError, match=r"estimator=SGDClassifier: is a class; pass an estimator, SGDClassifier\(\)"):
        hop.HopSearchCV(SGDClassifier, {}).fit(X, Y)
    with pytest.raises(UsageError, match=r"'sgdclassifier__max_iter' has no effect on partial_fit; .* set epochs"):
        hop.HopSearchCV(PIPELINE, {"sgdclassifier__max_iter": [5]}).fit(X, Y)
    with pytest.raises(UsageError, match=r"'alhpa' is not a parameter of SGDClassifier: did you mean 'alpha'\?"):
        hop.HopSearchCV(SGDClassifier(), {"alhpa": [1.0]}).fit(X, Y)
    with pytest.raises(UsageError, match="'alpha' is a distribution; set n_iter"):
        hop.HopSearchCV(SGDClassifier(), [{"alpha": loguniform(1e-6, 1e-1)}]).fit(X, Y)
    for name in ("epochs", "batch_size", "n_iter"):
        with pytest.raises(UsageError, match=f"{name}=0: must be an integer of at least 1"):
            hop.HopSearchCV(PIPELINE, GRID, **{name: 0}).fit(X, Y)


CHECKED = hop.HopSearchCV(SGDClassifier(random_state=0), {"alpha": [1e-3, 1e-2]}, cv=2, epochs=1, random_state=0)


@long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks() -> None:
    ran = 0
    for estimator, check in estimator_checks_generator(CHECKED):
        if check.func.__name__ != "check_array_api_input":  # which wants an environment variable
            check(estimator)
            ran += 1
    assert ran > 40
