"""Trial runs of an experiment: each class of configurations with each strategy, on a worker of its own."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

from hopfleet.domain.placement import TeamShape
from hopfleet.experiment.definition import Definition
from hopfleet.experiment.previewing import another_backend, scratch_data
from hopfleet.experiment.resources import Data, plan_workers, worker_spec
from hopfleet.forecast.forecast import one_worker
from hopfleet.forecast.profiling import BATCHES, architectures, distinct, trial_for_probe
from hopfleet.forecast.trial_runs import TrialRun
from hopfleet.store.folder import RunFolder
from hopfleet.support.machine import choose_workers, this_machine

DRAWN = 64
"""Configurations among which to look for classes: those that differ in more than numbers."""


def device_count(definition: Definition) -> int:
    """Return the number of devices of this machine that workers of the experiment can have."""
    options = definition.worker_options
    kind, count = definition.task.framework.devices()
    if options.device not in ("auto", kind):
        kind, count = options.device, 1
    return choose_workers(this_machine(), device=kind, devices=count, threads=options.threads, trials=4096)[0]


def run_trials(
    definition: Definition,
    place: RunFolder,
    shapes: Sequence[TeamShape],
    tell: Callable[[str], None],
    data: Data | None = None,
    *,
    apart: bool = False,
    on: tuple[str, str] = ("", ""),
    every: bool = False,
) -> Iterator[TrialRun]:
    """Train a few mini-batches of each class of configurations with each strategy; keep nothing but the figures.

    With ``every``, each of the first configurations counts as a class.

    ``data`` are those of the experiment, if they are open already. On a cluster, the members of a team are on one node
    if that has room, or ``apart``; ``on`` is the sort of the node and its name.
    """
    sort, node = on
    data = scratch_data(definition, place) if data is None else data
    drawn = dict(enumerate(definition.examples(DRAWN)))
    configs = distinct(drawn) if every else architectures(drawn)
    options = definition.worker_options
    for shape in shapes:
        tell(f"trying {shape}")
        backend = another_backend(definition)
        plan = plan_workers(
            backend,
            definition.task,
            workers=1,
            device=options.device,
            threads=options.threads,
            trials=1,
            teams=(shape,),
        )._replace(homes=(node,) if node else ())
        spec = worker_spec(definition, data, place, plan=plan, spare=0)
        began = time.monotonic()
        with one_worker(backend, dataclasses.replace(spec, run="", apart=apart)):
            started = time.monotonic() - began
            for number, config in configs.items():
                found = backend.probe(trial_for_probe(number, config), BATCHES)
                rate = 0.0 if found.error or not found.seconds_per_row else 1.0 / found.seconds_per_row
                batch = definition.rows_per_batch(config)
                figures = found.memory, found.error, found.open_seconds, batch, started
                yield TrialRun(config, plan.teams[0], rate, *figures, apart and shape.devices > 1, sort)
