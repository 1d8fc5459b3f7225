"""The preview of an experiment: what a run takes, from a rehearsal based on profiles, for people and as JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from hopfleet.domain.placement import TeamShape
from hopfleet.forecast.profiling import Profiles, unsteady
from hopfleet.forecast.rehearsal import SLOW, Outline, Rehearsal
from hopfleet.forecast.team_choice import TeamChoice
from hopfleet.monitor.history import History
from hopfleet.monitor.page import facts_html
from hopfleet.monitor.wording import duration, makespan, plural, size
from hopfleet.safe_text import visible
from hopfleet.support.deprecation import deprecated

_SHORT = 0.1  #: seconds; a ratio to a shorter time says nothing


@dataclass(frozen=True)
class Preview:
    """What an experiment takes if all trials behave as profiled. Times are in seconds, sizes in bytes."""

    name: str
    trials: int
    epochs: int
    units: int
    evaluations: int
    workers: int
    why: str  #: the reason for the number of workers
    device: str
    policy: str
    start_up: float  #: until the first unit starts: data, workers and profiling
    makespan: float  #: from the start of the first unit to the end of the last
    finish: datetime.datetime  #: time of day, for a run that starts when the preview is made
    lower_bound: float  #: no schedule has a shorter makespan
    utilisation: Mapping[str, float]  #: the share of its time, from start to end, in which each worker works
    hops: int
    hop_bytes: int
    checkpoint_bytes: int  #: on disk, at most
    data_bytes: int  #: on disk, for data that was not partitioned before
    shared_bytes: int  #: of models in shared memory, at most
    profiled: int  #: configurations that were profiled
    fuse: str  #: how trials train together
    makespans: Mapping[str, float]  #: the makespan for each value of ``fuse``
    assumed: tuple[str, ...]  #: what the figures rest on
    history: History = field(repr=False, compare=False)
    teams: TeamChoice | None = None  #: what trial runs of strategies led to, with ``parallelism="auto"``
    #: When idle devices join as teams, in seconds after the first unit starts, and how these train.
    joined: tuple[tuple[float, tuple[TeamShape, ...]], ...] = ()

    @property
    def ratio(self) -> float:
        return self.makespan / self.lower_bound

    @property
    def mean_utilisation(self) -> float:
        return fmean(self.utilisation.values())

    @property
    def piloted(self) -> int:
        """Return ``profiled``. The old name; deprecated."""
        deprecated("Preview.piloted", "Preview.profiled")
        return self.profiled

    def as_json(self) -> dict[str, Any]:
        """Return all figures as JSON."""
        names = [
            each.name
            for each in dataclasses.fields(self)
            if each.name not in ("history", "finish", "assumed", "teams", "joined")
        ]
        figures = {name: getattr(self, name) for name in (*names, "ratio", "mean_utilisation")}
        return {
            **figures,
            "piloted": self.profiled,  # prose: allow, the old key; goes away in release 0.3
            "utilisation": dict(self.utilisation),
            "makespans": dict(self.makespans),
            "finish": self.finish.isoformat(timespec="seconds"),
            "assumed": list(self.assumed),
            **({} if self.teams is None else {"parallelism": self.teams.as_json()}),
            "joined": [[when, [str(shape) for shape in shapes]] for when, shapes in self.joined],
        }

    def gantt(self, path: str | os.PathLike[str]) -> Any:
        """Draw the predicted schedule as a matplotlib figure; ``path`` ends in .png, .svg or .pdf."""
        from hopfleet.monitor.charts.gantt import draw_gantt

        return draw_gantt(self.history, path)

    def facts(self) -> list[tuple[str, str]]:
        """Return names and values for display."""
        whole = self.start_up + self.makespan
        busy = sorted(self.utilisation.values())
        evaluations = f" and {plural(self.evaluations, 'evaluation')}" if self.evaluations else ""
        data = f", {size(self.data_bytes)} of partitioned data" if self.data_bytes else ""
        why = f" ({self.why})" if self.teams is None else ""
        return [
            ("experiment", f"{self.name}: {plural(self.trials, 'trial')} of {plural(self.epochs, 'epoch')}"),
            ("work", f"{plural(self.units, 'unit')}{evaluations}"),
            ("workers", f"{self.workers} on {self.device}{why}, policy {self.policy}"),
            ("takes", f"{duration(whole)}: {makespan(self.start_up)} to start up, then {makespan(self.makespan)}"),
            *([] if self.teams is None else self.teams.facts()),
            *(
                ("" if number else "teams join", f"after {makespan(when)}: {' + '.join(map(str, shapes))}")
                for number, (when, shapes) in enumerate(self.joined)
            ),
            *([("together", self._gains())] if len(self.makespans) > 1 else []),
            ("done by", f"{self.finish:%Y-%m-%d %H:%M:%S} if started now"),
            ("at best", self._against_bound()),
            ("workers busy", f"{self.mean_utilisation:.0%}, from {busy[0]:.0%} to {busy[-1]:.0%}"),
            ("hops", f"{self.hops}, {size(self.hop_bytes)} in all"),
            ("disk", f"{size(self.checkpoint_bytes)} of checkpoints{data}"),
            ("shared memory", size(self.shared_bytes)),
            *(("assumed" if number == 0 else "", text) for number, text in enumerate(self.assumed)),
        ]

    def _against_bound(self) -> str:
        if self.lower_bound < _SHORT:
            return f"less than {_SHORT} s, too short to compare"
        return f"{makespan(self.lower_bound)}; this is {self.ratio:.3f} of it"

    def _gains(self) -> str:
        others = [
            f"{seconds / self.makespan:.2f} times as long with {fuse!r}"
            for fuse, seconds in self.makespans.items()
            if fuse != self.fuse
        ]
        return f"fuse={self.fuse!r}; it would take {' and '.join(others)}"

    def __str__(self) -> str:
        facts = self.facts()
        width = max(len(name) for name, _ in facts)
        return "\n".join(f"{name.ljust(width)}  {value}" for name, value in facts)

    def _repr_html_(self) -> str:
        return facts_html(self.facts())


def previewed(
    outline: Outline,
    profiles: Profiles,
    *,
    why: str,
    device: str,
    start_up: float,
    data_bytes: int,
    tell: Callable[[str], None],
) -> Preview:
    """Simulate an experiment and summarise it."""
    part = outline.small_enough()
    tell(f"simulating {part.trials * part.per_trial} units and evaluations")
    rehearsal = Rehearsal(part, profiles).run()
    bound = outline.lower_bound(profiles)
    scale = bound / part.lower_bound(profiles)
    seconds = rehearsal.makespan * scale
    makespans = {outline.fuse: seconds}
    for fuse in ("off", *outline.fusions):
        if fuse not in makespans and (
            fuse == "off" or any(getattr(x, f"{fuse}_share") for x in profiles.found.values())
        ):
            tell(f"simulating fuse={fuse!r}")
            makespans[fuse] = Rehearsal(dataclasses.replace(part, fuse=fuse), profiles).run().makespan * scale
    share = outline.trials * outline.per_trial / (part.trials * part.per_trial)
    workers = rehearsal.history.workers.values()
    busy, gone = rehearsal.history.busy_fraction(), {each.name for each in workers if each.lost == each.joined}
    sizes = [profile.size for profile in profiles.found.values()]
    return Preview(
        name=outline.name,
        trials=outline.trials,
        epochs=outline.epochs,
        units=outline.trials * outline.epochs * len(outline.rows),
        evaluations=outline.trials * outline.epochs * len(outline.valid_rows),
        workers=outline.workers,
        why=why,
        device=device,
        policy=outline.policy_name,
        start_up=start_up,
        makespan=seconds,
        finish=datetime.datetime.now().astimezone() + datetime.timedelta(seconds=start_up + seconds),
        lower_bound=bound,
        utilisation={name: part for name, part in busy.items() if name not in gone},
        hops=round(rehearsal.history.hops * share),
        hop_bytes=round(rehearsal.hop_bytes * share),
        # The best and the last version of every trial, and one that each worker writes before it drops an older one.
        checkpoint_bytes=round(fmean(sizes) * outline.trials) * min(2, outline.epochs) + outline.workers * max(sizes),
        data_bytes=data_bytes,
        shared_bytes=rehearsal.shared_bytes,
        profiled=profiles.tried,
        fuse=outline.fuse,
        makespans=makespans,
        assumed=tuple(_assumed(outline, part, profiles)),
        history=rehearsal.history,
        joined=tuple((when * scale, shapes) for when, shapes in rehearsal.joined),
    )


def _assumed(outline: Outline, part: Outline, profiles: Profiles) -> Iterator[str]:
    if outline.open_ended:
        yield f"{outline.trials} trials; the search continues until a budget is spent"
    yield f"every trial trains for {plural(outline.epochs, 'epoch')}; a search that stops some takes less"
    yield "every worker can read every partition and is as fast as the profiled one"
    if outline.scaling is not None:
        yield "teams with more devices than were tried lose the same part of their speed with each device"
    if (timed := len(profiles.found)) < outline.trials:
        yield f"{timed} of {outline.trials} trials were profiled; the others are assumed to be like them on average"
    for column in sorted({profile.unsteady for profile in profiles.found.values()} - {""}):
        yield unsteady("transform()", column)
    yield from sorted({profile.varying for profile in profiles.found.values()} - {""})
    if profiles.failed:
        number, profile = next(iter(profiles.failed.items()))
        yield f"{plural(len(profiles.failed), 'trial')} failed in profiling; t{number + 1:04d} raised {profile.error}"
    if part != outline:
        trials, epochs = plural(part.trials, "trial"), plural(part.epochs, "epoch")
        yield f"{trials} of {epochs} were simulated and extrapolated"


@contextlib.contextmanager
def slow(
    quiet: bool, clock: Callable[[], float] = time.monotonic, what: str = "preview"
) -> Iterator[Callable[[str], None]]:
    """Yield a function that reports progress on standard error, at most every ``SLOW`` seconds."""
    next_report = clock() + SLOW

    def tell(text: str) -> None:
        nonlocal next_report
        if not quiet and clock() >= next_report:
            next_report = clock() + SLOW
            sys.stderr.write(visible(f"{what}: {text}\n"))

    yield tell
