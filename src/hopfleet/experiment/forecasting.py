"""What is known of a run before it starts: its size, its workers, its preview, and settings that it cannot follow."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hopfleet.backends.base import Backend
from hopfleet.experiment.previewing import another_backend, scratch_data
from hopfleet.experiment.resources import Data, WorkerPlan, on_cluster, worker_spec
from hopfleet.experiment.teams import find_teams
from hopfleet.forecast.forecast import IN_TURN, Forecast
from hopfleet.forecast.fusion import apart
from hopfleet.forecast.preview import Preview
from hopfleet.forecast.rehearsal import Outline
from hopfleet.forecast.team_choice import TeamChoice
from hopfleet.monitor.wording import plural
from hopfleet.planner import balance
from hopfleet.scheduler.policies.exact import too_large
from hopfleet.search.base import MAX_LIVE, UNLIMITED
from hopfleet.store.folder import RunFolder
from hopfleet.support.machine import spare_cores, this_machine

if TYPE_CHECKING:
    from hopfleet.experiment.experiment import Experiment

DRAWN = 1_000
"""Configurations from which profiling draws."""


def forecast_of(experiment: Experiment, backend: Backend, plan: WorkerPlan, data: Data, place: RunFolder) -> Forecast:
    """Gather what is known before work starts."""
    search, run = experiment.search, experiment.run_options
    configs = dict(enumerate([*experiment.points, *search.examples(DRAWN)][:DRAWN]))
    in_rounds = run.deterministic and search.listens
    options, threads = experiment.worker_options, experiment.worker_options.threads
    spare = spare_cores(this_machine(), device=plan.device, workers=plan.workers, threads=threads)
    spec = worker_spec(experiment, data, place, plan=plan, spare=spare)
    outline = Outline(
        name=experiment.name,
        # A search without an end counts as one with the most trials that can be live at once.
        trials=search.trials if search.trials < UNLIMITED else MAX_LIVE,
        open_ended=search.trials >= UNLIMITED,
        epochs=search.max_epochs,
        rows=data.train.partition_rows,
        valid_rows=() if data.valid is None else data.valid.partition_rows,
        workers=plan.workers,
        policy_name=run.policy,
        policy=experiment.policy,
        fixed_order=run.order == "fixed",
        round_size=search.concurrency(plan.workers) if in_rounds else 0,
        seed=experiment.seed,
        goal=experiment.goal,
        known=not search.adaptive,
        configs={} if search.adaptive else configs,
        fuse="off" if experiment.task.framework.fusion_blocker else options.fuse,
        crowded=not spare,
        teams=plan.teams,
        scaling=plan.scaling,
        fleet=plan.fleet,
    )
    return Forecast(backend, spec, outline, plan.why, configs)


def warnings_of(experiment: Experiment, forecast: Forecast) -> Iterator[str]:
    """Yield warnings about settings that a run cannot follow as the user may expect."""
    workers, fits = experiment.workers, forecast.outline.workers
    if isinstance(workers, int) and workers > fits and forecast.outline.scaling is None:
        yield (
            f"workers={workers}: too many for {plural(this_machine().cores, 'core')}; the run starts with {fits}; "
            "workers='auto' takes one per core or GPU"
        )
    trials, partitions = min(experiment.search.trials, MAX_LIVE), len(forecast.outline.rows)
    if experiment.run_options.policy == "exact" and (warning := too_large(trials, partitions)):
        yield warning
    if on_cluster(experiment.backend) and not balance.installed():
        yield "SciPy is not installed, so partitions with replicas are not balanced: pip install 'hopfleet[scipy]'"
    for name in forecast.spec.surroundings.stuck:
        yield f"{name} was replaced by the script, but workers import the module anew and see the original"


def notes_of(experiment: Experiment, forecast: Forecast) -> Iterator[str]:
    """Yield what makes a run slower than the user may expect."""
    return apart(experiment.task, experiment.worker_options.fuse, experiment.batch_size, forecast.configs.values())


def make_preview(
    experiment: Experiment,
    place: RunFolder,
    plan: Callable[[Backend, TeamChoice | None], WorkerPlan],
    tell: Callable[[str], None],
) -> Preview:
    """Predict a run from profiling on a backend of its own; ``tell`` hears of the steps."""
    began = time.perf_counter()
    tell("opening the data")
    data = scratch_data(experiment, place)
    backend = another_backend(experiment)
    teams = find_teams(experiment, backend, data, tell, keep=False)
    planned = plan(backend, teams)
    if backend.name in IN_TURN:
        planned = WorkerPlan(planned.device, 1, f"{backend.name} workers take turns")
    found = forecast_of(experiment, backend, planned, data, place)
    preview = found.preview(experiment.folder, began=began, data_bytes=data.bytes_in(place.path), tell=tell)
    return dataclasses.replace(preview, teams=teams)
