"""What is known of a run before it starts: its size, its workers, its preview, and settings that it cannot follow."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

from hopfleet.backends.base import Backend
from hopfleet.experiment.definition import Definition
from hopfleet.experiment.previewing import another_backend, scratch_data
from hopfleet.experiment.resources import Data, WorkerPlan, on_cluster, plan_workers, worker_spec
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

SHARING = 4
"""Workers that may well share a GPU whose trials train one at a time: small models leave it idle most of the time."""

DRAWN = 1_000
"""Configurations from which profiling draws."""


def plan_of(definition: Definition, backend: Backend, teams: TeamChoice | None) -> WorkerPlan:
    """Plan the workers of a run, which train as trial runs have chosen, if there were any."""
    plan = plan_workers(
        backend,
        definition.task,
        workers=definition.workers if teams is None else teams.workers or definition.workers,
        device=definition.worker_options.device,
        threads=definition.worker_options.threads,
        trials=definition.trials,
        teams=definition.parallelism if teams is None else teams.shapes,
    )
    if teams is None:
        return plan
    plan = plan._replace(why=teams.why, scaling=teams.scaling, fleet=teams.fleet)
    return plan._replace(homes=teams.homes, one_node=teams.one_node)


def forecast_of(definition: Definition, backend: Backend, plan: WorkerPlan, data: Data, place: RunFolder) -> Forecast:
    """Gather what is known before work starts."""
    search, run = definition.search, definition.run_options
    configs = dict(enumerate(definition.examples(DRAWN)))
    in_rounds = run.deterministic and search.listens
    options, threads = definition.worker_options, definition.worker_options.threads
    spare = spare_cores(this_machine(), device=plan.device, workers=plan.workers, threads=threads)
    spec = worker_spec(definition, data, place, plan=plan, spare=spare)
    outline = Outline(
        name=definition.name,
        # A search without an end counts as one with the most trials that can be live at once.
        trials=search.trials if search.trials < UNLIMITED else MAX_LIVE,
        open_ended=search.trials >= UNLIMITED,
        epochs=search.max_epochs,
        rows=data.train.partition_rows,
        valid_rows=() if data.valid is None else data.valid.partition_rows,
        workers=plan.workers,
        policy_name=run.policy,
        policy=definition.policy,
        fixed_order=run.order == "fixed",
        round_size=search.concurrency(plan.workers) if in_rounds else 0,
        seed=definition.seed,
        goal=definition.goal,
        known=not search.adaptive,
        configs={} if search.adaptive else configs,
        fuse="off" if definition.task.framework.fusion_blocker else options.fuse,
        crowded=not spare,
        teams=plan.teams,
        scaling=plan.scaling,
        fleet=plan.fleet,
    )
    return Forecast(backend, spec, outline, plan.why, configs)


def warnings_of(definition: Definition, forecast: Forecast) -> Iterator[str]:
    """Yield warnings about settings that a run cannot follow as the user may expect."""
    workers, fits = definition.workers, forecast.outline.workers
    if isinstance(workers, int) and workers > fits and forecast.outline.scaling is None:
        yield (
            f"workers={workers}: too many for {plural(this_machine().cores, 'core')}; the run starts with {fits}; "
            "workers='auto' takes one per core or GPU"
        )
    if definition.folds:
        from hopfleet.data.etl.recipe import shared_statistics

        if name := shared_statistics(forecast.spec.train):
            yield (
                f"valid='{definition.valid}': the statistics of {name} are those of all rows, so each model knows a "
                f"little of the rows that validate it; prepare the data with folds={definition.folds}"
            )
    trials, partitions = min(definition.search.trials, MAX_LIVE), len(forecast.outline.rows)
    if definition.run_options.policy == "exact" and (warning := too_large(trials, partitions)):
        yield warning
    if on_cluster(definition.backend) and not balance.installed():
        yield "SciPy is not installed, so partitions with replicas are not balanced: pip install 'hopfleet[scipy]'"
    for name in forecast.spec.surroundings.stuck:
        yield f"{name} was replaced by the script, but workers import the module anew and see the original"


def notes_of(definition: Definition, forecast: Forecast) -> Iterator[str]:
    """Yield what makes a run slower than the user may expect."""
    yield from apart(definition.task, definition.worker_options.fuse, definition.batch_size, forecast.configs.values())
    workers, cores = forecast.outline.workers, this_machine().cores
    several = min(SHARING * workers, min(definition.search.trials, MAX_LIVE), cores // 2)
    alone = definition.task.framework.fusion_blocker and definition.backend.name == "local"
    if alone and forecast.spec.device == "cuda" and definition.workers == "auto" and several > workers:
        yield f"workers={several}: faster if models are small, and leave room for others in the memory of a GPU"


def make_preview(
    definition: Definition,
    place: RunFolder,
    tell: Callable[[str], None],
) -> Preview:
    """Predict a run from profiling on a backend of its own; ``tell`` hears of the steps."""
    began = time.perf_counter()
    tell("opening the data")
    data = scratch_data(definition, place)
    backend = another_backend(definition)
    teams = find_teams(definition, backend, data, tell, keep=False)
    planned = plan_of(definition, backend, teams)
    if backend.name in IN_TURN:
        planned = WorkerPlan(planned.device, 1, f"{backend.name} workers take turns")
    found = forecast_of(definition, backend, planned, data, place)
    preview = found.preview(definition.folder, began=began, data_bytes=data.bytes_in(place.path), tell=tell)
    return dataclasses.replace(preview, teams=teams)
