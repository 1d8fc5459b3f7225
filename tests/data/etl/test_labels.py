"""Labels of tables: read once, never made up, and given back in the terms of the raw column."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hopfleet as hop
from hopfleet.data.etl.labels import Outcome
from hopfleet.data.etl.recipe import load_recipe
from hopfleet.data.etl.statistics import merged
from hopfleet.errors import DataError


def prepared(values: Any, tmp_path: Path, **options: Any) -> tuple[list[Any], Outcome]:
    """Return the prepared values of a label in the order of the rows, and what they stand for."""
    source = pa.table({"row": range(len(values)), "y": values})
    recipe = hop.Tabular({"row": None}, labels="y")
    data = hop.prepare(source, tmp_path / "set", recipe, partitions=1, overwrite=True, **options)
    rows = data.head(data.rows)
    order = np.argsort(rows["row"])
    return np.asarray(rows["y"])[order].tolist(), load_recipe(data).outcomes["y"]


FEW = [3, 1, 2] * 10


@pytest.mark.parametrize(
    ("values", "wanted", "names"),
    [
        ([0, 1, 1, 0], [0, 1, 1, 0], (0, 1)),
        ([1, 1, 1], [1, 1, 1], (0, 1)),
        ([0.0, 1.0], [0, 1], (0, 1)),
        (["b", "a", "b"], [1, 0, 1], ("a", "b")),
        ([True, False, True], [1, 0, 1], (False, True)),
        (FEW, [value - 1 for value in FEW], (1, 2, 3)),
        (pa.array(["x", "y"]).dictionary_encode(), [0, 1], ("x", "y")),
    ],
    ids=["zeros and ones", "ones", "floats", "text", "truth", "whole numbers", "coded"],
)
def test_classes_keep_their_names(values: Any, wanted: list[int], names: Any, tmp_path: Path) -> None:
    made, outcome = prepared(values, tmp_path)
    assert made == wanted and outcome.names == names and outcome.kind == f"{len(names)} classes"
    plain = values.to_pylist() if isinstance(values, pa.Array) else values
    assert outcome.restored(np.array(made)).to_pylist() == plain


@pytest.mark.parametrize(
    "values",
    [[0.5, 1.0, 3.0], [3, 1, 2] * 9, [float(value) for value in range(30)], [-1e9, 0.0, 1e9, math.pi]],
    ids=["fractions", "few rows of each", "many values", "wide"],
)
def test_numbers_are_scaled_and_given_back(values: list[float], tmp_path: Path) -> None:
    made, outcome = prepared(values, tmp_path)
    assert not outcome.names and outcome.kind == "a number"
    assert np.mean(made) == pytest.approx(0, abs=1e-6) and np.std(made) == pytest.approx(1)
    assert outcome.restored(np.array(made, np.float32)).to_pylist() == pytest.approx(values, rel=1e-6, abs=100)


def test_lists_of_classes_are_zeros_and_ones(tmp_path: Path) -> None:
    values = [["b", "a"], [], ["c"]]
    made, outcome = prepared(values, tmp_path)
    assert made == [[1, 1, 0], [0, 0, 0], [0, 0, 1]] and outcome.kind == "lists of 3 classes"
    assert outcome.restored(np.array(made, bool)).to_pylist() == [["a", "b"], [], ["c"]]
    assert outcome.restored(np.array(made, float)) is None  # probabilities, for all that is known


def test_classes_know_their_weights(tmp_path: Path) -> None:
    _, outcome = prepared(["a", "b", "a", "a"], tmp_path)
    assert outcome.counts == (3, 1) and outcome.weights == pytest.approx([2 / 3, 2.0])
    _, outcome = prepared([1, 1, 1], tmp_path)
    assert outcome.counts == (0, 3) and outcome.weights == [0.0, 0.5]
    _, outcome = prepared([["a", "b"], ["a"]], tmp_path)
    assert outcome.counts == (2, 1)
    _, outcome = prepared([0.5, 1.5], tmp_path)
    assert outcome.weights == []


def test_the_kind_is_found_once_over_all_rows() -> None:
    """Batches that look like classes, or like numbers, each by itself."""
    step = hop.Label()

    def outcome(*batches: list[Any]) -> Outcome:
        fitted = [step.fit(pa.chunked_array([batch])) for batch in batches]
        together: Any = fitted[0]
        for one in fitted[1:]:
            together = merged(together, one)
        return step.outcome(together)

    assert outcome([0, 1] * 50, [1, 1]).names == (0, 1)
    assert outcome([0, 1] * 50, [2]).names == (0, 1, 2)
    assert outcome([1] * 99, [0.5]).names == ()
    assert outcome([*range(3000)], [0, 1]).names == ()
    assert outcome([1] * 200, [*range(21)]).names == ()
    assert outcome([1] * 200, [*range(20)]).names == tuple(range(20))


@pytest.mark.parametrize(
    "values",
    [
        [1.0, None, 2.0],
        [1.0, math.nan, 2.0],
        ["a", None, "b"],
        [["a"], None, ["b"]],
        [["a"], [None], ["b"]],
        [1, None, 0],
    ],
    ids=["number", "nan", "text", "list", "item", "zeros and ones"],
)
def test_a_missing_label_is_never_made_up(values: list[Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 2: column 'y': a label is missing; fill it in, or leave such rows out"):
        prepared(values, tmp_path)
    made, _ = prepared(values, tmp_path, on_error="skip")
    assert len(made) == 2


@pytest.mark.parametrize("step", [hop.Number(), hop.Number(None), hop.Category(unseen="raise"), None])
def test_a_missing_label_with_a_step_of_its_own(step: Any, tmp_path: Path) -> None:
    source = pa.table({"x": [1, 2, 3], "y": ["1", None, "2"] if isinstance(step, hop.Category) else [1, None, 2]})
    with pytest.raises(DataError, match="column 'y': a label is missing"):
        hop.prepare(source, tmp_path / "set", hop.Tabular({"x": hop.Number(), "y": step}, labels="y"), partitions=1)


def test_labels_of_validation_rows_must_be_known(tmp_path: Path) -> None:
    source = {"part": ["train"] * 3 + ["valid"], "y": ["cat", "dog", "cat", "cart"]}
    with pytest.raises(DataError, match=r"row 4: column 'y': 'cart' is not among the labels .*, cat, dog; map it"):
        hop.prepare(source, tmp_path / "set", hop.Tabular(labels="y"), partitions=1, split=hop.Split(column="part"))
    numbers = {"part": ["train"] * 30 + ["valid"], "y": [*FEW, 7]}
    with pytest.raises(
        DataError, match=r"row 31: column 'y': '7' is not among the labels of the training rows, 1, 2, 3"
    ):
        hop.prepare(numbers, tmp_path / "set", hop.Tabular(labels="y"), partitions=1, split=hop.Split(column="part"))


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (lambda: hop.Tabular({"y": hop.Number(missing="mean")}, labels="y"), "labels are never made up; leave"),
        (lambda: hop.Tabular({"y": hop.Number(missing=0.0)}, labels=["y"]), "labels are never made up"),
        (lambda: hop.Tabular({"y": hop.Category()}, labels="y"), "would become class 0; leave it out"),
    ],
)
def test_steps_that_would_make_up_labels_are_refused(recipe: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        recipe()


def test_a_label_that_names_no_column(tmp_path: Path) -> None:
    for columns in (None, {"x": hop.Number()}):
        with pytest.raises(DataError, match=r"has no column 'prise' for labels='prise'; did you mean 'price'\?"):
            recipe = hop.Tabular(columns, labels="prise")
            hop.prepare({"x": [1.0], "price": [2.0]}, tmp_path / "set", recipe, partitions=1)
    (tmp_path / "raw.csv").write_text("x,price\n1,2\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"raw\.csv: has no column 'prise' for labels='prise'; did you mean 'price'\?"):
        recipe = hop.Tabular({"x": hop.Number()}, labels="prise")
        hop.prepare(tmp_path / "raw.csv", tmp_path / "set", recipe, partitions=1)


@pytest.mark.parametrize(
    "values", [[b"a", b"b"], pa.array([1, 2], pa.date32()), [None, None]], ids=["bytes", "dates", "none"]
)
def test_what_cannot_be_a_label(values: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'y': is .*, which cannot be a label; give a number"):
        prepared(values, tmp_path)


def test_a_label_is_never_stacked_and_needs_no_step(tmp_path: Path) -> None:
    source = {"a": [1.0, 2.0], "b": [0.0, 4.0], "y": [10.5, 20.0]}
    for columns in (
        None,
        {"a": hop.Number(), "b": hop.Number()},
        {"a": hop.Number(), "b": hop.Number(), "y": hop.Label()},
    ):
        labels = [] if columns and "y" in columns else "y"
        data = hop.prepare(
            source, tmp_path / "set", hop.Tabular(columns, stack="x", labels=labels), partitions=1, overwrite=True
        )
        assert {name: kind.shape for name, kind in data.columns.items()} == {"x": (2,), "y": ()}
        assert load_recipe(data).recipe.labels == ["y"]


def test_predictions_of_classes() -> None:
    outcome = Outcome(("no", "yes"))
    assert outcome.restored(np.array([[1], [0]])).to_pylist() == ["yes", "no"]
    assert outcome.restored(np.array([True, False])).to_pylist() == ["yes", "no"]
    assert outcome.restored(np.array([0.2, 0.9])) is None  # a probability, or a logit: who knows
    assert outcome.scored(np.array([[0.2, 0.8]])) and not outcome.scored(np.array([[1, 0]]))
    assert not outcome.scored(np.array([[0.2, 0.7, 0.1]])) and not Outcome().scored(np.array([[0.5]]))
    for wrong in (-1, 2):
        with pytest.raises(DataError, match=f"returned the class {wrong}; there are 2"):
            outcome.restored(np.array([0, wrong]))


def test_predictions_of_numbers() -> None:
    assert Outcome((), 10.0, 2.0).restored(np.array([[0.5], [-1.0]], np.float32)).to_pylist() == [11.0, 8.0]
    assert Outcome((), 10.0, 2.0).restored(np.array([[0.5, 1.0]])) is None
    assert Outcome((), 10.0, 2.0).restored(np.array(["a"])) is None
    assert Outcome().restored(np.array([3], np.int64)).type == pa.int64()  # nothing was changed
