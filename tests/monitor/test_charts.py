"""The charts, by the artists on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Text

from hopfleet.domain.messages import (
    EpochEnded,
    Message,
    RunHeld,
    RunStarted,
    TrialAdded,
    TrialEnded,
    TrialPaused,
    WorkerLost,
)
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Work
from hopfleet.errors import UsageError
from hopfleet.monitor.charts.charts import draw_chart
from hopfleet.monitor.charts.colors import HIGHLIGHTS, highlighted, trial_colors
from hopfleet.monitor.charts.curves import draw_curves
from hopfleet.monitor.charts.gantt import draw_gantt
from hopfleet.monitor.history import History
from hopfleet.monitor.wording import makespan
from tests.helpers.simulated_journal import START

Records = list[tuple[float, Message]]
Simulate = Callable[..., Records]


def history_of(records: Records, *, partitions: int = 4, name: str = "digits") -> History:
    return History.of(records, metric="accuracy", mode="max", partitions=partitions, name=name)


def curves_history(*curves: list[float], failed: tuple[int, ...] = ()) -> History:
    messages: list[Message] = [TrialAdded(f"t{n}", n, {"lr": n}, n, 9) for n in range(len(curves))]
    for number, values in enumerate(curves):
        messages += [
            EpochEnded(f"t{number}", epoch, epoch, {"accuracy": value}, True) for epoch, value in enumerate(values, 1)
        ]
    messages += [TrialEnded(f"t{number}", TrialState.FAILED, "no") for number in failed]
    return history_of([(1.0, message) for message in messages], partitions=1)


def axes_of(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def bars(figure: Figure, name: str) -> int:
    (collection,) = [each for each in axes_of(figure).collections if each.get_gid() == name]
    return len(collection.get_paths())


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in [*figure.texts, *axes_of(figure).texts]]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def crosses(figure: Figure) -> int:
    failures = [each for each in axes_of(figure).collections if to_hex(each.get_edgecolor()[0]) == "#c1272d"]
    return sum(len(each.get_offsets()) for each in failures)


# ------------------------------------------------------------------------------------------------- colours


def test_the_best_trials_have_the_strong_colours_in_their_order(quiet_history: History) -> None:
    colors = trial_colors(quiet_history)
    assert [colors[trial.id] for trial in quiet_history.leaderboard()[:5]] == list(HIGHLIGHTS)
    assert len(set(colors.values())) == len(quiet_history.trials)


def test_trials_without_a_value_are_never_highlighted() -> None:
    history = curves_history([0.5], [], [math.nan])
    assert [trial.id for trial in highlighted(history)] == ["t0"]


# -------------------------------------------------------------------------------------------------- curves


@pytest.mark.parametrize("count", [1, 3, 60])
def test_one_line_per_trial_and_labels_for_the_best(simulate: Simulate, count: int) -> None:
    history = history_of(simulate(trials=count, partitions=1, epochs=3), partitions=1)
    figure = draw_curves(history)
    assert len(axes_of(figure).lines) == count
    labelled = [text.split()[0] for text in texts(figure) if "at epoch" in text]
    assert labelled == [trial.id for trial in history.leaderboard()[:5]]


def test_highlighted_lines_wear_their_trials_colours(quiet_history: History) -> None:
    worn = [line.get_color() for line in axes_of(draw_curves(quiet_history)).lines]
    assert worn[-5:] == list(HIGHLIGHTS) and len(set(worn[:-5])) == 1


def test_labels_do_not_overlap() -> None:
    figure = draw_curves(curves_history(*([0.5, 0.9 + number / 1e6] for number in range(5))))
    FigureCanvasAgg(figure).draw()
    boxes = sorted(
        (Text.get_window_extent(text) for text in axes_of(figure).texts if "at epoch" in text.get_text()),
        key=lambda box: float(box.y0),
    )
    assert len(boxes) == 5
    assert all(lower.y1 <= upper.y0 for lower, upper in pairwise(boxes))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height for box in boxes)


def test_failed_trials_end_with_a_cross() -> None:
    figure = draw_curves(curves_history([0.1, 0.2], [0.3], [], [math.nan], failed=(0, 2, 3)))
    assert crosses(figure) == 3, "those without a value, too"
    assert "3 failed (×)" in figure.texts[1].get_text()


def test_stopped_and_paused_trials_end_with_a_mark() -> None:
    history = curves_history([0.1, 0.2], [0.3], [0.4, 0.5])
    history.apply(2.0, TrialEnded("t0", TrialState.STOPPED, "the median"))
    history.apply(2.0, TrialPaused("t1"))
    figure = draw_curves(history)
    assert sum(each.get_gid() == "stopped" for each in axes_of(figure).collections) == 2
    assert "3 trials, 1 paused (|), 1 stopped (|)" in figure.texts[1].get_text()


def test_an_absurd_value_neither_breaks_nor_flattens_the_curves() -> None:
    figure = draw_curves(curves_history([0.1, 0.2], [0.3, 1.7e308], [0.2, -1.7e308], [0.3, 0.4]))
    low, high = axes_of(figure).get_ylim()
    assert -1 < low < high < 1


@pytest.mark.parametrize("metric", ["accuracy", "a" * 300])
def test_facts_stay_inside_the_figure(metric: str) -> None:
    histories = [TrialAdded(f"t{n}", n, {"lr": n}, n, 1) for n in range(3)]
    ends = [EpochEnded(f"t{n}", 1, 1, {metric: n / 9, "latency": 3.0 - n}, True) for n in range(3)]
    history = History.of(
        [(1.0, message) for message in (*histories, *ends)], metric=metric, mode="max", partitions=1, name="d" * 200
    )
    figure = draw_chart(history, "pareto", metrics=[metric, "latency"], modes=["max", "min"])
    assert all(text.get_window_extent().x1 <= figure.bbox.width for text in figure.texts)


def test_the_title_names_the_experiment_the_metric_and_what_is_better(quiet_history: History) -> None:
    title, facts = (text.get_text() for text in draw_curves(quiet_history).figure.texts)
    assert title == "digits" and facts.startswith("accuracy by epoch, higher is better")
    assert axes_of(draw_curves(quiet_history, metric="loss")).get_ylabel() == "loss"


def test_values_that_are_not_finite_leave_gaps() -> None:
    (line,) = axes_of(draw_curves(curves_history([0.1, math.nan, 0.3, math.inf]))).lines
    assert list(line.get_xdata()) == [1, 3]


def test_a_diverged_trial_does_not_squeeze_the_others() -> None:
    figure = draw_curves(curves_history(*([0.1 * n, 0.1 * n + 0.05] for n in range(20)), [-1e6, -1e9]))
    assert axes_of(figure).get_ylim()[0] > -1
    assert "2 values outside the axis" in texts(figure)


def test_an_unknown_metric_is_refused(quiet_history: History) -> None:
    with pytest.raises(UsageError, match=r"metric='f1': no trial reports it; choose one of accuracy, loss"):
        draw_curves(quiet_history, metric="f1")


# --------------------------------------------------------------------------------------------------- gantt


def test_one_bar_per_unit_and_evaluation(eventful_history: History) -> None:
    figure, spans = draw_gantt(eventful_history), eventful_history.spans
    assert bars(figure, "unit") == sum(span.work is Work.TRAIN and not span.undone for span in spans)
    assert bars(figure, "evaluation") == sum(span.work is Work.EVALUATE and not span.undone for span in spans)
    assert bars(figure, "undone") == sum(span.undone for span in spans)
    assert crosses(figure) == 1


def test_one_row_per_worker_with_how_busy_it_was(simulate: Simulate) -> None:
    figure = draw_gantt(history_of(simulate(workers=11, trials=20, epochs=1)))
    assert [label.get_text() for label in axes_of(figure).get_yticklabels()] == [f"w{n}" for n in range(11)]
    assert sum(text.endswith("%") for text in texts(figure)) == 11


def test_what_was_predicted_is_drawn_beneath(quiet_history: History) -> None:
    late = [replace(span, started=span.started - START, ended=span.ended - START + 5) for span in quiet_history.spans]
    figure = draw_gantt(quiet_history, predicted=late)
    (before,) = [each for each in axes_of(figure).collections if each.get_gid() == "predicted"]
    (units,) = [each for each in axes_of(figure).collections if each.get_gid() == "unit"]
    assert bars(figure, "predicted") == len(late)
    lanes = {path.vertices[:, 1].min() for path in before.get_paths()}
    assert not lanes & {path.vertices[:, 1].min() for path in units.get_paths()}
    end = max(span.ended for span in late)
    assert axes_of(figure).get_xlim()[1] == pytest.approx(end)
    took = max(span.ended for span in quiet_history.spans) - START
    assert f"took {makespan(took)}, predicted {makespan(end)}" in " ".join(texts(figure))
    assert "predicted" in legend(figure)


def test_without_a_prediction_nothing_of_it_is_drawn(quiet_history: History) -> None:
    figure = draw_gantt(quiet_history)
    assert not [each for each in axes_of(figure).collections if each.get_gid() == "predicted"]
    assert "predicted" not in " ".join(texts(figure))
    assert "predicted" not in legend(figure)


def test_a_prediction_is_left_out_of_a_resumed_run(eventful_history: History) -> None:
    figure = draw_gantt(eventful_history, predicted=eventful_history.spans)
    assert "predicted" not in " ".join(texts(figure))


def test_a_prediction_for_others_is_left_out(quiet_history: History) -> None:
    span = replace(quiet_history.spans[0], started=0.0, ended=1.0)
    others = [span, replace(span, worker="w99"), replace(span, trial="t9999")]
    assert bars(draw_gantt(quiet_history, predicted=others), "predicted") == 1


def test_while_it_runs_only_the_prediction_is_told(simulate: Simulate) -> None:
    history = history_of(simulate()[:-1])
    span = replace(history.spans[0], started=0.0, ended=90.0)
    text = " ".join(texts(draw_gantt(history, predicted=[span])))
    assert "predicted 1m 30s" in text
    assert "took" not in text


def test_the_best_trials_hops_are_arrows(quiet_history: History) -> None:
    leader = quiet_history.best()
    assert leader is not None
    workers = [unit.worker for unit in leader.units]
    hops = sum(before != after for before, after in pairwise(workers))
    arrows = [patch for patch in axes_of(draw_gantt(quiet_history)).patches if isinstance(patch, FancyArrowPatch)]
    assert 0 < len(arrows) == hops


def test_partitions_are_written_only_where_they_fit(simulate: Simulate) -> None:
    few = history_of(simulate(trials=2, workers=2, epochs=1))
    assert sum(text in "0123" for text in texts(draw_gantt(few))) == 8
    many = history_of(simulate(trials=40, workers=2, epochs=10))
    assert sum(text in "0123" for text in texts(draw_gantt(many))) == 0


@pytest.mark.parametrize("gap, cut", [(5.0, False), (5000.0, True)])
def test_only_a_long_break_between_runs_is_cut(simulate: Simulate, gap: float, cut: bool) -> None:
    history = history_of(simulate(eventful=True, gap=gap))
    figure = draw_gantt(history)
    assert any(text.startswith("break of 1h") for text in texts(figure)) is cut
    assert axes_of(figure).get_xlim()[1] == pytest.approx(history.elapsed * 1.03 if cut else history.elapsed + gap)


def test_the_gantt_counts_what_it_draws(eventful_history: History) -> None:
    figure = draw_gantt(eventful_history)
    bars = {each.get_gid(): len(each.get_paths()) for each in axes_of(figure).collections}
    failed = sum(span.failed for span in eventful_history.spans)
    assert f"{bars['unit'] - failed} units, {bars['evaluation']} evaluations" in figure.texts[1].get_text()


def test_a_pause_is_explained(simulate: Simulate) -> None:
    records = simulate()
    half = records[: len(records) // 2]
    history = history_of(half)
    before = history.elapsed
    paused = history.updated or 0.0
    history.apply(paused, RunHeld(True))
    history.apply(paused + 30, RunHeld(True))
    assert history.elapsed == before, "the clock stands still"
    assert "paused 30s" in texts(draw_gantt(history))
    history.apply(paused + 40, RunHeld(False))
    history.apply(paused + 50, RunStarted("0"))
    assert history.elapsed == pytest.approx(before)
    assert "paused 40s" in texts(draw_gantt(history))


def test_a_pause_ends_with_its_run(simulate: Simulate) -> None:
    history = history_of(simulate()[:50])
    paused = history.updated or 0.0
    history.apply(paused, RunHeld(True))
    history.apply(paused + 20, WorkerLost("w0", "killed"))
    history.apply(paused + 1000, RunStarted("0"))
    assert history.holds == [(paused, paused + 20)]
    assert not history.held


def test_long_names_of_workers_stay_on_the_paper(simulate: Simulate) -> None:
    records = simulate(trials=2, epochs=1)
    history = history_of(records)
    history.workers["node-0017.cluster.example.org:3"] = history.workers["w0"]
    figure = draw_gantt(history)
    FigureCanvasAgg(figure).draw()
    assert all(label.get_window_extent().x0 >= 0 for label in axes_of(figure).get_yticklabels())


# ------------------------------------------------------------------------------------------------ both charts


@pytest.mark.parametrize("draw", [draw_curves, draw_gantt])
@pytest.mark.parametrize("suffix, magic", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_suffix_decides_the_format(
    draw: Callable[[History, Path], Figure], suffix: str, magic: bytes, tmp_path: Path, quiet_history: History
) -> None:
    path = tmp_path / f"chart.{suffix}"
    draw(quiet_history, path)
    assert path.read_bytes().startswith(magic)


@pytest.mark.parametrize("draw", [draw_curves, draw_gantt])
def test_other_suffixes_are_refused(draw: Callable[[History, str], Figure], quiet_history: History) -> None:
    with pytest.raises(UsageError, match=r"path='chart.docx': must end in one of .pdf, .png, .svg"):
        draw(quiet_history, "chart.docx")


@pytest.mark.parametrize("draw", [draw_curves, draw_gantt])
def test_charts_of_an_empty_history_say_so(draw: Callable[[History, Path], Figure], tmp_path: Path) -> None:
    figure = draw(history_of([]), tmp_path / "empty.png")
    assert any("ended yet" in text for text in texts(figure))


@pytest.mark.parametrize("draw", [draw_curves, draw_gantt])
def test_dollar_signs_are_not_mathematics(
    draw: Callable[[History, Path], Figure], tmp_path: Path, simulate: Simulate
) -> None:
    draw(history_of(simulate(trials=2, epochs=1), name=r"cost $\frac$ \$"), tmp_path / "dollars.png")


@pytest.mark.parametrize("draw", [draw_curves, draw_gantt])
def test_nothing_global_in_matplotlib_is_touched(
    draw: Callable[[History, Path], Figure], tmp_path: Path, quiet_history: History
) -> None:
    before = dict.copy(matplotlib.rcParams)
    draw(quiet_history, tmp_path / "chart.png")
    assert dict.copy(matplotlib.rcParams) == before


def test_a_notebook_can_display_a_chart(quiet_history: History) -> None:
    figure = draw_chart(quiet_history, "curves")
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_chart_can_be_shown_without_a_screen(quiet_history: History) -> None:
    from matplotlib import pyplot

    figure = draw_chart(quiet_history, "curves")
    figure.show()
    assert pyplot.gcf() is figure
    pyplot.close(figure)
