"""The forecast of an experiment: measurements on real workers before the first unit, for ``fit`` and for previews.

Mistakes in a task show up here, before they cost an epoch of training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hopfleet.backends.base import Backend
from hopfleet.domain.messages import WorkerJoined
from hopfleet.domain.objectives import PARAMS
from hopfleet.domain.trial import Config, Trial
from hopfleet.errors import TaskError, UsageError, WorkersLost
from hopfleet.forecast.fusion import fusions
from hopfleet.forecast.preview import Preview, previewed
from hopfleet.forecast.profiling import (
    BATCHES,
    Profiles,
    from_record,
    profile_trials,
    to_record,
    trial_for_probe,
    unsteady,
)
from hopfleet.forecast.rehearsal import SLOW, Outline, foresee, worth_profiling
from hopfleet.monitor.terminal.live import LiveView
from hopfleet.monitor.wording import plural
from hopfleet.phrases import did_you_mean, listed
from hopfleet.runtime.loop import WAIT_SECONDS
from hopfleet.scheduler.fusion import Fusion
from hopfleet.store.folder import RunFolder
from hopfleet.worker.spec import Profile, WorkerSpec

IN_TURN = ("inline",)
"""Backends whose workers take turns, so that the order of their units does not change the makespan."""

PROBES = 3
"""Configurations tried on one batch before work starts; the first that works ends the trial run."""

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
        """Return which trials may train together, by value of ``fuse``."""
        return fusions(self.spec.task, self.spec.batch_size, self.outline.workers, profiles.values())

    def from_record(self, folder: RunFolder) -> Profiles:
        """Return the profiles of these configurations from an earlier run."""
        return from_record(folder.profile(), self.configs, self.spec.device)

    def foresee(self, folder: RunFolder, view: LiveView) -> Profiles:
        """Check the metric, profile configurations where that may pay, and store profiles and prediction."""
        own = self.spec.batch_size
        batch_size = max((config.get("batch_size", own) for config in self.configs.values()), default=own)
        cheap = self.backend.name in IN_TURN or not worth_profiling(self.outline, batch_size)
        probed = self._first_look(0 if cheap else BATCHES)
        for profile in probed.values():
            if profile.unsteady:
                view.warn(unsteady(f"{type(self.spec.task).__name__}.transform", profile.unsteady))
        if cheap:
            return Profiles({number: profile for number, profile in probed.items() if not profile.error})
        outline = dataclasses.replace(self.outline, fusions=self.fusions(probed))
        found, rehearsal = foresee(self.backend.probe, self.configs, outline, probed)
        if rehearsal is not None:
            folder.keep_prediction(rehearsal.as_json())
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
        with _one_worker(
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
        """Try configurations on one batch, to find a missing metric or an unsteady transform before work starts.

        Return the profiles by trial number; each includes the time of ``batches`` batches of training.
        """
        named = [name for name in self.outline.goal.metrics if not name.startswith("train_")]
        evaluated = [name for name in named if name != PARAMS]
        if evaluated and self.spec.valid is None:
            raise UsageError(
                f"metric={evaluated[0]!r}: there is no valid=... data; give some, or use metric='train_loss'"
            )
        found: dict[int, Profile] = {}
        if not named and self.spec.task.transform is None:
            return found
        for number, config in itertools.islice(self.configs.items(), PROBES):
            profile = found[number] = self.backend.probe(trial_for_probe(number, config), batches)
            if profile.metrics or not profile.error:
                missing = next((name for name in named if name not in profile.metrics), None)
                if missing is not None:
                    near, known = did_you_mean(missing, profile.metrics), listed(missing, profile.metrics)
                    raise UsageError(f"metric={missing!r}: metrics() does not return it; {near}it returns {known}")
                break
        return found


@contextlib.contextmanager
def _one_worker(backend: Backend, spec: WorkerSpec) -> Iterator[None]:
    """Start a backend with one worker, wait until the worker is ready, and close the backend afterwards."""
    try:
        backend.start(spec, 1)
        deadline = time.monotonic() + START_SECONDS
        while not any(isinstance(event, WorkerJoined) for event in backend.receive(WAIT_SECONDS)):
            if time.monotonic() > deadline:
                raise WorkersLost(f"no worker was ready after {START_SECONDS:.0f} s")
        yield
        backend.close()
    except BaseException:
        backend.close(kill=True)
        raise
