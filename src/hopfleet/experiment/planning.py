"""What a model of an experiment takes: counted and timed on one batch, before a plan is made for a cluster."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hopfleet.backends.base import Backend, Measurable
from hopfleet.data import Dataset
from hopfleet.domain.placement import Placement
from hopfleet.domain.trial import Config
from hopfleet.errors import HopfleetError, TaskError
from hopfleet.experiment.definition import Definition
from hopfleet.experiment.previewing import scratch_data
from hopfleet.forecast.clusters import measured_cluster, this_cluster
from hopfleet.frameworks.base import Batch, Batches, Session
from hopfleet.planner.dike.problem import Cluster, Model
from hopfleet.store.folder import RunFolder
from hopfleet.support.machine import this_machine
from hopfleet.support.user_code import describe_with_place, hook
from hopfleet.worker.feeding.feed import Feed
from hopfleet.worker.feeding.stream import FirstBatches, Stream

TIMED, STEPS, SECONDS = 16, 2, 2.0
"""Rounds that are timed (the fastest counts); batches of a round; and seconds after which no round begins."""

MOST_FIXED = 0.95
"""The part of a step that may count as fixed, at most: times vary."""

DRAWN = 8
"""Configurations among which to look for the largest model."""


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """The largest model of an experiment, and what it takes."""

    config: Config
    model: Model
    #: Operations per second that training reached on this machine's device.
    device: str
    flops: float


def measure_model(definition: Definition, place: RunFolder) -> MeasuredModel:
    """Draw some configurations and measure the one with the largest model, on real batches."""
    data = scratch_data(definition, place).train
    configs = definition.examples(DRAWN)
    try:
        return _measured(definition, data, configs)
    except HopfleetError:
        raise
    except Exception as error:
        where = hook(error) or type(definition.task).__name__
        raise TaskError(f"{where}: {describe_with_place(error)}") from error


def measure_cluster(definition: Definition, backend: Backend, measured: MeasuredModel) -> tuple[Cluster, str]:
    """Return the nodes of a backend, with links that a model's size was sent over; and their devices."""
    size, flops, options = int(measured.model.parameters), measured.flops, definition.worker_options
    if isinstance(backend, Measurable):
        return measured_cluster(backend, options.device, flops, size, threads=options.threads)
    _, devices = definition.task.framework.devices()
    here = this_cluster(this_machine(), measured.device, devices, flops, size, threads=options.threads)
    return here, measured.device


def _measured(definition: Definition, data: Dataset, configs: Sequence[Config]) -> MeasuredModel:
    framework, options = definition.task.framework, definition.worker_options
    here = framework.devices()[0]
    # The devices of a cluster may be of another kind than those of this machine.
    placement = Placement.on(options.device if options.device.partition(":")[0] in ("cpu", here) else here)

    def opened(config: Config) -> Session:
        return framework.open(config, seed=definition.seed, placement=placement, threads=options.threads)

    config = max(configs, key=lambda config: opened(config).size)
    session, feed = opened(config), Feed(definition.task)
    size = definition.rows_per_batch(config)

    def some(rows: int, epoch: int = 1) -> FirstBatches:
        stream = Stream(data, 0, session=session, batch_size=rows, feed=feed, epoch=epoch)
        return FirstBatches(count, stream, rows)

    # As many batches as have all their rows.
    count = max(1, min(STEPS, data.partition_rows[0] // size))
    found = framework.estimate(session, some(size))
    # Steps are on batches that are there already: whole ones, and halves, as each of two devices would have.
    ready = [_Ready(list(batches), batches.rows) for batches in (some(size), some(max(1, size // 2)))]
    train = functools.partial(session.train, last=False)
    rounds, began = list[list[float]](), time.perf_counter()
    while len(rounds) < TIMED and (not rounds or time.perf_counter() - began < SECONDS):
        prepared = some(size, epoch=2 + len(rounds))
        rounds.append([_seconds(list, prepared) / prepared.rows, *(_seconds(train, each) / count for each in ready)])
    preparing, whole, half = (min(times) for times in zip(*rounds, strict=True))
    fixed = min(max(0.0, 2 * half - whole), MOST_FIXED * whole) if size > 1 else 0.0
    model = Model(
        found.parameters, found.flops, size, found.longest, prepare_seconds=preparing, fixed_seconds=fixed, split=True
    )
    return MeasuredModel(config, model, placement.kind, model.batch_seconds(1.0) / (whole - fixed))


class _Ready(list[Batch]):
    """Batches that are made."""

    def __init__(self, batches: Iterable[Batch], rows: int) -> None:
        super().__init__(batches)
        self.rows = rows


def _seconds(work: Callable[[Any], object], batches: Batches) -> float:
    began = time.perf_counter()
    work(batches)
    return time.perf_counter() - began
