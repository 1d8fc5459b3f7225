"""Steps beyond scaling and coding: logarithms, quantiles, indicators, one-hot codes, cycles, and steps of one's own."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import hopfleet as hop
from hopfleet.data.etl.recipe import fingerprint
from hopfleet.errors import DataError

TABLE = {"n": [0.0, 9.0, 99.0, 999.0], "c": ["b", "a", "b", "z"], "y": [1.0, 2.0, 3.5, 4.0]}


def made(tmp_path: Path, columns: dict[str, Any], table: Any = TABLE, **options: Any) -> dict[str, Any]:
    recipe = hop.Tabular(columns, **options)
    data = hop.prepare(table, tmp_path / "set", recipe, partitions=1, overwrite=True)
    prepared = hop.load_recipe(data)
    rows = pa.table(table) if isinstance(table, dict) else pa.Table.from_pandas(table)
    return {name: np.asarray(values) for name, values in prepared.apply(*prepared.given(rows)).items()}


def test_logarithms(tmp_path: Path) -> None:
    logs = np.log1p(TABLE["n"])
    wanted = (logs - logs.mean()) / logs.std()
    assert made(tmp_path, {"n": hop.Number(scale="log")})["n"] == pytest.approx(wanted, abs=1e-6)
    holes = {"n": [0.0, None, 99.0]}
    found = made(tmp_path, {"n": hop.Number(scale="log", missing=9.0)}, holes)["n"]
    assert found[1] == pytest.approx((np.log1p(9) - logs[[0, 2]].mean()) / logs[[0, 2]].std(), abs=1e-6)
    assert made(tmp_path, {"n": hop.Number(scale="log", missing="mean")}, holes)["n"][1] == 0
    with pytest.raises(DataError, match=r"column 'n': -1 has no logarithm; scale='log' takes numbers above -1"):
        made(tmp_path, {"n": hop.Number(scale="log")}, {"n": [3.0, -1.0]})


def test_predictions_of_logarithms_come_back_in_their_unit(tmp_path: Path) -> None:
    data = hop.prepare(TABLE, tmp_path / "set", hop.Tabular({"n": hop.Number("log")}, labels="n"), partitions=1)
    outcome = hop.load_recipe(data).outcomes["n"]
    assert outcome.kind == "a number" and outcome.scaled
    prices = np.sort(outcome.restored(data.head(4)["n"]).to_numpy())
    assert prices == pytest.approx(TABLE["n"], rel=1e-5, abs=1e-5)


def test_quantiles(tmp_path: Path) -> None:
    found = made(tmp_path, {"n": hop.Number(scale="quantile")})["n"]
    assert found == pytest.approx([0.125, 0.375, 0.625, 0.875])
    same = made(tmp_path, {"n": hop.Number(scale="quantile")}, {"n": [5.0, 5.0, 5.0, 7.0]})["n"]
    assert same == pytest.approx([0.375, 0.375, 0.375, 0.875])
    many = np.random.default_rng(0).normal(size=20_000)
    found = made(tmp_path, {"n": hop.Number(scale="quantile")}, {"n": many})["n"]
    assert found == pytest.approx((np.argsort(np.argsort(many)) + 0.5) / len(many), abs=2e-3)


def test_what_is_missing_is_indicated(tmp_path: Path) -> None:
    table = {"n": [1.0, None, 3.0], "m": [1.0, 2.0, 3.0]}
    columns = {"n": hop.Number(None, missing="mean", indicator=True), "m": hop.Number(None)}
    assert made(tmp_path, columns, table)["n"].tolist() == [[1.0, 0.0], [2.0, 1.0], [3.0, 0.0]]
    stacked = made(tmp_path, columns, table, stack="x")["x"]
    assert stacked.tolist() == [[1.0, 0.0, 1.0], [2.0, 1.0, 2.0], [3.0, 0.0, 3.0]]
    with pytest.raises(DataError, match=r"indicator=True: says which values are missing; fill them"):
        hop.Number(indicator=True)


def test_one_hot_codes(tmp_path: Path) -> None:
    found = made(tmp_path, {"c": hop.Category(one_hot=True, at_most=2)})["c"]
    assert found.dtype == np.float32
    assert found.tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]  # others, b, a
    assert made(tmp_path, {"c": hop.Category("raise", one_hot=True)})["c"].shape == (4, 3)
    both = made(tmp_path, {"n": hop.Number(None), "c": hop.Category(one_hot=True)}, stack="x")["x"]
    assert both.shape == (4, 5) and both[:, 0].tolist() == TABLE["n"]
    with pytest.raises(DataError, match="one_hot=True: there are 5,001 categories, and at most 4,096"):
        made(tmp_path, {"c": hop.Category(one_hot=True)}, {"c": [f"c{number}" for number in range(5000)]})


def test_cycles(tmp_path: Path) -> None:
    table = {"d": ["2024-01-01T00:00", "2024-01-01T06:00", "2023-07-03T23:00"]}
    found = made(tmp_path, {"d": hop.Date(["year", "hour"], cyclic=True)}, table)["d"]
    assert found[:, 0].tolist() == [2024.0, 2024.0, 2023.0]
    assert found[:, 1:] == pytest.approx(
        np.array([[0, 1], [1, 0], [np.sin(2 * np.pi * 23 / 24), np.cos(2 * np.pi * 23 / 24)]]), abs=1e-6
    )


class Ranked:
    """A step with statistics."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def fit(self, values: Any) -> Any:
        return {"sum": float(np.nansum(values)), "rows": len(values)}

    def apply(self, values: Any, fitted: Any) -> Any:
        return (self.factor * values - fitted["sum"] / fitted["rows"]).astype("f4")


def test_steps_of_ones_own(tmp_path: Path) -> None:
    found = made(tmp_path, {"n": lambda values: np.sqrt(values), "c": lambda values: [len(text) for text in values]})
    assert found["n"].tolist() == np.sqrt(TABLE["n"]).tolist() and found["c"].tolist() == [1, 1, 1, 1]
    found = made(tmp_path, {"y": Ranked(2.0), "n": hop.Number(None)}, stack="x")
    assert found["y"].tolist() == [-0.625, 1.375, 4.375, 5.375] and found["x"].shape == (4, 1)
    with pytest.raises(DataError, match="column 'n': the step made 1 rows of 4; return a value for each"):
        made(tmp_path, {"n": lambda values: [values.sum()]})
    with pytest.raises(DataError, match=r"columns=\{'n': 'log'\}: must be .*a function of the values"):
        hop.Tabular({"n": "log"})  # type: ignore[dict-item]
    with pytest.raises(DataError, match=r"columns=\{'n': .*Ranked.*\}: must be"):
        hop.Tabular({"n": Ranked})


def test_a_data_set_knows_the_code_of_steps(tmp_path: Path) -> None:
    def twice(values: Any) -> Any:
        return values * 2

    def thrice(values: Any) -> Any:
        return values * 3

    assert fingerprint(hop.Tabular({"n": twice})) != fingerprint(hop.Tabular({"n": thrice}))
    assert fingerprint(hop.Tabular({"n": Ranked(2.0)})) != fingerprint(hop.Tabular({"n": Ranked(3.0)}))
    assert fingerprint(hop.Tabular({"n": Ranked(2.0)})) == fingerprint(hop.Tabular({"n": Ranked(2.0)}))


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (hop.Number(), "Number(scale='standard', missing='raise')"),
        (hop.Number(missing="mean", indicator=True), "Number(scale='standard', missing='mean', indicator=True)"),
        (hop.Category(), "Category(unseen='other', at_most=None)"),
        (hop.Category(one_hot=True), "Category(unseen='other', at_most=None, one_hot=True)"),
    ],
)
def test_data_sets_of_before_know_their_steps(step: Any, text: str) -> None:
    assert repr(step) == text
    assert pickle.loads(pickle.dumps(step)) == step
    restored = type(step).__new__(type(step))
    restored.__setstate__(step.__getstate__()[:2])
    assert restored == type(step)(*step.__getstate__()[:2])


def test_labels_take_no_steps_whose_terms_are_lost() -> None:
    for step in (hop.Number(scale="quantile"), hop.Category("raise", one_hot=True)):
        with pytest.raises(DataError, match="is among labels=, and predictions could not be given back in its terms"):
            hop.Tabular({"y": step}, labels="y")


def test_pandas_sees_the_same(tmp_path: Path) -> None:
    frame = pd.DataFrame(TABLE)
    found = made(tmp_path, {"c": hop.Category("raise", one_hot=True)}, frame)["c"]
    assert found.astype(int).tolist() == pd.get_dummies(frame["c"])[["b", "a", "z"]].astype(int).to_numpy().tolist()
