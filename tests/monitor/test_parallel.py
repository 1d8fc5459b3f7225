"""Scales of hyper-parameters, and parallel coordinates: data exactly, pictures by their lines and labels."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from hopfleet.errors import UsageError
from hopfleet.monitor.charts.charts import draw_chart
from hopfleet.monitor.charts.colors import HIGHLIGHTS, shade
from hopfleet.monitor.charts.parallel import Axis, Line, parallel_data
from hopfleet.monitor.charts.parameters import Scale, fences, parameters, scale_of
from tests.helpers.searched_runs import history_of, named, texts

# ------------------------------------------------------------------------------------------------------- scales


@pytest.mark.parametrize(
    "values, kind",
    [
        ([1e-4, 1e-3, 1e-2, 1e-1], "log"),
        ([32, 64, 128, 256, 512], "log"),
        ([0.01, 0.25, 0.5, 0.75, 1.0], "linear"),
        ([0.0, 0.1, 10.0], "linear"),
        ([1, 2, 3], "linear"),
        ([True, False], "category"),
        (["adam", 3], "category"),
        ([1.0, math.nan], "category"),
    ],
)
def test_the_scale_follows_from_the_values(values: list[Any], kind: str) -> None:
    assert scale_of(values).kind == kind


@pytest.mark.parametrize("odd", [math.nan, math.inf, "auto", None, 10**400])
def test_one_odd_value_leaves_an_axis_of_numbers(odd: Any) -> None:
    history = history_of(*(({"lr": value}, {"accuracy": 0.5}) for value in (1e-4, 1e-3, 1e-2, odd)))
    data = parallel_data(history)
    assert data.axes[0].scale == "log"
    assert [line.places[0] is None for line in data.lines] == [False, False, False, True]
    shown = texts(draw_chart(history, "parallel"))
    assert ("not set" if odd is None else str(odd)[:9]) in shown


@pytest.mark.parametrize("extreme", [1e99, 1e-99, -1e99])
def test_an_extreme_number_does_not_flatten_the_others(extreme: float) -> None:
    usual = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
    scale = scale_of([*usual, extreme])
    assert (scale.low, scale.high) == (1e-4, 3e-2)
    assert scale_of([-value for value in usual]).kind == "linear"


def test_places_and_ticks() -> None:
    log = scale_of([1, 10, 100])
    assert [log.place(value) for value in (0.1, 1, 10, 100)] == [0.0, 0.0, 0.5, 1.0]
    assert log.ticks() == [(0.0, "1"), (0.5, "10"), (1.0, "100")]
    words = scale_of(["sgd", None, "adam", "sgd"])
    assert words.ticks() == [(0.5 / 3, "None"), (0.5, "adam"), (2.5 / 3, "sgd")]
    assert words.place(None) == 0.5 / 3
    assert [label for _, label in scale_of([index / 10 for index in range(11)]).ticks()] == [
        *("0", "0.2", "0.4", "0.6", "0.8", "1")
    ]
    assert [label for _, label in scale_of([10 ** (index / 9 - 2) for index in range(28)]).ticks()] == [
        *("0.01", "0.1", "1", "10")
    ]
    assert scale_of([5.0, 5.0]).place(5.0) == 0.5


def test_one_value_alone_lies_in_the_middle() -> None:
    assert Scale("linear", 0.25, 0.25).ticks() == [(0.5, "0.25")]


def test_many_categories_have_ticks_that_do_not_touch() -> None:
    ticks = scale_of([f"c{index}" for index in range(100)]).ticks()
    assert all(after - before >= 0.045 for (before, _), (after, _) in pairwise(ticks))


def test_far_out_values_are_beyond_the_fences() -> None:
    assert fences([1.0, 2.0, 3.0, 4.0, 5.0, 1e9]) == (1.0, 5.0)
    assert fences([1.0, 1e9]) == (1.0, 1e9)


def test_constants_and_what_another_parameter_tells_are_left_out() -> None:
    adam, sgd = {"optimizer": {"name": "adam"}}, {"optimizer": {"name": "sgd", "momentum": 0.9}}
    trials = [({**config, "batch": 32, "lr": index}, None) for index, config in enumerate((adam, sgd) * 3)]
    history = history_of(*trials)
    assert [each.name for each in parameters(history.trials.values())] == ["optimizer.name", "lr"]


def test_what_is_set_in_some_trials_alone_is_kept() -> None:
    history = history_of(({"lr": 1.0}, None), ({"lr": 2.0, "decay": 0.1}, None), ({"lr": 3.0}, None))
    (rate, decay) = parameters(history.trials.values())
    assert (rate.name, decay.name, decay.place("t0"), decay.place("t1")) == ("lr", "decay", None, 0.5)


# ----------------------------------------------------------------------------------------------------- parallel


def test_parallel_data() -> None:
    history = history_of(
        ({"net": {"width": 1}, "kind": "a"}, {"accuracy": 0.5}),
        ({"net": {"width": 3}}, {"accuracy": 1.0}),
        ({"net": {"width": 2}, "kind": "b"}, {"accuracy": math.nan}),
    )
    data = parallel_data(history)
    assert data.axes[:2] == [
        Axis("net.width", "linear", [(0.0, "1"), (0.5, "2"), (1.0, "3")]),
        Axis("kind", "category", [(0.25, "a"), (0.75, "b")]),
    ]
    assert (data.axes[2].name, data.axes[2].scale) == ("accuracy", "linear")
    assert data.lines == [
        Line("t1", [3, None, 1.0], [1.0, None, 1.0]),
        Line("t0", [1, "a", 0.5], [0.0, 0.25, 0.0]),
    ]
    assert (data.without, data.outside) == (1, 0)


def test_a_diverged_trial_lies_at_the_end_of_the_axis() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 1e9]
    history = history_of(*(({"lr": index}, {"accuracy": value}) for index, value in enumerate(values)), mode="min")
    data = parallel_data(history)
    assert data.outside == 1 and data.lines[-1].places == [1.0, 1.0]


def test_parallel_of_one_configuration_is_refused() -> None:
    with pytest.raises(UsageError, match="at least two trials with different configurations; search over"):
        parallel_data(history_of(({"lr": 1}, {"accuracy": 1.0}), ({"lr": 1}, {"accuracy": 2.0})))


@pytest.mark.parametrize("value", [0.0, 0.9638888, -1.0])
@pytest.mark.parametrize("count", [2, 5])
def test_parallel_of_trials_that_all_have_the_same_value(value: float, count: int) -> None:
    history = history_of(*(({"lr": index}, {"accuracy": value}) for index in range(count)))
    data = parallel_data(history)
    assert [line.places[-1] for line in data.lines] == [0.5] * count
    assert [place for place, _ in data.axes[-1].ticks] == [0.5]
    draw_chart(history, "parallel").canvas.draw()


@pytest.mark.parametrize("count", [1 + 4, 300])
def test_parallel_lines_best_on_top_and_thick(count: int) -> None:
    history = history_of(
        *(({"lr": 10.0**-index, "deep": index % 2}, {"accuracy": 1.0 * index}) for index in range(count))
    )
    figure = draw_chart(history, "parallel")
    best, other = named(figure, f"t{count - 1}")[0], named(figure, "t0")[0]
    assert best.get_color() == HIGHLIGHTS[0] and best.get_linewidth() == 3.0
    assert best.get_zorder() > other.get_zorder()
    assert {"lr", "deep", "accuracy", "log"} <= set(texts(figure).splitlines())
    assert f"{count} trials" in texts(figure)


def test_shades_go_from_the_worst_to_the_best() -> None:
    assert (shade(-1), shade(0.5), shade(2)) == ("#e9e4da", "#a9b8c6", "#5c7092")
