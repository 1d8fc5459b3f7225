"""Trials of different widths: does it pay to pad them to one width and stack them all?

    python -m benchmarks.flotilla.padding [--quick] [--widths 256 1024]

Perceptrons with two hidden layers of one width, 16 of them, train together on one device: on CUDA 1024-w-w-2 in batches
of 256, on a CPU 64-w-w-2 in batches of 32 with one thread. Their widths are w alone, or several from w down to 0.94,
0.75 or 0.5 of it, with 8, 4 or 2 members each. Three ways are measured in turns, and the shortest unit of each counts:

* *grouped*: members of equal width are stacked; on CUDA, groups of fewer than four members train side by side;
* *padded*: smaller members are padded with zeros, so that there is one stack, which ``fuse="fast"`` does on CUDA where
  few zeros are needed. On a CPU, where it is not done, all members have the largest width instead;
* *exact*: on CUDA side by side as captured steps, on a CPU in turn.

The ratio is that of padded to grouped: below 1, padding pays. With one width both are the same, so that row shows how
exact the others are.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

import hopfleet as hop
from benchmarks.__main__ import conclude
from benchmarks.flotilla.workloads import layers, loss
from benchmarks.row import Row, milliseconds
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch.engines.stacked import attempts, flotilla
from hopfleet.frameworks.torch.engines.stacked import widths as stacked_widths

MEMBERS = 16
EACH = (8, 4, 2)
"""Members of each width."""

SMALLEST = (0.94, 0.75, 0.5)
"""The smallest width as a part of the largest."""


@dataclass(frozen=True)
class Place:
    """A device, and the sizes that keep it busy: inputs, rows of a batch, batches of a unit, widths and rounds."""

    device: str
    inputs: int
    rows: int
    batches: int
    widths: Sequence[int]
    rounds: int


def place(quick: bool) -> Place:
    if quick:
        return Place("cuda:0" if torch.cuda.is_available() else "cpu", 8, 4, 4, (16,), 1)
    if torch.cuda.is_available():
        return Place("cuda:0", 1024, 256, 200, (128, 256, 512, 1024), 5)
    return Place("cpu", 64, 32, 50, (16, 64, 256), 5)


class Perceptrons(hop.TorchTask):
    def __init__(self, inputs: int) -> None:
        self.inputs = inputs

    def build(self, config: Mapping[str, Any]) -> Any:
        model = layers(self.inputs, config["width"], config["width"], 2)
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        return loss(model, batch)


class Batches:
    """A unit of random rows on a device."""

    def __init__(self, where: Place) -> None:
        self._batches, self.rows = where.batches, where.batches * where.rows
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(where.rows, where.inputs, generator=generator)
        self._batch = {"x": x.to(where.device), "y": (x[:, 0] > 0).long().to(where.device)}

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(self._batch) for _ in range(self._batches))


class Together:
    """Members of some widths that train together, and the seconds of their shortest unit so far."""

    def __init__(self, where: Place, widths: Sequence[int], *, fast: bool, pads: bool = True) -> None:
        self._task, self._fast, self._worth = Perceptrons(where.inputs), fast, stacked_widths.WORTH if pads else 0
        self._batches = Batches(where)
        self._sessions = [
            self._task.framework.open(
                {"width": width, "lr": 0.001 * (number + 1)},
                seed=number,
                placement=Placement.on(where.device),
                threads=1,
                cache=cache,
            )
            for cache in [EngineCache()]
            for number, width in enumerate(widths)
        ]
        self.seconds = float("inf")
        for _ in range(2):
            self.unit()  # steps are recorded or captured

    def unit(self) -> float:
        """Train a unit; return its seconds for each batch."""
        began = time.perf_counter()
        stacked_widths.WORTH, before = self._worth, stacked_widths.WORTH
        flotilla = self._task.framework.flotilla(self._sessions, fast=self._fast)
        results = flotilla.train(self._batches, last=[False] * len(self._sessions))
        stacked_widths.WORTH = before
        spent = time.perf_counter() - began
        for result in results:
            if isinstance(result, Exception):
                raise result
        return spent / len(self._batches)

    def again(self) -> None:
        self.seconds = min(self.seconds, self.unit())


def spread(largest: int, smallest: float, each: int) -> list[int]:
    """Return the width of each member: equal steps from the largest width to the smallest, with some members each."""
    count = MEMBERS // each
    steps = [1 - (1 - smallest) * number / max(1, count - 1) for number in range(count)]
    return [round(largest * step) for step in steps for _ in range(each)]


def stacked_at_once() -> ExitStack:
    """Stack trials from their first batch on, also where a comparison of times would come first."""
    found = ExitStack()
    for module in (attempts, flotilla):
        found.enter_context(mock.patch.object(module, "stacks_at_once", lambda session: True))
    return found


def measure(where: Place) -> list[Row]:
    rows: list[Row] = []
    beside = "side by side" if where.device != "cpu" else "in turn"
    for largest in where.widths:
        for smallest, each in ((1.0, MEMBERS), *((part, each) for part in SMALLEST for each in EACH)):
            widths = spread(largest, smallest, each)
            grouped, padded, exact = ways = (
                Together(where, widths, fast=True, pads=False),
                Together(where, widths if where.device != "cpu" else [largest] * MEMBERS, fast=True),
                Together(where, widths, fast=False),
            )
            for _ in range(where.rounds):
                for way in ways:
                    way.again()
            rows.append(
                Row(
                    "padding",
                    f"{MEMBERS} perceptrons of {MEMBERS // each} widths, {largest} to {min(widths)}: a step, padded",
                    milliseconds(padded.seconds),
                    f"{milliseconds(grouped.seconds)} grouped, {milliseconds(exact.seconds)} {beside}",
                    padded.seconds / grouped.seconds,
                )
            )
            print(rows[-1].what, rows[-1].ours, rows[-1].other, file=sys.stderr, flush=True)
    return rows


def main(options: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks the benchmark")
    parser.add_argument("--widths", type=int, nargs="+", help="the largest width of each set")
    found = parser.parse_args(options)
    where = place(found.quick)
    if found.widths:
        where = Place(where.device, where.inputs, where.rows, where.batches, found.widths, where.rounds)
    load = os.getloadavg()[0]
    with stacked_at_once():
        return conclude(measure(where), load, None)


if __name__ == "__main__":
    sys.exit(main())
