"""Every exception that Hopfleet raises on purpose.

HopfleetError
├── UsageError (ValueError)         a value that cannot work: the message names value, constraint, remedy
│   ├── SpaceError                  ... in the search space
│   ├── DataError                   ... in the data, or a damaged data set
│   │   └── DataChanged             the folder holds a data set of other rows or partitions
│   └── ExperimentExists            the name is taken by another or a finished experiment
├── NotFound (LookupError)          no experiment, trial or checkpoint with that name
│   └── MissingMetric (KeyError)    no metric with that name in a trial
├── MissingExtra (ImportError)      an optional dependency is missing: the message names the extra to install
├── TaskError                       the task cannot work at all, whatever the configuration
│   ├── NotFinite                   ... because its loss became infinite or NaN
│   └── MissingKey (KeyError)       ... because it asks for a key that its configuration does not have
├── AllTrialsFailed                 every trial failed: the message has the first traceback
├── CheckpointError                 a model version that cannot be written or read
├── JournalError                    a journal that cannot be opened or read
├── WorkersLost                     no worker is left and none could be started
├── Interrupted (KeyboardInterrupt) the user interrupted a run, which can be resumed
└── InvariantBroken (AssertionError) a bug of Hopfleet: one of the invariants was about to break

Each class has a code. A traceback names it below the message, the command line behind the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hopfleet.safe_text import masked, visible


class HopfleetError(Exception):
    """The root of all errors raised on purpose. Messages drive no terminal and show no password of a URL."""

    #: The page of the documentation that explains the class: docs/errors/CODE.md.
    code: ClassVar[str] = "HF100"

    def __init__(self, *args: object) -> None:
        super().__init__(*(visible(masked(arg)) if isinstance(arg, str) else arg for arg in args))
        self.add_note(_reference(self))


class UsageError(HopfleetError, ValueError):
    """A value that cannot work."""

    code = "HF110"


class SpaceError(UsageError):
    """A search space, or a value in it, that cannot work."""

    code = "HF111"


class DataError(UsageError):
    """Data that cannot be partitioned, or a data set that is missing or damaged."""

    code = "HF112"


class DataChanged(DataError):
    """The folder holds a data set that differs from the one to be made; ``changes`` says how."""

    code = "HF113"

    def __init__(self, message: str, changes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.changes = list(changes)


class ExperimentExists(UsageError):
    """The name is taken by a different or a finished experiment."""

    code = "HF114"


class NotFound(HopfleetError, LookupError):
    """No experiment, trial or checkpoint with that name."""

    code = "HF120"


class MissingExtra(HopfleetError, ImportError):
    """An optional dependency is missing."""

    code = "HF130"

    def __init__(self, package: str, extra: str, *, otherwise: str = "") -> None:
        hint = f"; {otherwise}" if otherwise else ""
        super().__init__(f"this needs {package}, which is not installed: pip install 'hopfleet[{extra}]'{hint}")


class TaskError(HopfleetError):
    """The task cannot work at all, whatever the configuration."""

    code = "HF140"


class NotFinite(TaskError):
    """The loss of a batch is infinite or not a number."""

    code = "HF141"

    def __init__(self, text: str, *, batch: int) -> None:
        super().__init__(text)
        #: The number of the first such batch in its unit, from 1 on.
        self.batch = batch


class MissingKey(TaskError, KeyError):
    """A key that a configuration does not have."""

    code = "HF142"

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows its message in quotes


class MissingMetric(NotFound, KeyError):
    """A metric that a trial does not have."""

    code = "HF121"

    def __str__(self) -> str:
        return str(self.args[0])


class AllTrialsFailed(HopfleetError):
    """Every trial failed, or the first trials failed in the same way and the run was stopped.

    ``hop.load`` opens the results all the same.
    """

    code = "HF150"


class CheckpointError(HopfleetError):
    """A model version that cannot be written or read."""

    code = "HF160"


class JournalError(HopfleetError):
    """A journal that cannot be opened."""

    code = "HF170"


class WorkersLost(HopfleetError):
    """No worker is left and none could be started."""

    code = "HF180"


class Interrupted(HopfleetError, KeyboardInterrupt):
    """The user interrupted a run; it can be resumed."""

    code = "HF190"

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows: the message without a traceback."""
        return [str(self)]


class InvariantBroken(HopfleetError, AssertionError):
    """A bug of Hopfleet itself."""

    code = "HF199"


def _reference(error: HopfleetError) -> str:
    """Return the note that a traceback shows below the message."""
    return f"See {error.code} in the documentation."


def describe(error: BaseException, *notes: str) -> str:
    """Return an exception as one line of text, with some notes and with its own, except where it is explained."""
    text = str(error).strip().splitlines()
    own = list(getattr(error, "__notes__", ()))
    if isinstance(error, HopfleetError) and (reference := _reference(error)) in own:
        own.remove(reference)
    noted = " ".join("; ".join((*filter(None, notes), *own)).split())
    return (f"{type(error).__name__}: {text[0]}" if text else type(error).__name__) + (f" ({noted})" if noted else "")
