"""The points of curves and the spans of a schedule as binary columns, which a browser maps without parsing.

A block is a header in JSON, padded with spaces to a multiple of eight bytes and preceded by its length, and then the
columns one after another. The header gives the names, types and lengths of the columns.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from hopfleet.ui.board import Board, encoded, marks

TYPES = {"I": "u4", "f": "f4", "d": "f8"}
"""Types of arrays, and their names in a header."""


def epochs_block(board: Board, metric: str) -> bytes:
    """Return the points of all curves of one metric: epoch, seconds since the start, and value, trial by trial."""
    start = board.history.started or 0.0
    trials: list[list[Any]] = []
    epoch, time, value = array("I"), array("f"), array("f")
    for trial in board.history.trials.values():
        epochs, times, values = trial.epochs_done.column(metric)
        if len(values):
            trials.append([trial.id, len(values)])
            epoch.extend(epochs)
            time.extend([each - start for each in times])
            value.extend(values.tolist())
    header = {"number": board.number, "metric": metric, "start": start, "trials": trials}
    return _block(header, {"epoch": epoch, "time": time, "value": value})


def spans_block(board: Board) -> bytes:
    """Return all spans in the order in which they ended."""
    spans = board.history.spans
    workers, trials = dict[str, int](), dict[str, int]()
    start = board.history.started or 0.0
    columns: dict[str, array[Any]] = {
        "started": array("d", (span.started - start for span in spans)),
        "ended": array("d", (span.ended - start for span in spans)),
        "trial": array("I", (trials.setdefault(span.trial, len(trials)) for span in spans)),
        "epoch": array("I", (span.epoch for span in spans)),
        "partition": array("I", (span.partition for span in spans)),
        "worker": array("I", (workers.setdefault(span.worker, len(workers)) for span in spans)),
        "marks": array("I", map(marks, spans)),
    }
    return _block({"number": board.number, "start": start, "workers": [*workers], "trials": [*trials]}, columns)


def _block(header: Mapping[str, Any], columns: Mapping[str, array[Any]]) -> bytes:
    listed = [[name, TYPES[column.typecode], len(column)] for name, column in columns.items()]
    text = encoded({**header, "columns": listed}).encode()
    text += b" " * (-(len(text) + 8) % 8)
    parts: list[bytes | memoryview] = [struct.pack("<q", len(text)), text]
    for column in columns.values():
        if sys.byteorder == "big":
            column.byteswap()
        view = memoryview(column)
        parts += [view, bytes(-view.nbytes % 8)]
    return b"".join(parts)
