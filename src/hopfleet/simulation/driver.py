"""The driver of an experiment in virtual time: that of real runs, with the same effects on versions in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import FormTeams, Message
from hopfleet.monitor.observer import Observer
from hopfleet.runtime.driver import Driver, Effects
from hopfleet.runtime.effects import Copies, Deferred, VersionEffects
from hopfleet.simulation.backend import Simulated


class AtOnce:
    """Jobs that run when they are added."""

    def add(self, job: Callable[[], object]) -> None:
        job()

    def finish(self) -> None:
        """Do nothing: all jobs are done."""

    def pause(self, seconds: float) -> bool:
        return True


def simulated_driver(
    controller: Controller,
    backend: Simulated,
    observers: Sequence[Observer] = (),
    *,
    journal: Callable[[float, Sequence[Message]], None] | None = None,
    effects: Effects | None = None,
    chores: Deferred | None = None,
    copies: Copies | None = None,
    make: type[Driver] = Driver,
) -> Driver:
    """Return a driver of a controller and simulated workers; ``effects`` replace those of a real run.

    ``chores`` and ``copies`` take deferred deletions and the copies of versions; both happen at once by default.
    """
    saved = VersionEffects(
        controller.schedule,
        backend.saved,
        chores=chores or AtOnce(),
        copies=copies or AtOnce(),
        report=backend.report,
        retry=lambda path, write: write(),
    )
    teams: Effects = {FormTeams: lambda command: backend.form_teams(command.shapes)}
    every = {**teams, **saved.effects(), **(effects or {})}
    return make(controller, backend, observers, journal=journal, effects=every, refused=saved.refuse)
