"""Control: steer an experiment from any process of the same user.

Each method puts a request into the journal's queue and waits for the answer. The controller of a running experiment
answers within a fraction of a second. Without a running controller, the request is checked as far as the journal
allows and then waits for the next run. All decisions are the controller's.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import shlex
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from hopfleet.controller.request_arguments import check_arguments
from hopfleet.domain import space as spaces
from hopfleet.domain.bounds import MOST, MOST_WORKERS, excess
from hopfleet.domain.messages import RequestAnswered
from hopfleet.domain.signatures import explained
from hopfleet.domain.trial import TrialState
from hopfleet.errors import UsageError
from hopfleet.monitor.history import History, TrialHistory
from hopfleet.phrases import shown
from hopfleet.runs.state import read_history
from hopfleet.search import SEARCHES
from hopfleet.search.base import Search
from hopfleet.store.base import JournalStore, Request
from hopfleet.store.folder import RunFolder, find_run
from hopfleet.store.local import open_journal
from hopfleet.support.attributes import Signposted
from hopfleet.support.deprecation import deprecated

WAIT_SECONDS = 10.0
"""Default seconds to wait for the answer of a running experiment; without one, the request stays in the queue."""

DIGITS = 18
"""Most digits of the number of a trial, or of workers, that are read as a number."""

LOOK_SECONDS = 0.02
"""Seconds between two looks into the journal while waiting for an answer."""


@explained
def control(name: str | os.PathLike[str], *, who: str | None = None, wait: float = WAIT_SECONDS) -> Control:
    """Return the control of an experiment, found by its name or run folder. ``who`` defaults to user@host."""
    return Control(find_run(name), who=who, wait=wait)


class Control(Signposted):
    """The control of one experiment. Each method returns the answer as text and raises UsageError on a refusal.

    A trial is named by its id, as in ``"t0003"``, or by its number alone.
    """

    ELSEWHERE: ClassVar = {
        **dict.fromkeys(("kill", "cancel", "terminate", "abort"), "control.stop(TRIAL, now=True)"),
        **dict.fromkeys(("prioritize", "priority"), "control.prioritise(TRIAL, LEVEL)"),
        **dict.fromkeys(("remove", "drop"), "control.delete(TRIAL)"),
        **dict.fromkeys(("unpause", "continue_", "go"), "control.proceed()"),
        **dict.fromkeys(("scale", "add_workers", "set_workers"), "control.workers('+2')"),
    }

    def __init__(self, folder: RunFolder, *, who: str | None = None, wait: float = WAIT_SECONDS) -> None:
        if not isinstance(folder, RunFolder):
            raise UsageError(f"Control({folder!r}): an experiment is controlled with hop.control(NAME)")
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not wait >= 0:
            raise UsageError(f"wait={wait!r}: must be a number of seconds, at least 0")
        self.folder = folder
        self.who = _me() if who is None else who
        self.wait = wait

    def __repr__(self) -> str:
        return f"<Control of {self.folder.handle} by {self.who}>"

    # --------------------------------------------------------------------------------------------- one trial

    def stop(self, trial: str | int, now: bool = False) -> str:
        """Stop a trial after its current unit, or at once with ``now``. The trial's models are kept."""
        return self._ask("stop", trial=_name(trial), now=now)

    def resume(self, trial: str | int, epochs: int | None = None) -> str:
        """Continue a stopped, paused or completed trial, up to ``epochs`` epochs in total."""
        return self._ask("resume", trial=_name(trial), epochs=epochs)

    def delete(self, trial: str | int, now: bool = False) -> str:
        """Delete a trial and its models. Only the journal keeps a record of the trial."""
        return self._ask("delete", trial=_name(trial), now=now)

    def clone(
        self,
        trial: str | int,
        changes: Mapping[str, Any] | None = None,
        warm: bool = False,
        epochs: int | None = None,
    ) -> str:
        """Add a trial with the configuration of another trial and some ``changes``, given by dotted path.

        A ``warm`` clone continues from the other trial's last epoch, with its model, optimizer and random streams.
        """
        given = {} if changes is None else _plain(changes, "changes")
        return self._ask("clone", trial=_name(trial), changes=given, warm=warm, epochs=epochs)

    def add(self, config: Mapping[str, Any]) -> str:
        """Add a trial with a complete configuration."""
        return self._ask("add", config=_plain(config, "config"))

    def prioritise(self, trial: str | int, level: int = 1) -> str:
        """Schedule a trial before all trials of a lower level. Every trial starts at level 0."""
        return self._ask("prioritise", trial=_name(trial), level=level)

    # ------------------------------------------------------------------------------------ the whole experiment

    def extend(self, trials: int = 0, epochs: int = 0, space: Mapping[str, Any] | None = None) -> str:
        """Add trials, add epochs to all trials, or change dimensions of the space for trials yet to be drawn.

        A dimension is an object or its text, as in ``{"lr": "loguniform(1e-5, 1e-2)"}``.
        """
        if isinstance(space, Mapping) and (wrong := excess(space, "space")):
            raise UsageError(wrong)
        described = spaces.describe(space) if isinstance(space, Mapping) else {} if space is None else space
        return self._ask("extend", trials=trials, epochs=epochs, space=described)

    def pause(self) -> str:
        """Finish running units and start no others until ``proceed``."""
        return self._ask("pause")

    def proceed(self) -> str:
        """Continue after ``pause``."""
        return self._ask("proceed")

    def workers(self, count: int | str) -> str:
        """Set the number of workers, or change it by ``"+2"`` or ``"-1"``. Removed workers finish their unit first."""
        number, relative = _count(count)
        return self._ask("workers", by=number) if relative else self._ask("workers", count=number)

    # --------------------------------------------------------------------------------------------------- asking

    def wishes(self) -> list[Request]:  # prose: allow, the old name
        """Return ``requests()``. The old name; deprecated."""
        deprecated("Control.wishes()", "Control.requests()")  # prose: allow, the old name
        return self.requests()

    def requests(self) -> list[Request]:
        """Return the audit trail: every request ever made, with its time, its author and its answer."""
        with self._journal() as journal:
            return journal.requests.trail()

    def _ask(self, request: str, **arguments: Any) -> str:
        given = {name: value for name, value in arguments.items() if value is not None}
        running = self.folder.running
        # The controller of a running experiment checks the same and answers, so that a refusal is in the audit trail.
        if not running or not _is_json(given):
            definition = self.folder.definition()
            check_arguments(request, given, spaces.recalled(definition["space"]))
            if request == "extend":
                _check_extension(definition["search"].get("search", ""), given)
        if not running:
            CHECKS.get(request, _unchecked)(read_history(self.folder), given)
        with self._journal() as journal:
            number = journal.requests.ask(self.who, request, given)
            answer = self._answer(journal, number)
        if answer is None:
            return self._later(number)
        if not answer.granted:
            raise UsageError(answer.text)
        return answer.text

    def _answer(self, journal: JournalStore, number: int) -> RequestAnswered | None:
        deadline = time.monotonic() + self.wait
        while True:
            # Look at the lock before the journal: an answer given just before the run ended is then found.
            running = self.folder.running
            answer = journal.requests.answer(number)
            if answer is not None or not running or time.monotonic() > deadline:
                return answer
            time.sleep(LOOK_SECONDS)

    def _later(self, number: int) -> str:
        handle = shlex.quote(self.folder.handle)
        if self.folder.running:
            return f"request {number} has no answer yet; hopfleet requests {handle} will show it"
        return f"request {number} is queued for the next run: hopfleet resume {handle}"

    def _journal(self) -> contextlib.closing[JournalStore]:
        return contextlib.closing(open_journal(self.folder))


# ------------------------------------------------------------------- checks of requests while nothing is running


def _known(history: History, trial: str) -> TrialHistory:
    if trial not in history.trials:
        raise UsageError(f"trial {trial!r}: no such trial; hopfleet show lists all trials")
    return history.trials[trial]


def _unchecked(history: History, given: Mapping[str, Any]) -> None:
    """Accept the request; the next run checks it."""


def _check_trial(history: History, given: Mapping[str, Any]) -> None:
    _known(history, given["trial"])


def _check_live(history: History, given: Mapping[str, Any]) -> None:
    trial = _known(history, given["trial"])
    if trial.state.ended:
        raise UsageError(f"{trial.id} is {trial.state.value}: a trial that has ended cannot be stopped or prioritised")


def _check_prioritise(history: History, given: Mapping[str, Any]) -> None:
    _check_live(history, given)
    if _known(history, given["trial"]).state is TrialState.PAUSED:
        raise UsageError(f"{given['trial']} is paused: a trial that does not train cannot be prioritised; resume it")


def _check_resume(history: History, given: Mapping[str, Any]) -> None:
    trial = _known(history, given["trial"])
    if trial.state is TrialState.FAILED:
        raise UsageError(f"{trial.id} failed and would fail again; clone it with another configuration")
    until = given.get("epochs")
    if trial.state in (TrialState.PENDING, TrialState.RUNNING) and (until is None or until <= trial.epochs):
        raise UsageError(
            f"{trial.id} trains until epoch {trial.epochs} in the next run anyway; to train it longer, give a larger "
            "number of epochs"
        )
    if until is not None and until <= trial.epochs_trained:
        raise UsageError(
            f"epochs={until}: {trial.id} has already trained for {trial.epochs_trained} epochs; give a larger number"
        )


def _check_clone(history: History, given: Mapping[str, Any]) -> None:
    trial = _known(history, given["trial"])
    spaces.changed(trial.config, given.get("changes", {}))
    warm = given.get("warm", False)
    if warm and not trial.saved:
        raise UsageError(
            f"{trial.id} has no saved model yet; wait for the end of its first epoch, or clone it without warm"
        )
    until = given.get("epochs")
    if warm and until is not None and until <= trial.epochs_trained:
        raise UsageError(
            f"epochs={until}: {trial.id} has already trained for {trial.epochs_trained} epochs; give a larger number"
        )


def _check_extend(history: History, given: Mapping[str, Any]) -> None:
    if not any(map(given.get, ("trials", "epochs", "space"))):
        raise UsageError("extend: nothing to add; give trials, epochs or dimensions")


def _check_extension(search: str, given: Mapping[str, Any]) -> None:
    """Raise UsageError if no search of that class, as far as Hopfleet knows it, can be extended in this way."""
    for known in SEARCHES.values():
        if isinstance(known, type) and issubclass(known, Search) and known.__name__ == search:
            space = spaces.parse(given.get("space", {}))
            known.check_extension(trials=given.get("trials", 0), epochs=given.get("epochs", 0), space=space)


def _check_running(history: History, given: Mapping[str, Any]) -> None:
    raise UsageError(f"{history.name} is not running, so there is nothing to pause or continue")


CHECKS: Mapping[str, Callable[[History, Mapping[str, Any]], None]] = {
    "clone": _check_clone,
    "delete": _check_trial,
    "extend": _check_extend,
    "pause": _check_running,
    "prioritise": _check_prioritise,
    "proceed": _check_running,
    "resume": _check_resume,
    "stop": _check_live,
}


def _plain(values: Any, name: str) -> Any:
    """Return a dict as JSON represents it; anything else as it is, for the check of arguments."""
    return spaces.plain(values, [name]) if isinstance(values, Mapping) else values


def _is_json(given: Mapping[str, Any]) -> bool:
    """Whether arguments can be put into the queue; if not, the check of arguments names what is wrong."""
    if any(excess(value, name) for name, value in given.items()):
        return False
    try:
        json.dumps(given)
    except (TypeError, ValueError):
        return False
    return True


def _name(trial: str | int) -> str:
    text = str(trial) if not isinstance(trial, int) or abs(trial) <= MOST else shown(trial)
    return f"t{int(text):04d}" if text.isascii() and text.isdigit() and len(text) <= DIGITS else text


def _count(count: int | str) -> tuple[int, bool]:
    """Return a number of workers, and whether the number is relative."""
    text = shown(count) if isinstance(count, int) else str(count)
    if not (text.isascii() and re.fullmatch(rf"[+-]?\d{{1,{DIGITS}}}", text)):
        raise UsageError(
            f"workers={shown(count)}: must be a number of at most {MOST_WORKERS:,}, or a change such as '+2' or '-1'"
        )
    relative = text[0] in "+-"
    if int(text) == 0 or (relative and isinstance(count, int)):
        raise UsageError(f"workers={shown(count)}: must be an integer of at least 1; to run none, pause the experiment")
    return int(text), relative


def _me() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
