"""Looking ahead with real workers: what ``fit`` finds out before its first unit, and what a preview is made of.

Mistakes show themselves here that would otherwise cost an epoch of training.
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
from hopfleet.forecast.preview import SLOW, Outline, Preview, foresee, previewed, worth_profiling
from hopfleet.forecast.profiling import (
    BATCHES,
    Profiles,
    from_record,
    profile_trials,
    to_record,
    trial_for_probe,
    unsteady,
)
from hopfleet.monitor.terminal.live import LiveView
from hopfleet.monitor.wording import plural
from hopfleet.runtime.loop import WAIT_SECONDS
from hopfleet.scheduler.fusion import Fusion
from hopfleet.store.folder import RunFolder
from hopfleet.worker.spec import Profile, WorkerSpec

IN_TURN = ("inline",)
"""Backends whose workers take turns: the order of their units changes nothing."""

PROBES = 3
"""Configurations to try on one batch before work starts, until one of them works."""

PATIENCE = 20.0
"""Seconds that the pilot of a preview may take."""

START_SECONDS = 300.0
"""A backend that shows no worker for so long will show none."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """An experiment that is about to start: where, with what, and how large it is."""

    backend: Backend
    spec: WorkerSpec
    outline: Outline
    why: str  #: it has so many workers
    configs: Mapping[int, Config]  #: that are known before work starts, by trial number

    def fusions(self, profiles: Mapping[int, Profile]) -> dict[str, Fusion]:
        """Which trials may train together, in each way."""
        return fusions(self.spec.task, self.spec.batch_size, self.outline.workers, profiles.values())

    def from_record(self, folder: RunFolder) -> Profiles:
        """What the pilot of an earlier run has found of these configurations."""
        return from_record(folder.profile(), self.configs, self.spec.device)

    def foresee(self, folder: RunFolder, view: LiveView) -> Profiles:
        """Check the metric, time some configurations if that may pay, and keep what follows from it."""
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
            view.note(f"a pilot of {plural(found.tried, 'configuration')} took {found.seconds:.1f} s")
        return found

    def preview(self, folder: RunFolder, *, began: float, data_bytes: int, tell: Callable[[str], None]) -> Preview:
        """Time configurations on one worker, but for those that ``folder`` remembers, and simulate the whole.

        The start-up ``began`` then, by ``time.perf_counter``, and wrote so many bytes of data.
        """

        def probe(trial: Trial, batches: int) -> Profile:
            tell(f"timing {trial.id}")
            return self.backend.probe(trial, batches)

        tell("starting a worker")
        with _one_worker(
            self.backend, dataclasses.replace(self.spec, run="", compare=not self.spec.task.framework.fusion_blocker)
        ):
            start_up = time.perf_counter() - began
            known = {**self.from_record(folder).found, **self._first_look(BATCHES)}
            found = profile_trials(probe, self.configs, seed=self.spec.seed, known=known, budget=lambda found: PATIENCE)
        if not found.found:
            failed = next(iter(found.failed.values()), None)
            said = f"the first one says {failed.error}" if failed else f"backend={self.backend.name!r} trains nothing"
            raise TaskError(f"no configuration could be timed; {said}")
        outline = dataclasses.replace(self.outline, fusions=self.fusions(found.found))
        return previewed(
            outline, found, why=self.why, device=self.spec.device, start_up=start_up, data_bytes=data_bytes, tell=tell
        )

    def _first_look(self, batches: int) -> dict[int, Profile]:
        """Try configurations on one batch: a metric that does not exist, or a transform that is not the same each time,
        is known before work starts.

        Returns what was found, by trial number; so many ``batches`` of training are timed on the way.
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
                    known = ", ".join(profile.metrics)
                    raise UsageError(f"metric={missing!r}: metrics() does not return it; it returns {known}")
                break
        return found


@contextlib.contextmanager
def _one_worker(backend: Backend, spec: WorkerSpec) -> Iterator[None]:
    """A backend with one worker that is ready; it is closed afterwards."""
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
