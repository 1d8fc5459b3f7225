"""Control: a person at the wheel of an experiment, from any process of the same user.

Each method puts a wish into the queue of the journal and waits for the answer. While a run is going on, its controller
answers within a fraction of a second. Otherwise what can be checked is checked at once, and the wish waits for the next
run. Nothing is decided here.

The module is not called like the function: importing it would put it in the place of ``hopfleet.control``.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.messages import RequestAnswered
from hopfleet.domain.trial import TrialState
from hopfleet.errors import UsageError
from hopfleet.monitor.history import TrialHistory
from hopfleet.runs.results import Results
from hopfleet.store.folder import RunFolder, find_run
from hopfleet.store.journal import Journal, Request
from hopfleet.support.deprecation import deprecated

WAIT_SECONDS = 10.0
"""How long to wait for an answer of a run that is going on."""

LOOK_SECONDS = 0.02
"""How often to look for it."""


def control(name: str | os.PathLike[str], *, who: str | None = None, wait: float = WAIT_SECONDS) -> Control:
    """The wheel of an experiment, by its name or run folder. ``who`` is user@host unless told."""
    return Control(find_run(name), who=who, wait=wait)


class Control:
    """Asks things of an experiment. Every method returns the answer in words, or raises UsageError if it is refused.

    A trial is named as in ``"t0003"``, or by its number alone.
    """

    def __init__(self, folder: RunFolder, *, who: str | None = None, wait: float = WAIT_SECONDS) -> None:
        self.folder = folder
        self.who = _me() if who is None else who
        self.wait = wait

    def __repr__(self) -> str:
        return f"<Control of {self.folder.handle} by {self.who}>"

    # --------------------------------------------------------------------------------------------- one trial

    def stop(self, trial: str | int, now: bool = False) -> str:
        """Train a trial no further. It finishes what it is doing, unless that is to end ``now``. Its model stays."""
        return self._ask("stop", trial=_name(trial), now=now)

    def resume(self, trial: str | int, epochs: int | None = None) -> str:
        """Let a trial go on that was stopped, paused or completed, until so many epochs in all."""
        return self._ask("resume", trial=_name(trial), epochs=epochs)

    def delete(self, trial: str | int, now: bool = False) -> str:
        """Forget a trial and its models. Only the journal remembers it."""
        return self._ask("delete", trial=_name(trial), now=now)

    def clone(
        self,
        trial: str | int,
        changes: Mapping[str, Any] | None = None,
        warm: bool = False,
        epochs: int | None = None,
    ) -> str:
        """Add a trial with the configuration of another one but for some ``changes``, by dotted path.

        A ``warm`` one goes on from the last epoch of the other one, with its model, optimizer and random streams.
        """
        given = spaces.plain(dict(changes or {}), ["changes"])
        return self._ask("clone", trial=_name(trial), changes=given, warm=warm, epochs=epochs)

    def add(self, config: Mapping[str, Any]) -> str:
        """Add a trial with a whole configuration."""
        return self._ask("add", config=spaces.plain(dict(config), ["config"]))

    def prioritise(self, trial: str | int, level: int = 1) -> str:
        """Let a trial go before those of a lower level; all begin with level 0."""
        return self._ask("prioritise", trial=_name(trial), level=level)

    # ------------------------------------------------------------------------------------ the whole experiment

    def extend(self, trials: int = 0, epochs: int = 0, space: Mapping[str, Any] | None = None) -> str:
        """More trials, more epochs for all, other dimensions for the trials to come.

        Dimensions are given as such or as text, ``{"lr": "loguniform(1e-5, 1e-2)"}``.
        """
        described = spaces.describe(dict(space or {}))
        spaces.parse(described)
        return self._ask("extend", trials=trials, epochs=epochs, space=described)

    def pause(self) -> str:
        """Start no more units until ``proceed``. Those at work end."""
        return self._ask("pause")

    def proceed(self) -> str:
        """Go on after ``pause``."""
        return self._ask("proceed")

    def workers(self, count: int | str) -> str:
        """Have so many workers; ``"+2"`` and ``"-1"`` mean more or fewer. Those that go finish their unit first."""
        number, relative = _count(count)
        return self._ask("workers", by=number) if relative else self._ask("workers", count=number)

    # --------------------------------------------------------------------------------------------------- asking

    def wishes(self) -> list[Request]:
        """Return ``requests()``. The old name; deprecated."""
        deprecated("Control.wishes()", "Control.requests()")
        return self.requests()

    def requests(self) -> list[Request]:
        """The audit trail: everything that anybody ever asked for, when, and what came of it."""
        with self._journal() as journal:
            return journal.trail()

    def _ask(self, request: str, **arguments: Any) -> str:
        given = {name: value for name, value in arguments.items() if value is not None}
        if not self.folder.running:
            CHECKS.get(request, _unchecked)(Results(self.folder), given)
        with self._journal() as journal:
            number = journal.ask(self.who, request, given)
            answer = self._answer(journal, number)
        if answer is None:
            return self._later(number)
        if not answer.granted:
            raise UsageError(answer.text)
        return answer.text

    def _answer(self, journal: Journal, number: int) -> RequestAnswered | None:
        deadline = time.monotonic() + self.wait
        while True:
            running = self.folder.running  # asked first: what it answered at its very end is there
            answer = journal.answer(number)
            if answer is not None or not running or time.monotonic() > deadline:
                return answer
            time.sleep(LOOK_SECONDS)

    def _later(self, number: int) -> str:
        handle = shlex.quote(self.folder.handle)
        if self.folder.running:
            return f"wish {number} has no answer yet; hopfleet requests {handle} will show it"
        return f"wish {number} waits for: hopfleet resume {handle}"

    def _journal(self) -> contextlib.closing[Journal]:
        return contextlib.closing(Journal(self.folder.journal_file))


# --------------------------------------------------------------------- what can be told without the controller


def _known(results: Results, trial: str) -> TrialHistory:
    if trial not in results.history.trials:
        raise UsageError(f"trial {trial!r}: there is none of that name; hopfleet show lists them")
    return results.history.trials[trial]


def _unchecked(results: Results, given: Mapping[str, Any]) -> None:
    """All else is up to the run that takes the wish."""


def _check_trial(results: Results, given: Mapping[str, Any]) -> None:
    _known(results, given["trial"])


def _check_live(results: Results, given: Mapping[str, Any]) -> None:
    trial = _known(results, given["trial"])
    if trial.state.ended:
        raise UsageError(f"{trial.id} does not train: it is {trial.state.value}")


def _check_resume(results: Results, given: Mapping[str, Any]) -> None:
    trial = _known(results, given["trial"])
    if trial.state is TrialState.FAILED:
        raise UsageError(f"{trial.id} has failed and would fail again; clone it with another configuration")
    until = given.get("epochs")
    if until is not None and until <= trial.epochs_trained:
        raise UsageError(
            f"epochs={until}: {trial.id} has trained for {trial.epochs_trained} epochs already; ask for more"
        )


def _check_clone(results: Results, given: Mapping[str, Any]) -> None:
    trial = _known(results, given["trial"])
    spaces.changed(trial.config, given["changes"])
    if given["warm"] and not trial.saved:
        raise UsageError(f"{trial.id} has no saved model yet; wait for the end of its first epoch, or clone it cold")


def _check_add(results: Results, given: Mapping[str, Any]) -> None:
    mine, known = spaces.flatten(given["config"]), spaces.flatten(results.definition["space"])
    wrong = [f"{name} is unknown" for name in sorted(mine.keys() - known.keys())]
    wrong += [f"{name} is missing" for name in sorted(known.keys() - mine.keys())]
    if wrong:
        raise UsageError(f"config: {', '.join(wrong)}; there are {', '.join(known)}")


def _check_extend(results: Results, given: Mapping[str, Any]) -> None:
    if not (given["trials"] or given["epochs"] or given["space"]):
        raise UsageError("extend by what? Give trials, epochs or dimensions")
    spaces.widened(results.definition["space"], given["space"])


def _check_running(results: Results, given: Mapping[str, Any]) -> None:
    raise UsageError(f"{results.name} does not run, so there is nothing to pause or to let proceed")


CHECKS: Mapping[str, Callable[[Results, Mapping[str, Any]], None]] = {
    "add": _check_add,
    "clone": _check_clone,
    "delete": _check_trial,
    "extend": _check_extend,
    "pause": _check_running,
    "prioritise": _check_live,
    "proceed": _check_running,
    "resume": _check_resume,
    "stop": _check_live,
}


def _name(trial: str | int) -> str:
    text = str(trial)
    return f"t{int(text):04d}" if text.isascii() and text.isdigit() else text


def _count(count: int | str) -> tuple[int, bool]:
    """A number of workers, and whether it is one more or fewer."""
    text = str(count)
    if not (text.isascii() and text.lstrip("+-").isdigit()):
        raise UsageError(f"workers={count!r}: must be a number, or one more or fewer like +2 and -1")
    relative = text[0] in "+-"
    if int(text) == 0 or (relative and isinstance(count, int)):
        raise UsageError(f"workers={count!r}: must be an integer of at least 1; Ctrl-C or pause let nothing run")
    return int(text), relative


def _me() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
