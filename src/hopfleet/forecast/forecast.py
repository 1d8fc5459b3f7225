"""The forecast of an experiment: measurements on real workers before the first unit, for ``fit`` and for previews.

Mistakes in a task show up here, before they cost an epoch of training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from hopfleet.backends.base import Backend
from hopfleet.backends.supervision import StartLimit, SupervisedBackend
from hopfleet.domain import batching
from hopfleet.domain.messages import WorkerJoined
from hopfleet.domain.objectives import EPOCH, PARAMS
from hopfleet.domain.placement import SINGLE
from hopfleet.domain.trial import Config, Trial
from hopfleet.errors import TaskError, UsageError, WorkersLost
from hopfleet.forecast.fusion import fusions
from hopfleet.forecast.preview import Preview, previewed
from hopfleet.forecast.profiling import (
    BATCHES,
    Profiles,
    architectures,
    from_record,
    profile_trials,
    to_record,
    trial_for_probe,
    unsteady,
)
from hopfleet.forecast.rehearsal import SLOW, Outline, measure, predict, worth_profiling
from hopfleet.monitor.terminal.live import LiveView
from hopfleet.monitor.wording import describe as describe_config
from hopfleet.monitor.wording import plural
from hopfleet.phrases import did_you_mean, listed
from hopfleet.runtime.loop import WAIT_SECONDS
from hopfleet.scheduler.fusion import Fusion
from hopfleet.search.base import Goal
from hopfleet.store.folder import RunFolder
from hopfleet.worker.spec import Profile, WorkerSpec

IN_TURN = ("inline",)
"""Backends whose workers take turns, so that the order of their units does not change the makespan."""

PROBES = 3
"""Configurations that must fail in the same way before work starts for a run to be refused."""

CHECKS_SECONDS = 10.0
"""Seconds after which no further configuration is checked before the run."""

PROFILING_SECONDS = 20.0
"""Longest time in seconds that profiling for a preview may take."""

START_SECONDS = 300.0
"""Seconds to wait for the first worker of a backend; a backend without a worker by then has failed."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """An experiment that is about to start: its backend, its workers and its size."""

    backend: Backend
    spec: WorkerSpec
    outline: Outline
    why: str  #: the reason for the number of workers
    configs: Mapping[int, Config]  #: configurations known before work starts, by trial number

    def fusions(self, profiles: Mapping[int, Profile]) -> dict[str, Fusion]:
        """Return which trials may train together, by value of ``fuse``. Other strategies take one trial at a time."""
        if self.spec.teams != (SINGLE,):
            return {}
        return fusions(self.spec.task, self.spec.batch_size, self.outline.workers, profiles.values())

    def from_record(self, folder: RunFolder) -> Profiles:
        """Return the profiles of these configurations from an earlier run."""
        return from_record(folder.profile(), self.configs, self.spec.device)

    def foresee(
        self, folder: RunFolder, view: LiveView, later: Callable[[Callable[[], object]], object], *, fail_fast: bool
    ) -> Profiles:
        """Check the task, profile configurations where that may pay, and store profiles and prediction.

        The run does not need the prediction, so ``later`` takes the function that makes it. ``fail_fast`` refuses a
        task that fails in the same way whatever the configuration.
        """
        own = self.spec.batch_size
        batch_size = max((batching.batch_size(config, own) for config in self.configs.values()), default=own)
        cheap = self.backend.name in IN_TURN or not worth_profiling(self.outline, batch_size)
        timed = {} if cheap else self._first_look(BATCHES)
        probed = self._check(timed, view)
        if fail_fast:
            check_failures(probed.values())
        self._tell(probed, view)
        if cheap:
            return Profiles({number: profile for number, profile in probed.items() if not profile.error})
        outline = dataclasses.replace(self.outline, fusions=self.fusions(probed))
        found = measure(self.backend.probe, self.configs, outline, timed)
        later(lambda: keep_prediction(folder, outline, found))
        folder.keep_profile(to_record(found, self.configs, self.spec.device))
        if found.seconds > SLOW:
            view.note(f"profiling of {plural(found.tried, 'configuration')} took {found.seconds:.1f} s")
        return found

    def preview(self, folder: RunFolder, *, began: float, data_bytes: int, tell: Callable[[str], None]) -> Preview:
        """Profile configurations on one worker, except those with a profile in ``folder``, and simulate the run.

        ``began`` is the start of the start-up on the clock ``time.perf_counter``; ``data_bytes`` counts the bytes of
        data that the start-up wrote.
        """

        def probe(trial: Trial, batches: int) -> Profile:
            tell(f"profiling {trial.id}")
            return self.backend.probe(trial, batches)

        tell("starting a worker")
        with one_worker(
            self.backend, dataclasses.replace(self.spec, run="", compare=not self.spec.task.framework.fusion_blocker)
        ):
            start_up = time.perf_counter() - began
            known = {**self.from_record(folder).found, **self._first_look(BATCHES)}
            found = profile_trials(
                probe, self.configs, seed=self.spec.seed, known=known, budget=lambda found: PROFILING_SECONDS
            )
        if not found.found:
            failed = next(iter(found.failed.values()), None)
            said = f"the first one raised {failed.error}" if failed else f"backend={self.backend.name!r} trains nothing"
            raise TaskError(f"no configuration could be profiled; {said}")
        outline = dataclasses.replace(self.outline, fusions=self.fusions(found.found))
        return previewed(
            outline, found, why=self.why, device=self.spec.device, start_up=start_up, data_bytes=data_bytes, tell=tell
        )

    def _first_look(self, batches: int) -> dict[int, Profile]:
        """Time configurations until one works; return their profiles by trial number."""
        found: dict[int, Profile] = {}
        for number, config in itertools.islice(self.configs.items(), PROBES):
            profile = found[number] = self.backend.probe(trial_for_probe(number, config), batches)
            if self._works(profile):
                break
        return found

    def _check(self, timed: Mapping[int, Profile], view: LiveView) -> dict[int, Profile]:
        """Check one configuration per architecture, and a few more while all fail; return their profiles.

        A check builds the model, trains two batches, evaluates one, saves, loads and hops. Those that were ``timed``
        have done all of that.
        """
        check_metrics(self.outline.goal, has_valid=self.spec.valid is not None)
        chosen, began = architectures(self.configs), time.monotonic()
        found = dict(timed)
        works = bool([profile for profile in timed.values() if self._works(profile)])
        for number in dict.fromkeys([*chosen, *itertools.islice(self.configs, PROBES)]):
            if number in found:
                continue
            if number not in chosen and (works or len(found) >= PROBES):
                break
            if (took := time.monotonic() - began) > CHECKS_SECONDS:
                view.note(f"checked {len(found)} of {len(chosen)} architectures before the run, in {took:.0f} s")
                break
            profile = found[number] = self.backend.probe(trial_for_probe(number, self.configs[number]))
            works = self._works(profile) or works
        return found

    def _works(self, profile: Profile) -> bool:
        """Whether a configuration works at least until its evaluation. Raise UsageError if its metric is missing."""
        works = bool(profile.metrics) or not profile.error
        if works:
            check_metrics(self.outline.goal, has_valid=self.spec.valid is not None, found=profile.metrics)
        return works

    def _tell(self, probed: Mapping[int, Profile], view: LiveView) -> None:
        """Warn of what was found before the run and does not prevent it."""
        task = self.spec.task
        made_by = "the live data set" if task.transform is None else f"{type(task).__name__}.transform"
        averaged: dict[str, None] = {}
        for number, profile in probed.items():
            config = self.configs[number]
            which = f"the check before the run, with {describe_config(config, list(config), 100)}"
            if profile.unsteady:
                view.warn(unsteady(made_by, profile.unsteady))
            if profile.varying:
                view.warn(profile.varying)
            if profile.averaged:
                averaged[profile.averaged] = None
            if profile.error:
                view.warn(f"{which}, failed: {profile.error}")
            if profile.doubt:
                view.warn(f"{which}: {profile.doubt}")
            if profile.skipped:
                view.note(f"{which}, left out {profile.skipped}; experiment.check() does everything")
        for name in averaged:
            view.warn(
                f"the metric {name!r} is averaged over batches; if it is not a mean over rows, that is wrong: return "
                f"{{{name!r}: hop.WholeSet(score, outputs, targets)}} from metrics() instead, scored once over all rows"
            )


def keep_prediction(folder: RunFolder, outline: Outline, found: Profiles) -> None:
    """Predict a run, if that is possible, and store the prediction."""
    if (rehearsal := predict(outline, found)) is not None:
        folder.keep_prediction(rehearsal.as_json())


def check_metrics(goal: Goal, *, has_valid: bool, found: Collection[str] | None = None) -> list[str]:
    """Return the metrics of a goal that evaluation must provide; raise UsageError if they are not ``found``."""
    named = [name for name in goal.metrics if not name.startswith("train_") and name != EPOCH]
    evaluated = [name for name in named if name != PARAMS]
    limits = {limit.metric: f"constraints=[{str(limit)!r}]" for limit in goal.limits}
    if evaluated and not has_valid:
        named_by, near = _named_by(evaluated[0], limits), did_you_mean(evaluated[0], [PARAMS] * bool(limits))
        raise UsageError(f"{named_by}: {near}there is no valid=... data; give some, or use metric='train_loss'")
    missing = next((name for name in named if found is not None and name not in found), None)
    if missing is not None:
        own = [PARAMS, EPOCH] if missing in limits else []
        near, known = did_you_mean(missing, [*(found or ()), *own]), listed(missing, found or ())
        raise UsageError(f"{_named_by(missing, limits)}: metrics() does not return it; {near}it returns {known}")
    return named


def _named_by(metric: str, limits: Mapping[str, str]) -> str:
    """Return the argument that names a metric."""
    return limits.get(metric, f"metric={metric!r}")


def check_failures(profiles: Collection[Profile]) -> None:
    """Raise TaskError if the configurations that were tried before the run failed in the same way."""
    ways = {(profile.error.partition(":")[0], profile.place) for profile in profiles if profile.traceback}
    first = next(iter(profiles), None)
    if first is None or len(profiles) < PROBES or len(ways) != 1 or not all(each.traceback for each in profiles):
        return
    raise TaskError(
        f"the first {len(profiles)} configurations failed in the same way before the run, when each was tried on two "
        f"batches: {first.error}\n\n{first.traceback.rstrip()}\n\nexperiment.check() repeats this in your own process; "
        "hop.RunOptions(fail_fast=False) starts the run all the same"
    )


@contextlib.contextmanager
def one_worker(backend: Backend, spec: WorkerSpec) -> Iterator[None]:
    """Start a backend with one worker, wait until the worker is ready, and close the backend afterwards."""
    try:
        backend.start(spec, 1)
        began, limit = time.monotonic(), StartLimit(max(START_SECONDS, spec.start_timeout))
        while not any(isinstance(event, WorkerJoined) for event in backend.receive(WAIT_SECONDS)):
            if limit.passed(backend.start_progress() if isinstance(backend, SupervisedBackend) else None):
                why = backend.unready() if isinstance(backend, SupervisedBackend) else ""
                raise WorkersLost(f"no worker was ready after {time.monotonic() - began:.0f} s{why}")
        yield
        backend.close()
    except BaseException:
        backend.close(kill=True)
        raise
