"""A check of the task before a run: everything that a trial does, once, in this process."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hopfleet.domain.placement import Placement
from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError, UsageError
from hopfleet.experiment.previewing import scratch_data
from hopfleet.experiment.resources import worker_spec
from hopfleet.forecast.forecast import check_metrics
from hopfleet.forecast.profiling import trial_for_probe
from hopfleet.monitor.wording import describe as describe_config
from hopfleet.store.folder import RunFolder
from hopfleet.support.user_code import describe_with_place, hook, users_traceback
from hopfleet.worker.logs import copied
from hopfleet.worker.worker import Worker

if TYPE_CHECKING:
    from hopfleet.experiment.experiment import Experiment

MOST = 8
"""Configurations to check at most."""

DRAWN = 200
"""Configurations in which to look for architectures."""


def check_task(experiment: Experiment, place: RunFolder, tell: Callable[[str], None]) -> list[Config]:
    """Check one configuration per architecture; ``tell`` hears of each. Return the configurations.

    Raise TaskError, with the user's traceback as its cause, if the task raises.
    """
    tell("opening the data")
    data = scratch_data(experiment, place)
    asked = experiment.worker_options.device
    device = experiment.task.framework.devices()[0] if asked == "auto" else asked
    spec = dataclasses.replace(worker_spec(experiment, data, place, device=device, spare=0), run="")
    configs = architectures([*experiment.points, *experiment.search.examples(DRAWN)][:DRAWN])
    worker = Worker("check", spec, Placement.on(device), lambda events: None, capture=copied, guest=True)
    try:
        for number, config in enumerate(configs):
            tell(f"checking {describe_config(config, list(config), 100)}")
            try:
                metrics = worker.check(trial_for_probe(number, config))
            except UsageError:
                raise
            except Exception as error:
                _explain(experiment, error)
                where = hook(error) or type(experiment.task).__name__
                users = error.with_traceback(users_traceback(error) or error.__traceback__)
                raise TaskError(f"{where}: {describe_with_place(error)}, with the configuration {config}") from users
            check_metrics(experiment.goal, has_valid=data.valid is not None, found=metrics)
    finally:
        worker.close()
    return configs


def _explain(experiment: Experiment, error: Exception) -> None:
    """Add notes to an exception of the task's code, but not its configuration, which holds secrets in plain text."""
    with contextlib.suppress(Exception):
        experiment.task.framework.explain(error)
    error.__notes__ = [note for note in getattr(error, "__notes__", ()) if not note.startswith("config: ")]


def architectures(configs: Iterable[Config]) -> list[Config]:
    """Return one configuration per architecture: those that differ in more than numbers."""
    found: dict[tuple[tuple[str, Any], ...], Config] = {}
    for config in configs:
        found.setdefault(tuple(_choices(config)), config)
    return list(found.values())[:MOST]


def _choices(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names of a configuration's values, with the values that are not numbers."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _choices(value, f"{prefix}{key}.")
        else:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            yield f"{prefix}{key}", None if number else repr(value)
