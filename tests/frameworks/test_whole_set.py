"""Metrics over the whole set: rows that are gathered from batches, and scored once."""

from __future__ import annotations

import math
import pickle
import random

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

import hopfleet as hop
from hopfleet.domain.rowsum import RowSum, add, means
from hopfleet.errors import TaskError
from hopfleet.frameworks import whole_set
from hopfleet.frameworks.whole_set import Gathered, WholeSet, check_room, collected, dealt, doubtful, gathers, scored


def rows(count=1050, seed=3):
    """Return targets, few of them positive, and scores that are weakly correlated with them."""
    rng = np.random.default_rng(seed)
    targets = (rng.random(count) < 0.06).astype("int64")
    return targets, (targets * 0.8 + rng.normal(size=count)).astype("float32")


def cut(*columns, size=256):
    return [[column[start : start + size] for column in columns] for start in range(0, len(columns[0]), size)]


def of(score, *columns, **more):
    return collected({"m": WholeSet(score, *columns, **more)})


def test_f1_is_not_the_mean_of_batches():
    targets, outputs = rows()
    found = [(f1_score(y, out > 1), len(y)) for y, out in cut(targets, outputs)]
    mean = add([{"f1": RowSum.of(value, count)} for value, count in found])["f1"].mean
    right = f1_score(targets, outputs > 1)
    assert found[-1][1] < found[0][1] and f"{mean:.4f} {right:.4f}" == "0.2140 0.2151"
    whole = add([of("f1", out > 1, y) for y, out in cut(targets, outputs)])
    assert gathers(whole) and means(whole) == {"m": right}


def test_the_score_does_not_depend_on_batches_or_on_how_they_are_added():
    targets, outputs = rows()
    for seed in range(20):
        rng = random.Random(seed)
        left = [of("roc_auc", out, y)["m"] for y, out in cut(targets, outputs, size=rng.randint(1, 400))]
        while len(left) > 1:
            place = rng.randrange(len(left) - 1)
            left[place : place + 2] = [left[place] + left[place + 1]]
        assert left[0].mean == roc_auc_score(targets, outputs)


def ratio(targets, outputs, sample_weight=None):
    return np.average(outputs, weights=sample_weight) / np.average(targets, weights=sample_weight)


def test_scores_are_names_functions_and_metrics():
    targets, outputs = rows(60)
    tensors = torch.from_numpy(outputs), torch.from_numpy(targets)
    wanted = roc_auc_score(targets, outputs)
    assert of("roc_auc", *tensors)["m"].mean == wanted
    assert of(roc_auc_score, outputs, targets)["m"].mean == wanted
    assert of("neg_root_mean_squared_error", outputs, targets)["m"].mean < 0
    weights = np.arange(60.0)
    parts = add([of(ratio, out, y, sample_weight=w) for y, out, w in cut(targets, outputs, weights, size=7)])
    assert parts["m"].mean == ratio(targets, outputs, weights)
    half = torch.tensor([0.5, 0.25], dtype=torch.bfloat16, requires_grad=True)
    assert of(lambda targets, outputs: outputs.sum(), half, [0, 1])["m"].mean == 0.75
    texts = add(
        [of(lambda right, said: np.mean([a == b for a, b in zip(right, said, strict=True)]), ["a", "b"], ["a", "c"])]
        * 3
    )
    assert texts["m"].mean == 0.5


def test_rows_are_copies():
    targets = np.array([0, 1, 1])
    found = of("accuracy", np.array([0, 1, 0]), targets)
    targets[:] = 1
    assert means(found) == {"m": 2 / 3}


def test_an_undefined_score_is_nan_with_its_reason():
    found = scored([of("roc_auc", [0.1, 0.2], [1, 1])])
    assert isinstance(found, dict) and math.isnan(found["m"].mean) and "one class" in found["m"].reason.lower()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: WholeSet("rocauc", [1], [1]),
            "WholeSet('rocauc'): must be the name of a scorer; did you mean 'roc_auc'",
        ),
        (lambda: WholeSet(3, [1], [1]), r"WholeSet(3): must be the name of a scorer of scikit-learn, a function"),
        (lambda: WholeSet(dict, [1], [1]), "must be the name of a scorer"),
        (lambda: of("f1", [1, 0], [1]), "same number of rows, got outputs a list of 2, targets a list of 1"),
        (lambda: of("f1", np.ones(()), [1]), "outputs of a WholeSet must have a value for each row"),
        (lambda: add([of("f1", [1], [1]), {"m": RowSum.of(1.0, 1)}]), "a number for some batches and a WholeSet"),
        (lambda: add([{"m": RowSum.of(1.0, 1)}, of("f1", [1], [1])]), "a number for some batches and a WholeSet"),
        (lambda: means(of(lambda y, out: out, [1, 2], [1, 2])), "must be one number; average it"),
        (
            lambda: means(add([of(ratio, np.ones((2, width)), [1, 2]) for width in (2, 3)])),
            "one shape for each row, got [2, 2], [2, 3]: pad them",
        ),
    ],
)
def test_mistakes_are_named(make, text):
    with pytest.raises(TaskError) as raised:
        make()
    assert text in str(raised.value)


def test_a_score_that_does_not_fit_its_rows_says_what_they_are():
    with pytest.raises(ValueError, match="continuous") as raised:
        means(of("f1", np.array([0.3, 0.4]), np.array([0, 1])))
    assert "metric 'm', scored over 2 rows: outputs float64[2], targets int64[2]" in raised.value.__notes__[0]


def test_memory_is_bounded(monkeypatch):
    found = of("f1", np.zeros(100), np.zeros(100))
    check_room(found, 100, 10**6)
    with pytest.raises(
        TaskError, match=r"metric 'm': the 1,000,000,000 validation rows would take 14.9 GiB, and the l"
    ):
        check_room(found, 100, 10**9)
    check_room(ValueError(), 1, 1)
    monkeypatch.setattr(whole_set, "LIMIT", 2000)
    with pytest.raises(TaskError, match=r"metric 'm': its rows take more than .* GiB, which is the limit; return less"):
        add([found, found])


def test_rows_of_a_team_are_in_the_order_of_the_data():
    parts = [{**of(ratio, [float(number)], [1.0]), "loss": RowSum.of(number, 1)} for number in range(5)]
    sent = [pickle.loads(pickle.dumps(add(parts[rank::2]))) for rank in range(2)]
    found = add(dealt(sent))
    assert [piece["outputs"] for piece in found["m"].pieces()] == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert found["loss"].mean == 2.0 and found["m"].rows == 5
    (lost,) = dealt([pickle.loads(pickle.dumps(of(lambda y, out: 1.0, [1], [1])))])
    with pytest.raises(TaskError, match="cannot pass between processes; use the name of a scorer, or a function at"):
        means(lost)


def test_averaged_scores_are_doubted_by_name():
    number = RowSum.of(1.0, 1)
    assert doubtful({"loss": number, "accuracy": number, "mapped": number, "val_F1": number}) == "val_F1"
    assert doubtful({"val/auc": number}) == "val/auc"
    assert doubtful({"auc": of("f1", [1], [1])["m"], "loss": number}) == ""


def test_many_batches_add_up():
    some = of(ratio, [1.0], [1.0])["m"]
    whole = some
    for _ in range(20_000):
        whole = whole + some
    assert isinstance(whole, Gathered) and whole.mean == 1.0 and hop.WholeSet is WholeSet
