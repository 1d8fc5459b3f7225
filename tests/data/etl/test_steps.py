"""Steps of tables and statistics by themselves: what each learns from columns, and what it makes of them."""

from __future__ import annotations

import base64
import datetime
import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hopfleet as hop
from hopfleet.data.etl import statistics
from hopfleet.data.etl.statistics import Counts, Moments, Quantiles, from_json, merged, numbers, to_json
from hopfleet.data.etl.steps import _cast
from hopfleet.data.etl.tabular import _by_type, coded
from hopfleet.errors import DataError


def column(*values: Any, kind: pa.DataType | None = None) -> pa.ChunkedArray:
    """Return a column in two chunks."""
    half = len(values) // 2
    made = pa.array(values, kind)
    return pa.chunked_array([made.slice(0, half), made.slice(half)])


def applied(step: Any, *values: Any, to: pa.ChunkedArray | None = None) -> Any:
    """Return what a step that was fitted to values makes of them, or of other ones."""
    fitted = step.fit(column(*values))
    return step.apply(column(*values) if to is None else to, fitted).tolist()


class TestMoments:
    def test_of_numbers(self) -> None:
        assert Moments.of([1.0, 3.0, math.nan]) == Moments(2, 2.0, 2.0, 1.0, 3.0)
        assert Moments.of(column(1, None, 3)) == Moments(2, 2.0, 2.0, 1.0, 3.0)

    @pytest.mark.parametrize("values", [[], [math.nan], column(None, None, kind=pa.int64())])
    def test_of_nothing(self, values: Any) -> None:
        assert Moments.of(values) == Moments() == Moments(0, 0.0, 0.0, math.inf, -math.inf)

    def test_the_deviation_is_safe_to_divide_by(self) -> None:
        assert Moments.of([1.0, 5.0]).deviation == 2.0
        assert Moments.of([1.0, 1.0]).deviation == Moments().deviation == 1.0

    def test_of_two_batches(self) -> None:
        one, other = Moments.of([0.0, 2.0, 4.0]), Moments.of([9.0])
        assert one.merge(other) == Moments.of([0.0, 2.0, 4.0, 9.0])
        assert one.merge(Moments()) is one and Moments().merge(one) is one


class TestCounts:
    def test_of_anything_by_its_text(self) -> None:
        assert Counts.of([1, None, 1, 2.5]).counts == {"1": 2, "2.5": 1}
        assert Counts.of(column("b", None, "a", "b")).counts == {"b": 2, "a": 1}
        assert Counts.of(column(True, False, True)).counts == {"true": 2, "false": 1}

    def test_of_codes_in_the_order_of_their_first_rows(self) -> None:
        codes = pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 2, 0, 0]), pa.array(["c", "unused", "a"]))
        assert [*Counts.of(codes).counts.items()] == [("a", 2), ("c", 3)]

    def test_of_two_batches(self) -> None:
        assert Counts({"a": 1, "b": 2}).merge(Counts({"b": 3, "c": 4})).counts == {"a": 1, "b": 5, "c": 4}

    def test_the_most_frequent_come_first(self) -> None:
        counts = Counts({"z": 1, "b": 2, "a": 2})
        assert counts.common() == ["a", "b", "z"] and counts.common(2) == ["a", "b"]


class TestQuantiles:
    def test_few_numbers_are_exact(self) -> None:
        found = Quantiles.of([4.0, math.nan, 2.0, 1.0, 3.0])
        assert found.values.tolist() == [1.0, 2.0, 3.0, 4.0] and found.weights.tolist() == [1.0] * 4
        # Each number lies in the middle of its share: the first quarter ends between the first two.
        assert [found.at(share) for share in (0.0, 0.125, 0.25, 0.5, 1.0)] == [1.0, 1.0, 1.5, 2.5, 4.0]
        assert math.isnan(Quantiles.of([]).at(0.5))

    def test_many_numbers_are_summed_up_in_points_of_equal_weight(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(statistics, "POINTS", 4)
        assert Quantiles.of([1, 2, 3, 4]).values.tolist() == [1, 2, 3, 4]
        found = Quantiles.of([1, 3, 5, 7, 9, 11, 13, 15])
        assert found.values.tolist() == [2, 6, 10, 14] and found.weights.tolist() == [2.0] * 4
        both = found.merge(Quantiles.of([0, 20]))
        assert both.weights.sum() == 10.0 and (both.values * both.weights).sum() == 84.0
        assert len(both.values) <= 4


class TestMerged:
    def test_each_kind_in_its_way(self) -> None:
        assert merged(2, 3) == 5 and merged(1.5, 2.0) == 3.5 and merged(np.float64(1), 2) == 3
        assert merged({1}, {2}) == merged(frozenset({1}), {2}) == {1, 2}
        assert merged(Counter("ab"), Counter("b")) == Counter("abb")
        assert merged({"a": 1, "b": {"c": 2}}, {"b": {"c": 3, "d": 1}, "e": 4}) == {
            "a": 1,
            "b": {"c": 5, "d": 1},
            "e": 4,
        }
        assert merged(Moments.of([1.0]), Moments.of([3.0])) == Moments.of([1.0, 3.0])

    @pytest.mark.parametrize("value", [True, "text", [1], None])
    def test_what_cannot_be_merged_is_refused(self, value: Any) -> None:
        with pytest.raises(DataError, match=f"returned a {type(value).__name__}, which cannot be merged"):
            merged(value, value)

    def test_what_was_written_is_read_again(self) -> None:
        given = {
            "rows": 3, "share": 0.5, "none": math.inf, "words": {"b", "a"}, "letters": Counter("aab"),
            "inner": {"sum": np.arange(3.0)}, "one": np.int64(7), "moments": Moments.of([1.0, 2.0]), "empty": Moments(),
            "counts": Counts({"x": 2}), "yes": True,
        }  # fmt: skip
        arrays: dict[str, Any] = {}
        written = to_json(given, arrays)
        again = from_json(written, arrays)
        assert [*arrays] == ["array0"] and again.pop("inner")["sum"].tolist() == [0.0, 1.0, 2.0]
        del given["inner"]
        assert again == given and type(again["letters"]) is Counter and type(again["one"]) is int

    def test_sets_are_written_in_order_and_arrays_by_number(self) -> None:
        arrays: dict[str, Any] = {}
        assert to_json({"b", "a"}, arrays) == {"kind": "set", "values": ["a", "b"]}
        assert [to_json(np.zeros(1), arrays)["name"] for _ in range(2)] == ["array0", "array1"]

    def test_nulls_are_filled(self) -> None:
        assert numbers(column(1, None, 3)).tolist() == [1, 0, 3]
        assert numbers(column(1.0, None, 3.0), -1).tolist() == [1.0, -1.0, 3.0]


class TestNumber:
    @pytest.mark.parametrize(
        ("step", "made"),
        [
            (hop.Number(), [-1.0, -1.0, 1.0, 1.0]),
            (hop.Number("range"), [0.0, 0.0, 1.0, 1.0]),
            (hop.Number(None), [2.0, 2.0, 6.0, 6.0]),
        ],
    )
    def test_numbers_are_scaled(self, step: hop.Number, made: list[float]) -> None:
        assert applied(step, 2.0, 2.0, 6.0, 6.0) == made

    @pytest.mark.parametrize("scale", ["standard", "range"])
    def test_equal_numbers_are_zero(self, scale: str) -> None:
        assert applied(hop.Number(scale), 5.0, 5.0) == [0.0, 0.0]

    @pytest.mark.parametrize(("missing", "fill"), [("mean", 3.0), ("median", 2.0), (9, 9.0), (0.0, 0.0)])
    def test_missing_numbers_are_filled(self, missing: Any, fill: float) -> None:
        assert applied(hop.Number(None, missing=missing), 1.0, None, 2.0, 6.0) == [1.0, fill, 2.0, 6.0]

    def test_what_is_no_number_does_not_count_and_fails(self) -> None:
        step = hop.Number(None, missing="mean")
        fitted = step.fit(column("1", "two", "3", "inf", None))
        assert fitted == {"moments": Moments.of([1.0, 3.0])}
        with pytest.raises(pa.ArrowInvalid, match="two"):
            step.apply(column("1", "two"), fitted)
        with pytest.raises(DataError, match="inf is not finite"):
            step.apply(column(1.0, math.inf), fitted)
        with pytest.raises(DataError, match="a value is missing; fill it with"):
            hop.Number().apply(column(1.0, None), fitted)

    def test_quantiles_are_kept_for_the_median_alone(self) -> None:
        assert hop.Number(missing="median").fit(column(1.0)).keys() == {"moments", "quantiles"}
        assert hop.Number(missing="mean").fit(column(1.0)).keys() == {"moments"}


class TestCategory:
    def test_the_most_frequent_come_first_and_others_are_zero(self) -> None:
        fitted = hop.Category().fit(column("x", "y", "y", None))
        assert hop.Category().apply(column("x", "y", "new", None), fitted).tolist() == [2, 1, 0, 0]
        assert hop.Category(at_most=1).apply(column("x", "y", "new", None), fitted).tolist() == [0, 1, 0, 0]

    def test_labels_count_from_zero(self) -> None:
        assert applied(hop.Category(unseen="raise"), "x", "y", "y") == [1, 0, 0]
        assert applied(hop.Category(unseen="raise"), True, False, True) == [0, 1, 0]

    @pytest.mark.parametrize("coded", [False, True])
    def test_labels_that_are_missing_or_new_fail(self, coded: bool) -> None:
        step = hop.Category(unseen="raise")
        fitted = step.fit(column("x", "y"))
        for values, message in (
            (("x", None, "new"), "a value is missing"),
            (("x", "new", None), "'new' is not among the categories of the training rows, x, y; map it"),
        ):
            given = column(*values)
            with pytest.raises(DataError, match=message):
                step.apply(given.dictionary_encode() if coded else given, fitted)

    def test_a_table_has_its_categories_as_codes(self) -> None:
        table = pa.table({"c": ["x", "y"], "d": ["x", "y"], "n": [1, 2]})
        recipe = hop.Tabular({"c": hop.Category(), "d": None, "n": hop.Category(), "absent": hop.Category()})
        found = coded(table, recipe)
        assert [pa.types.is_dictionary(kind) for kind in found.schema.types] == [True, False, False]
        assert found.to_pydict() == table.to_pydict()
        assert coded(table, None) is table and coded(table, hop.Tabular()) is table


class TestDate:
    def test_each_part_is_a_number(self) -> None:
        moment = datetime.datetime(2024, 2, 29, 13, 45, 50)
        parts = ("year", "month", "day", "weekday", "hour", "minute", "second", "age")
        step = hop.Date(parts)
        fitted = step.fit(column(moment, moment + datetime.timedelta(days=2, hours=12)))
        assert fitted.greatest - fitted.least == 2.5
        assert step.apply(column(moment), fitted).tolist() == [[2024, 2, 29, 3, 13, 45, 50, 2.5]]

    def test_text_is_iso_8601_or_of_a_format(self) -> None:
        assert applied(hop.Date(["day"]), "2024-02-01", "2024-02-03") == [[1.0], [3.0]]
        assert applied(hop.Date(["day", "month"], format="%d.%m.%Y"), "01.02.2024") == [[1.0, 2.0]]
        assert hop.Date(["day"]).fit(column("2024-02-01")) == {}

    def test_what_is_no_date_does_not_count_and_fails(self) -> None:
        for step, texts in (
            (hop.Date(["age"]), ("2024-02-01", "soon")),
            (hop.Date(["age"], format="%d.%m.%Y"), ("01.02.2024", "soon")),
        ):
            fitted = step.fit(column(*texts))
            assert fitted.count == 1
            with pytest.raises((DataError, pa.ArrowInvalid), match="soon"):
                step.apply(column(*texts), fitted)
        with pytest.raises(DataError, match="a value is missing; fill it in"):
            hop.Date(["day"]).apply(column("2024-02-01", None), {})

    def test_clocks_are_those_of_the_zone(self) -> None:
        berlin = pa.chunked_array([pa.array([0, 1], pa.timestamp("s", "Europe/Berlin"))])

        def hours(step: Any, times: Any) -> Any:
            return step.apply(times, {})[:, 0].tolist()

        assert hours(hop.Date(["hour"]), berlin) == [1.0, 1.0]
        assert hours(hop.Date(["hour"], zone="Asia/Tokyo"), berlin) == [9.0, 9.0]
        texts = column("1970-01-01T00:00:00Z", "1970-01-01 02:30:00+01:00")
        assert hours(hop.Date(["hour"]), texts) == [0.0, 1.0]
        assert hours(hop.Date(["hour"], zone="Asia/Tokyo"), texts) == [9.0, 10.0]
        assert hours(hop.Date(["hour"], zone="Asia/Tokyo"), column("1970-01-01 02:30:00")) == [2.0]
        with pytest.raises(DataError, match=r"zone='Europe/Berln': is not a time zone; did you mean 'Europe/Berlin'"):
            hop.Date(zone="Europe/Berln")

    def test_recipes_of_before_have_their_clocks(self) -> None:
        text = "gASVQAAAAAAAAACMGWhvcGZsZWV0LmRhdGEuZXRsLnRhYnVsYXKUjAREYXRllJOUKYGUXZQojANkYXmUjARob3VylIaUjACUZWIu"
        old = pickle.loads(base64.b64decode(text))
        assert old == hop.Date(("day", "hour"), zone="UTC")
        assert pickle.loads(pickle.dumps(hop.Date(["day"]))) == hop.Date(["day"])
        assert repr(hop.Date(("day",))) == "Date(parts=('day',), format='')"  # by which data sets know their recipes

    def test_at_least_one_part_is_wanted(self) -> None:
        with pytest.raises(DataError, match="must name at least one of year"):
            hop.Date([])


class TestText:
    def test_words_are_ranked(self) -> None:
        step = hop.Text()
        fitted = step.fit(column("", "to be or", None, "to be", "to"))
        assert fitted.counts == {"to": 3, "be": 2, "or": 1}
        assert [row.tolist() for row in step.apply(column("be to new", ""), fitted)] == [[2, 1, 0], []]
        assert [row.tolist() for row in hop.Text(at_most=1).apply(column("be to"), fitted)] == [[0, 1]]
        made = hop.Text(length=2).apply(column("be to or", "or"), fitted)
        assert made.tolist() == [[2, 1], [3, 0]]

    def test_numbers_of_a_tokenizer_stay(self) -> None:
        step = hop.Text(lambda text: {"input_ids": map(len, text.split())})
        fitted = step.fit(column("one three"))
        assert fitted.counts == {} and [row.tolist() for row in step.apply(column("one three"), fitted)] == [[3, 5]]

    def test_what_is_no_text_fails(self) -> None:
        assert hop.Text().fit(column(1, 2)).counts == {}
        with pytest.raises(DataError, match="1 is not text; read the column as"):
            hop.Text().apply(column(1, 2), Counts({}))
        with pytest.raises(DataError, match="a value is missing; fill it in"):
            hop.Text().apply(column("a", None), Counts({}))

    @pytest.mark.parametrize("name", ["at_most", "length"])
    @pytest.mark.parametrize("value", [0, -1, 1.0, True, "3"])
    def test_limits_are_integers_of_at_least_one(self, name: str, value: Any) -> None:
        with pytest.raises(DataError, match=f"{name}=.*must be an integer of at least 1"):
            hop.Text(**{name: value})
        assert getattr(hop.Text(**{name: 1}), name) == 1


class TestTables:
    def test_types_decide_without_steps(self) -> None:
        kinds = {
            pa.int8(): "Number", pa.float32(): "Number", pa.decimal128(5): "Number", pa.date32(): "Date",
            pa.timestamp("s"): "Date", pa.string(): "Category", pa.large_string(): "Category", pa.bool_(): "Category",
            pa.list_(pa.int8()): "NoneType",
        }  # fmt: skip
        assert {kind: type(_by_type(kind)).__name__ for kind in kinds} == kinds
        assert _by_type(pa.int8()) == hop.Number(missing="mean")

    def test_numbers_and_dates_are_stacked_and_labels_are_not(self) -> None:
        table = pa.table({"a": [1, 3], "d": ["2024-02-01", "2024-02-03"], "y": [5, 7], "c": ["x", "x"], "id": [8, 9]})
        steps = {"a": hop.Number(None), "d": hop.Date(["day", "month"]), "y": hop.Number(None), "c": hop.Category()}
        recipe = hop.Tabular({**steps, "id": None}, stack="x", labels="y")
        made = recipe.apply(table, recipe.fit(table))
        assert [*made] == ["x", "y", "c", "id"]
        assert np.asarray(made["x"]).tolist() == [[1, -1, 0], [3, 1, 0]] and np.asarray(made["y"]).tolist() == [5, 7]
        unscaled = recipe.apply(table, {**recipe.fit(table), "d": {}})  # as release 0.1 has fitted it
        assert np.asarray(unscaled["x"]).tolist() == [[1, 1, 2], [3, 3, 2]]
        assert "x" not in hop.Tabular({"c": None}, stack="x").apply(table, {})

    def test_stacked_dates_have_the_scale_of_the_numbers_beside_them(self) -> None:
        days = ["1950-12-31 23:00", "2024-01-01 00:00", "1999-06-15 12:30", None, "soon"]
        table, good = pa.table({"d": days}), pa.table({"d": days[:3]})
        for step, lines in (
            (hop.Date(), [0, 1, 2, 3, 4]),
            (hop.Date(["age", "hour", "year"], cyclic=True), [0, 3]),
            (hop.Date(["month", "age"], cyclic=True), [2]),
        ):
            recipe = hop.Tabular({"d": step}, stack="x")
            fitted = merged(recipe.fit(table.slice(0, 2)), recipe.fit(table.slice(2)))
            made = np.asarray(recipe.apply(good, fitted)["x"], np.float64)
            plain = np.asarray(step.apply(good.column("d"), fitted["d"]["age"]), np.float64)
            wanted = plain.copy()
            wanted[:, lines] = (plain[:, lines] - plain[:, lines].mean(0)) / plain[:, lines].std(0)
            assert np.allclose(made, wanted, atol=1e-4)
            assert abs(made).max() < 2.5

    @pytest.mark.parametrize(
        "values", [pa.array([1.5]), pa.array([[1]]), pa.array([True])], ids=lambda one: str(one.type)
    )
    @pytest.mark.parametrize("step", [hop.Date(), hop.Date(["age"])])
    def test_a_column_that_has_no_dates_is_named(self, step: hop.Date, values: pa.Array) -> None:
        with pytest.raises(DataError, match=r"^column 'd': Unsupported cast"):
            hop.Tabular({"d": step}, stack="x").fit(pa.table({"d": values}))

    def test_only_labels_may_be_absent_from_rows_to_predict(self) -> None:
        recipe = hop.Tabular({"a": hop.Number(None), "y": hop.Number(None)}, labels=["y"])
        fitted = recipe.fit(pa.table({"a": [1], "y": [2]}))
        assert [*recipe.apply(pa.table({"a": [1]}), fitted)] == ["a"]
        with pytest.raises(DataError, match="has no column 'a'"):
            recipe.apply(pa.table({"y": [1]}), fitted)
        with pytest.raises(DataError, match="has no column 'y'"):
            recipe.fit(pa.table({"a": [1]}))

    def test_a_fault_is_told_with_its_column_and_in_one_line(self) -> None:
        recipe = hop.Tabular({"a": hop.Number()})
        with pytest.raises(DataError, match=r"^column 'a': .*") as caught:
            recipe.apply(pa.table({"a": ["x"]}), {"a": {"moments": Moments()}})
        assert "\n" not in str(caught.value)

    def test_tokenizers_run_in_processes(self) -> None:
        assert hop.Tabular().threads is hop.Tabular({"a": hop.Number()}).threads is True
        assert hop.Tabular({"a": hop.Number(), "t": hop.Text()}).threads is False

    def test_values_that_cannot_be_converted_are_missing_unless_strict(self) -> None:
        assert _cast(column("1", "x", "3", None), pa.int64(), strict=False).to_pylist() == [1, None, 3, None]
        assert _cast(column("1", "2"), pa.int64(), strict=True).to_pylist() == [1, 2]
        with pytest.raises(pa.ArrowInvalid):
            _cast(column("1", "x"), pa.int64(), strict=True)
