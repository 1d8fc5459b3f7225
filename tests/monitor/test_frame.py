"""The history as DataFrames."""

from __future__ import annotations

import math

from hopfleet.domain.messages import EpochEnded, TrialAdded, TrialEnded
from hopfleet.domain.trial import TrialState
from hopfleet.monitor.frame import dataframe, epochs_frame
from hopfleet.monitor.history import History


def small_history() -> History:
    messages = [
        TrialAdded("t0", 0, {"lr": 0.1, "net": {"width": 64}}, seed=0, epochs=3),
        TrialAdded("t1", 1, {"lr": 0.2, "layers": [1, 2]}, seed=1, epochs=3),
        EpochEnded("t0", 1, 2, {"accuracy": 0.5, "loss": 2.0}, True),
        EpochEnded("t0", 2, 4, {"accuracy": 0.4, "loss": 3.0}, False),
        TrialEnded("t1", TrialState.FAILED, "ValueError: no"),
    ]
    records = [(10.0 + second, message) for second, message in enumerate(messages)]
    return History.of(records, metric="accuracy", mode="max", partitions=2, name="frame")


def test_one_row_per_trial_at_its_best_epoch() -> None:
    frame = dataframe(small_history())
    assert list(frame.columns) == [
        *("trial", "state", "epochs", "best_epoch", "accuracy", "loss"),
        *("config/lr", "config/net.width", "config/layers", "origin", "parent", "error"),
    ]
    first, second = frame.to_dict("records")
    assert (first["trial"], first["state"], first["epochs"], first["best_epoch"]) == ("t0", "pending", 2, 1)
    assert (first["accuracy"], first["loss"], first["config/net.width"]) == (0.5, 2.0, 64)
    assert (second["state"], second["epochs"], second["error"]) == ("failed", 0, "ValueError: no")
    assert math.isnan(second["accuracy"]) and second["config/layers"] == [1, 2]
    assert frame["best_epoch"].isna().tolist() == [False, True]
    assert frame["error"].isna().tolist() == [True, False]


def test_one_row_per_trial_and_epoch() -> None:
    frame = epochs_frame(small_history())
    assert frame.to_dict("list") == {
        "trial": ["t0", "t0"],
        "epoch": [1, 2],
        "version": [2, 4],
        "time": [12.0, 13.0],
        "accuracy": [0.5, 0.4],
        "loss": [2.0, 3.0],
    }


def test_rows_follow_the_simulated_run(eventful_history: History) -> None:
    frame = dataframe(eventful_history)
    assert frame["trial"].tolist() == sorted(eventful_history.trials)
    best = eventful_history.best()
    assert best is not None and frame.loc[frame["accuracy"].idxmax(), "trial"] == best.id
    assert len(epochs_frame(eventful_history)) == 7 * 4 + 2


def test_empty_frames_have_their_columns() -> None:
    history = History(metric="accuracy", mode="max", partitions=2, name="empty")
    assert list(dataframe(history).columns) == [
        *("trial", "state", "epochs", "best_epoch", "accuracy", "origin", "parent", "error"),
    ]
    assert list(epochs_frame(history).columns) == ["trial", "epoch", "version", "time", "accuracy"]
