"""The points of curves and the spans of a schedule as binary columns, which a browser maps without parsing.

A block is a header in JSON, padded with spaces to a multiple of eight bytes and preceded by its length, and then the
columns one after another. The header gives the names, types and lengths of the columns.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hopfleet.ui.board import Board, encoded, marks

Array = npt.NDArray[Any]


def epochs_block(board: Board, metric: str) -> bytes:
    """Return the points of all curves of one metric: epoch, seconds since the start, and value, trial by trial."""
    start = board.history.started or 0.0
    trials: list[list[Any]] = []
    parts: list[tuple[Array, Array, Array]] = []
    for trial in board.history.trials.values():
        epochs, times, values = trial.epochs_done.column(metric)
        if len(values):
            trials.append([trial.id, len(values)])
            seconds = (np.array(times) - start).astype("<f4")
            parts.append((np.array(epochs, "<u4"), seconds, np.array(values, "<f4")))
    none = np.zeros(0, "<f4")
    names = ("epoch", "time", "value")
    shaped = {
        name: np.concatenate([part[place] for part in parts]) if parts else none for place, name in enumerate(names)
    }
    parts.clear()
    return _block({"number": board.number, "metric": metric, "start": start, "trials": trials}, shaped)


def spans_block(board: Board) -> bytes:
    """Return all spans in the order in which they ended."""
    spans = board.history.spans
    workers, trials = dict[str, int](), dict[str, int]()
    count = len(spans)
    start = board.history.started or 0.0
    columns = {
        "started": np.fromiter((span.started - start for span in spans), "<f8", count),
        "ended": np.fromiter((span.ended - start for span in spans), "<f8", count),
        "trial": np.fromiter((trials.setdefault(span.trial, len(trials)) for span in spans), "<u4", count),
        "epoch": np.fromiter((span.epoch for span in spans), "<u4", count),
        "partition": np.fromiter((span.partition for span in spans), "<u4", count),
        "worker": np.fromiter((workers.setdefault(span.worker, len(workers)) for span in spans), "<u4", count),
        "marks": np.fromiter((marks(span) for span in spans), "<u4", count),
    }
    return _block({"number": board.number, "start": start, "workers": [*workers], "trials": [*trials]}, columns)


def _block(header: Mapping[str, Any], columns: Mapping[str, Array]) -> bytes:
    listed = [[name, column.dtype.str[1:], len(column)] for name, column in columns.items()]
    text = encoded({**header, "columns": listed}).encode()
    text += b" " * (-(len(text) + 8) % 8)
    padded = [column.tobytes() + b"\0" * (-column.nbytes % 8) for column in columns.values()]
    return b"".join([struct.pack("<q", len(text)), text, *padded])
