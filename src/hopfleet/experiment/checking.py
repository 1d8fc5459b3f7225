"""A check of the task before a run: everything that a trial does, once, in this process."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

from hopfleet.domain.placement import Placement
from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError, UsageError
from hopfleet.experiment.definition import Definition
from hopfleet.experiment.previewing import scratch_data
from hopfleet.experiment.resources import WorkerPlan, worker_spec
from hopfleet.forecast.forecast import check_metrics
from hopfleet.forecast.profiling import architectures, trial_for_probe
from hopfleet.monitor.wording import describe as describe_config
from hopfleet.store.folder import RunFolder
from hopfleet.support.user_code import describe_with_place, hook, users_traceback
from hopfleet.worker.logs import copied
from hopfleet.worker.worker import Worker

DRAWN = 200
"""Configurations in which to look for architectures."""


def check_task(definition: Definition, place: RunFolder, tell: Callable[[str], None]) -> list[Config]:
    """Check one configuration per architecture; ``tell`` hears of each. Return the configurations.

    Raise TaskError, with the user's traceback as its cause, if the task raises.
    """
    tell("opening the data")
    data = scratch_data(definition, place)
    asked = definition.worker_options.device
    device = definition.task.framework.devices()[0] if asked == "auto" else asked
    spec = dataclasses.replace(worker_spec(definition, data, place, plan=WorkerPlan(device, 1, ""), spare=0), run="")
    configs = list(architectures(dict(enumerate(definition.examples(DRAWN)))).values())
    worker = Worker("check", spec, Placement.on(device), lambda events: None, capture=copied, guest=True)
    try:
        for number, config in enumerate(configs):
            tell(f"checking {describe_config(config, list(config), 100)}")
            try:
                metrics = worker.check(trial_for_probe(number, config))
            except UsageError:
                raise
            except Exception as error:
                _explain(definition, error)
                where = hook(error) or type(definition.task).__name__
                users = error.with_traceback(users_traceback(error) or error.__traceback__)
                raise TaskError(f"{where}: {describe_with_place(error)}, with the configuration {config}") from users
            check_metrics(definition.goal, has_valid=data.valid is not None, found=metrics)
    finally:
        worker.close()
    return configs


def _explain(definition: Definition, error: Exception) -> None:
    """Add notes to an exception of the task's code, but not its configuration, which holds secrets in plain text."""
    with contextlib.suppress(Exception):
        definition.task.framework.explain(error)
    error.__notes__ = [note for note in getattr(error, "__notes__", ()) if not note.startswith("config: ")]
