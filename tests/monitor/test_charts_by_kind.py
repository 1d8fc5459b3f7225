"""Rungs, lineages, Pareto fronts and all kinds of charts: data exactly, pictures by their labels."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopfleet.domain.messages import (
    RunStarted,
    TrialAdded,
    TrialEnded,
    TrialPaused,
    TrialResumed,
    UnitFinished,
    WorkerJoined,
)
from hopfleet.domain.step_values import StepValues
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.errors import UsageError
from hopfleet.monitor.charts.charts import CHARTS, chart_data, draw_chart
from hopfleet.monitor.charts.lineage import LineageRow, Stretch, lineage_data
from hopfleet.monitor.charts.pareto import front, pareto_data
from hopfleet.monitor.charts.rungs import Rung, rungs_data
from hopfleet.monitor.history import History
from tests.helpers.searched_runs import RATE, Halving, Population, history_of, made, named, texts


def rungs_history() -> History:
    return made(Halving(9, 9), RATE, lambda trial, epoch: {"accuracy": 1 - 1 / epoch - trial.number / 1000})


def lineage_history() -> History:
    return made(Population(4, 6), RATE, lambda trial, epoch: {"accuracy": epoch + trial.number})


def steps_history() -> History:
    rows = {"train": {"rows": 20, "partitions": 1}, "batch_size": 5, "drop_last": False}
    logged = StepValues({"lr": ((0, 2), (0.1, 0.2))})
    messages = [
        RunStarted("1", definition={**rows, "search": {}}),
        WorkerJoined("w0"),
        TrialAdded("t0", 0, {}, seed=0, epochs=1),
        UnitFinished("w0", Unit("t0", 1, 0), 1, 1, 0.0, 1.0, logged=logged),
    ]
    records = [(0.0, message) for message in messages]
    return History.of(records, metric="accuracy", mode="max", partitions=1, name="test")


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


def test_a_trial_that_fails_after_its_promotion_was_promoted() -> None:
    history = history_of(({"lr": 1}, {"accuracy": 0.5}), ({"lr": 2}, {"accuracy": 0.4}))
    for message in (TrialResumed("t0", 3), TrialEnded("t0", TrialState.FAILED, "no"), TrialPaused("t1")):
        history.apply(1.0, message)
    (rung,) = rungs_data(history).rungs
    assert (rung.reached, rung.went_on, rung.paused, rung.ended) == (2, 1, 1, 0)
    assert "1 of 2 trials promoted" in texts(draw_chart(history, "rungs"))


def test_rungs_picture() -> None:
    figure = draw_chart(rungs_history(), "rungs")
    assert len(named(figure, "rung")) == 3
    widths = {count: named(figure, f"t000{trial}")[0].get_linewidth() for trial, count in ((1, 2), (2, 1), (9, 0))}
    assert widths[2] > widths[1] > widths[0]
    assert "3 of 9 trials promoted at least once (thick)" in texts(figure)
    assert {"rung", "reached", "promoted", "paused", "ended", "best"} <= set(texts(figure).splitlines())


def test_a_trial_that_may_go_on_but_has_not_come_so_far_makes_no_rung() -> None:
    history = history_of(({"lr": 1}, None))
    history.apply(1.0, TrialResumed("t0", 5))
    with pytest.raises(UsageError, match="kind='rungs'"):
        rungs_data(history)


def test_without_rungs_the_remedy_is_named(quiet_history: History) -> None:
    with pytest.raises(UsageError, match="was promoted from one rung to the next; kind='curves'"):
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
    assert data.members[-1] == LineageRow("t0006", "t0005", 1, 4.0, 6, [5, 6], [10.0, 11.0], True)
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
    assert "2 clones" in texts(figure) and "blue: the path to t0006, the best" in texts(figure)


def test_the_names_of_clones_can_be_read() -> None:
    """Pale bars have dark names."""
    history = made(
        Population(4, 6),
        RATE,
        lambda trial, epoch: {"accuracy": 9.0 if (trial.number, epoch) == (3, 2) else -epoch - trial.number},
    )
    figure = draw_chart(history, "lineage")
    names = named(figure, "clone name")
    bars = {(round(bar.get_y() + 0.31), bar.get_x()): bar.get_facecolor() for bar in named(figure, "epoch")}
    assert names
    for name in names:
        brightness = sum(bars[round(name.xy[1]), name.xy[0]][:3]) / 3
        assert (name.get_color() == "white") == (brightness < 0.6)


def test_without_clones_the_remedy_is_named(quiet_history: History) -> None:
    with pytest.raises(UsageError, match="this experiment has no clones; use a search that clones"):
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
        UsageError, match=r"needs two or three metrics, not accuracy; the trials report accuracy, loss; give"
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
    "steps": (steps_history, {}),
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
    with pytest.raises(UsageError, match=r"to name a file, give path='chart.png'"):
        draw_chart(quiet_history, "chart.png")
    with pytest.raises(UsageError, match="epoch=3: not an option of kind='curves', which takes metric; remove it"):
        chart_data(quiet_history, "curves", epoch=3)


@pytest.mark.parametrize("kind", ["parallel", "importance"])
def test_before_any_epoch_has_ended_there_is_a_picture_that_says_so(kind: str) -> None:
    assert "yet" in texts(draw_chart(history_of(({"lr": 1}, None), ({"lr": 2}, None)), kind))
