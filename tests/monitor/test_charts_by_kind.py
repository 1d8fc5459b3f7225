"""Parallel coordinates, importances, rungs, lineages and Pareto fronts: data exactly, pictures by their labels."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import hopfleet as hop
from hopfleet.domain.messages import EpochEnded, Message, TrialAdded, TrialResumed
from hopfleet.errors import UsageError
from hopfleet.monitor.charts.charts import CHARTS, chart_data, draw_chart
from hopfleet.monitor.charts.colors import HIGHLIGHTS, shade
from hopfleet.monitor.charts.importance import Importances, importance_data
from hopfleet.monitor.charts.lineage import Member, Stretch, lineage_data
from hopfleet.monitor.charts.parallel import Axis, Line, parallel_data
from hopfleet.monitor.charts.parameters import Scale, fences, parameters, scale_of
from hopfleet.monitor.charts.pareto import front, pareto_data
from hopfleet.monitor.charts.rungs import Rung, rungs_data
from hopfleet.monitor.history import History, Mode
from tests.helpers.searched_runs import Halving, Population, made

RATE = {"lr": hop.loguniform(1e-4, 1e-1)}


def history_of(*trials: tuple[Mapping[str, Any], Mapping[str, float] | None], mode: Mode = "max") -> History:
    """Trials t0, t1, ... with a configuration each and the metrics of their only epoch, if it has ended."""
    messages: list[Message] = []
    for index, (config, metrics) in enumerate(trials):
        messages.append(TrialAdded(f"t{index}", index, config, 0, 1))
        if metrics is not None:
            messages.append(EpochEnded(f"t{index}", 1, 2, metrics, True))
    return History.of([(0.0, each) for each in messages], metric="accuracy", mode=mode, partitions=2, name="digits")


def rungs_history() -> History:
    return made(Halving(9, 9), RATE, lambda trial, epoch: {"accuracy": 1 - 1 / epoch - trial.number / 1000})


def lineage_history() -> History:
    return made(Population(4, 6), RATE, lambda trial, epoch: {"accuracy": epoch + trial.number})


def texts(figure: Figure) -> str:
    found = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    ticks = [label for axes in figure.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    labels = [label for axes in figure.axes for label in (axes.get_xlabel(), axes.get_ylabel(), axes.get_title("left"))]
    return "\n".join([*(text.get_text() for text in (*found, *ticks)), *labels])


def named(figure: Figure, name: str) -> list[Any]:
    return [artist for axes in figure.axes for artist in axes.get_children() if artist.get_gid() == name]


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
    with pytest.raises(UsageError, match="all 2 trials have the same configuration; search over"):
        parallel_data(history_of(({"lr": 1}, {"accuracy": 1.0}), ({"lr": 1}, {"accuracy": 2.0})))


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


# --------------------------------------------------------------------------------------------------- importance


def known_history(function: Callable[..., float], count: int, seed: int) -> History:
    rng = np.random.default_rng(seed)
    configs = [
        {
            "a": float(rng.random()),
            "b": float(10 ** rng.uniform(-4, 0)),
            "c": str(rng.choice(["x", "y", "z"])),
            "d": float(rng.random()),
        }
        for _ in range(count)
    ]
    return history_of(*((config, {"accuracy": function(**config)}) for config in configs))


def by_name(data: Importances) -> dict[str, float]:
    return {entry.name: entry.importance for entry in data.parameters}


def test_importances_of_a_known_function() -> None:
    """Variances: a 9/12, the logarithm of b (over 4 decades, halved) 16/48, c 2/3 of 0.25; d has none."""
    history = known_history(lambda a, b, c, d: 3 * a + 0.5 * math.log10(b) + 0.5 * "xyz".index(c), 200, seed=5)
    data = importance_data(history)
    found = by_name(data)
    whole = 9 / 12 + 16 / 48 + 1 / 6
    assert [entry.name for entry in data.parameters] == ["a", "b", "c", "d"]
    for name, share in {"a": 9 / 12 / whole, "b": 16 / 48 / whole, "c": 1 / 6 / whole, "d": 0.0}.items():
        assert found[name] == pytest.approx(share, abs=0.12), name
    assert data.explained is not None and data.explained > 0.85 and data.notes == []
    assert [entry.clear for entry in data.parameters] == [True, True, True, False]


def test_importances_are_the_same_for_the_same_seed() -> None:
    history = known_history(lambda a, b, c, d: a, 20, seed=1)
    assert importance_data(history) == importance_data(history) != importance_data(history, seed=1)


def test_noise_has_no_importance() -> None:
    rng = np.random.default_rng(0)
    data = importance_data(known_history(lambda **config: float(rng.normal()), 60, seed=2))
    assert not any(entry.clear for entry in data.parameters)
    assert "too little to trust this" in data.notes[-1]


def test_a_conditional_parameter_is_not_credited_with_its_condition() -> None:
    rng = np.random.default_rng(3)
    trials = []
    for index in range(80):
        sgd, momentum = index % 2 == 0, float(rng.random())
        config = {"optimizer": "sgd", "momentum": momentum} if sgd else {"optimizer": "adam"}
        trials.append(({**config, "other": float(rng.random())}, {"accuracy": 1.0 * sgd}))
    found = by_name(importance_data(history_of(*trials)))
    assert found["optimizer"] == pytest.approx(1.0, abs=0.15)
    assert abs(found["momentum"]) < 0.02 and abs(found["other"]) < 0.02


def test_a_parameter_that_is_only_set_or_not_is_one() -> None:
    rng = np.random.default_rng(4)
    trials = [
        ({"lr": float(rng.random()), **({"mix": 1} if n % 3 else {})}, {"accuracy": 1.0 * (n % 3 > 0)})
        for n in range(60)
    ]
    assert by_name(importance_data(history_of(*trials)))["mix"] > 0.7


def test_too_few_trials_say_nothing() -> None:
    history = known_history(lambda a, **others: a, 9, seed=0)
    data = importance_data(history)
    assert (data.parameters, data.explained) == ([], None)
    assert data.notes == ["9 trials with a value: at least 10 are needed to say anything"]
    assert "nothing can be said yet" in texts(draw_chart(history, "importance"))
    few = importance_data(known_history(lambda a, **others: a, 12, seed=0))
    assert few.notes[0] == "12 trials are few for 4 parameters"


def test_trials_of_different_lengths_are_noted_and_can_be_compared_as_equals() -> None:
    history = made(Halving(30, 9), RATE, lambda trial, epoch: {"accuracy": trial.config["lr"] + epoch})
    assert "trials trained for 1 to 9 epochs: epoch=1 compares them as equals" in importance_data(history).notes
    equal = importance_data(history, epoch=1)
    assert equal.trials == 30 and equal.epoch == 1 and not any("epoch=" in note for note in equal.notes)
    with pytest.raises(UsageError, match="epoch=10: no trial has accuracy after it; choose one from 1 to 9"):
        importance_data(history, epoch=10)


def test_importance_names_its_parameters_on_the_picture() -> None:
    figure = draw_chart(known_history(lambda a, **others: a, 40, seed=1), "importance")
    assert {"a", "b", "c", "d"} <= set(texts(figure).splitlines())
    assert "what accuracy at the best epoch depends on" in texts(figure)


# -------------------------------------------------------------------------------------------------------- rungs


def test_rungs_data() -> None:
    """Trials come to a rung in the order of their numbers, so the third that comes lets the first go on."""
    data = rungs_data(rungs_history())
    assert [(rung.epoch, rung.reached, rung.went_on, rung.paused, rung.ended) for rung in data.rungs] == [
        (1, 9, 3, 6, 0),
        (3, 3, 1, 2, 0),
        (9, 1, 0, 0, 1),
    ]
    assert data.rungs[0].best == 0.0 and data.rungs[2] == Rung(9, 1, 0, 0, 1, 1 - 1 / 9)
    first = data.curves[0]
    assert (first.trial, first.state, first.epochs, first.promotions) == ("t0001", "completed", [*range(1, 10)], [1, 3])
    assert sorted(len(curve.promotions) for curve in data.curves) == [0, 0, 0, 0, 0, 0, 1, 1, 2]


def test_rungs_picture() -> None:
    figure = draw_chart(rungs_history(), "rungs")
    assert len(named(figure, "rung")) == 3
    widths = {count: named(figure, f"t000{trial}")[0].get_linewidth() for trial, count in ((1, 2), (2, 1), (9, 0))}
    assert widths[2] > widths[1] > widths[0]
    assert "3 of 9 trials went on (thick)" in texts(figure)
    assert {"rung", "reached", "went on", "paused", "ended", "best"} <= set(texts(figure).splitlines())


def test_a_trial_that_may_go_on_but_has_not_come_so_far_makes_no_rung() -> None:
    history = history_of(({"lr": 1}, None))
    history.apply(1.0, TrialResumed("t0", 5))
    with pytest.raises(UsageError, match="kind='rungs'"):
        rungs_data(history)


def test_without_rungs_the_remedy_is_named(quiet_history: History) -> None:
    with pytest.raises(UsageError, match="was told to go on after a pause; kind='curves'"):
        rungs_data(quiet_history)


# ------------------------------------------------------------------------------------------------------ lineage


def test_lineage_data() -> None:
    """Later numbers are better: t0004 is cloned for t0001 after epoch 2, the clone t0005 for t0002 after 4."""
    history = lineage_history()
    data = lineage_data(history)
    rates = {trial.id: trial.config["lr"] for trial in history.trials.values()}
    assert [(member.trial, member.parent, member.row, member.start, member.end) for member in data.members] == [
        ("t0001", "", 0, 0.0, 2),
        ("t0002", "", 1, 0.0, 4),
        ("t0003", "", 2, 0.0, 6),
        ("t0004", "", 3, 0.0, 6),
        ("t0005", "t0004", 0, 2.0, 6),
        ("t0006", "t0005", 1, 4.0, 6),
    ]
    assert data.members[-1] == Member("t0006", "t0005", 1, 4.0, 6, [5, 6], [10.0, 11.0], True)
    assert data.path == [
        Stretch("t0004", 0.0, 2.0, {"lr": rates["t0004"]}),
        Stretch("t0005", 2.0, 4.0, {"lr": rates["t0005"]}),
        Stretch("t0006", 4.0, 6, {"lr": rates["t0006"]}),
    ]


def test_lineage_picture() -> None:
    figure = draw_chart(lineage_history(), "lineage")
    assert len(named(figure, "clone")) == 2
    assert len(named(figure, "epoch")) == 2 + 4 + 6 + 6 + 4 + 2
    (past,) = named(figure, "past")
    assert list(past.get_xdata()) == [0, 2, 2, 4, 4, 6]
    assert {"lr (log)", "t0001", "t0006", "epoch"} <= set(texts(figure).splitlines())
    assert "2 clones" in texts(figure) and "in blue the past of t0006, the best" in texts(figure)


def test_without_clones_the_remedy_is_named(quiet_history: History) -> None:
    with pytest.raises(
        UsageError, match="no trial of this experiment was cloned from another; use a search that clones"
    ):
        lineage_data(quiet_history)


# ------------------------------------------------------------------------------------------------------- pareto


def test_the_front() -> None:
    points = [(1.0, 1.0), (2.0, 2.0), (2.0, 1.0), (3.0, 2.0), (1.0, 1.0), (0.5, 0.0)]
    assert front(points, ["min", "max"]) == [True, True, False, False, True, True]
    assert front(points, ["max", "max"]) == [False, False, False, True, False, False]
    assert front([], ["min", "max"]) == []


@pytest.mark.parametrize("seed", range(5))
def test_the_front_is_what_its_definition_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 5, (40, 3)).astype(float)
    signs = np.array([1.0, -1.0, 1.0])

    def beats(a: Any, b: Any) -> bool:
        return bool(np.all(signs * a <= signs * b) and np.any(signs * a < signs * b))

    assert front(points.tolist(), ["min", "max", "min"]) == [not any(beats(a, b) for a in points) for b in points]


def pareto_history() -> History:
    values = [(0.9, 9.0, 3.0), (0.8, 2.0, 2.0), (0.7, 3.0, 1.0), (0.6, 1.0, 5.0), (0.5, math.nan, 1.0)]
    rows = [{"accuracy": a, "latency": b, "size": c} for a, b, c in values]
    return history_of(*(({"lr": index}, row) for index, row in enumerate(rows)))


def test_pareto_data() -> None:
    data = pareto_data(pareto_history(), ["accuracy", "latency"], ["max", "min"])
    assert [(point.trial, point.values, point.on_front) for point in data.points] == [
        ("t0", [0.9, 9.0], True),
        ("t1", [0.8, 2.0], True),
        ("t2", [0.7, 3.0], False),
        ("t3", [0.6, 1.0], True),
    ]
    assert data.without == 1
    three = pareto_data(pareto_history(), ["accuracy", "latency", "size"], ["max", "min", "min"])
    assert all(point.on_front for point in three.points)


def test_pareto_picture() -> None:
    options = {"metrics": ["latency", "accuracy"], "modes": ["min", "max"]}
    figure = draw_chart(pareto_history(), "pareto", **options)
    (steps,) = named(figure, "steps")
    assert list(steps.get_xdata())[1:-1] == [1.0, 2.0, 9.0] and list(steps.get_ydata())[1:-1] == [0.6, 0.8, 0.9]
    assert [len(named(figure, name)[0].get_offsets()) for name in ("front", "dominated")] == [3, 1]
    assert {"latency  (← better)", "accuracy  (→ better)", "t0", "t1", "t3"} <= set(texts(figure).splitlines())
    three = draw_chart(pareto_history(), "pareto", metrics=["latency", "accuracy", "size"], modes=["min", "max", "min"])
    assert len(three.axes) == 3


def test_pareto_asks_for_what_it_cannot_know(quiet_history: History) -> None:
    with pytest.raises(
        UsageError, match=r"needs two or three metrics, not accuracy; reported are accuracy, loss; give"
    ):
        pareto_data(quiet_history)
    assert pareto_data(quiet_history, ["accuracy", "loss"]).modes == ["max", "min"]
    with pytest.raises(UsageError, match=r"latency"):
        pareto_data(pareto_history(), ["accuracy", "latency"])
    with pytest.raises(UsageError, match=r"modes=\['up'\]: must be 'min' or 'max' for each of accuracy, loss"):
        pareto_data(quiet_history, ["accuracy", "loss"], ["up"])
    with pytest.raises(UsageError, match=r"metric='f1': no trial reports it"):
        pareto_data(quiet_history, ["accuracy", "f1"])


# ---------------------------------------------------------------------------------------------------- all kinds

SAMPLES: dict[str, tuple[Callable[[], History], dict[str, Any]]] = {
    "rungs": (rungs_history, {}),
    "lineage": (lineage_history, {}),
    "pareto": (pareto_history, {"metrics": ["accuracy", "latency"], "modes": ["max", "min"]}),
}


@pytest.mark.parametrize("kind", CHARTS)
def test_every_kind_draws_and_gives_its_data_as_json(kind: str, quiet_history: History, tmp_path: Path) -> None:
    make, options = SAMPLES.get(kind, (lambda: quiet_history, {}))
    history = make()
    draw_chart(history, kind, tmp_path / "chart.svg", **options)
    assert (tmp_path / "chart.svg").read_bytes().startswith(b"<?xml")
    data = chart_data(history, kind, **options)
    assert json.loads(json.dumps(data, allow_nan=False)).keys() == data.keys()


def test_curves_and_gantt_data(quiet_history: History) -> None:
    curves = chart_data(quiet_history, "curves", metric="loss")
    assert curves["metric"] == "loss" and len(curves["curves"]) == 8
    assert [curve["epochs"] for curve in curves["curves"]] == [[1, 2, 3, 4]] * 8
    gantt = chart_data(quiet_history, "gantt")
    assert gantt["workers"] == ["w0", "w1", "w2"] and len(gantt["spans"]) == len(quiet_history.spans)
    assert min(span["started"] for span in gantt["spans"]) >= 0


def test_unknown_kinds_and_options_are_refused(quiet_history: History) -> None:
    with pytest.raises(
        UsageError, match="kind='pie': must be one of curves, gantt, importance, lineage, parallel, pareto"
    ):
        draw_chart(quiet_history, "pie")
    with pytest.raises(UsageError, match=r"to write that file, give path='chart.png'"):
        draw_chart(quiet_history, "chart.png")
    with pytest.raises(UsageError, match="epoch=3: kind='curves' takes metric; leave it out"):
        chart_data(quiet_history, "curves", epoch=3)


@pytest.mark.parametrize("kind", ["parallel", "importance"])
def test_before_any_epoch_has_ended_there_is_a_picture_that_says_so(kind: str) -> None:
    assert "yet" in texts(draw_chart(history_of(({"lr": 1}, None), ({"lr": 2}, None)), kind))
