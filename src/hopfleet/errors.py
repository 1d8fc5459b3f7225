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
"""

from __future__ import annotations

from collections.abc import Sequence

from hopfleet.safe_text import masked, visible


class HopfleetError(Exception):
    """The root of all errors raised on purpose. Messages drive no terminal and show no password of a URL."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(visible(masked(arg)) if isinstance(arg, str) else arg for arg in args))


class UsageError(HopfleetError, ValueError):
    """A value that cannot work."""


class SpaceError(UsageError):
    """A search space, or a value in it, that cannot work."""


class DataError(UsageError):
    """Data that cannot be partitioned, or a data set that is missing or damaged."""


class DataChanged(DataError):
    """The folder holds a data set that differs from the one to be made; ``changes`` says how."""

    def __init__(self, message: str, changes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.changes = list(changes)


class ExperimentExists(UsageError):
    """The name is taken by a different or a finished experiment."""


class NotFound(HopfleetError, LookupError):
    """No experiment, trial or checkpoint with that name."""


class MissingExtra(HopfleetError, ImportError):
    """An optional dependency is missing."""

    def __init__(self, package: str, extra: str, *, otherwise: str = "") -> None:
        hint = f"; {otherwise}" if otherwise else ""
        super().__init__(f"this needs {package}, which is not installed: pip install 'hopfleet[{extra}]'{hint}")


class TaskError(HopfleetError):
    """The task cannot work at all, whatever the configuration."""


class NotFinite(TaskError):
    """The loss of a batch is infinite or not a number."""

    def __init__(self, text: str, *, batch: int) -> None:
        super().__init__(text)
        #: The number of the first such batch in its unit, from 1 on.
        self.batch = batch


class MissingKey(TaskError, KeyError):
    """A key that a configuration does not have."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows its message in quotes


class MissingMetric(NotFound, KeyError):
    """A metric that a trial does not have."""

    def __str__(self) -> str:
        return str(self.args[0])


class AllTrialsFailed(HopfleetError):
    """Every trial failed, or the first trials failed in the same way and the run was stopped.

    ``hop.load`` opens the results all the same.
    """


class CheckpointError(HopfleetError):
    """A model version that cannot be written or read."""


class JournalError(HopfleetError):
    """A journal that cannot be opened."""


class WorkersLost(HopfleetError):
    """No worker is left and none could be started."""


class Interrupted(HopfleetError, KeyboardInterrupt):
    """The user interrupted a run; it can be resumed."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows: the message without a traceback."""
        return [str(self)]


class InvariantBroken(HopfleetError, AssertionError):
    """A bug of Hopfleet itself."""


def describe(error: BaseException, *notes: str) -> str:
    """Return an exception as one line of text, with some notes and with its own."""
    text = str(error).strip().splitlines()
    noted = " ".join("; ".join((*filter(None, notes), *getattr(error, "__notes__", ()))).split())
    return (f"{type(error).__name__}: {text[0]}" if text else type(error).__name__) + (f" ({noted})" if noted else "")
