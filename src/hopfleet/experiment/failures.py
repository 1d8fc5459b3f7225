"""What users are told when a run ends early, or when none of its trials has succeeded."""

from __future__ import annotations

from hopfleet.domain.trial import TrialState
from hopfleet.errors import AllTrialsFailed, HopfleetError, Interrupted, WorkersLost
from hopfleet.experiment.running import Ending
from hopfleet.runs.results import Results
from hopfleet.runs.trial_result import TrialResult


def raise_if_all_failed(results: Results) -> None:
    """Raise AllTrialsFailed, with the traceback of the first trial, if there are trials and all of them have failed."""
    failed = _failed(results)
    if not failed or len(failed) < len(results.trials):
        return
    first, handle = failed[0], results.folder.handle
    which = f"all {len(failed)} trials failed, the first one with" if len(failed) > 1 else "the only trial failed with"
    raise AllTrialsFailed(
        f"{results.name}: {which} {_why(first)}\n\nhopfleet show {handle} --trial {first.id} shows it again, "
        f"hop.load({handle!r}) opens the results; with hop.RunOptions(all_failed='return'), fit() returns them"
    )


def ended_early(results: Results, ending: Ending) -> HopfleetError:
    """Return the error of a run that ended before its search was complete."""
    name, handle = results.name, results.folder.handle
    if ending.failing:
        first = _failed(results)[0]
        return AllTrialsFailed(
            f"{name}: the run was stopped, since {ending.reason}\n\n{_why(first)}\n\ncorrect the task and call fit() "
            f"again, which starts over; hop.RunOptions(fail_fast=False) tries all trials; hopfleet show {handle} "
            f"--trial {first.id} shows the traceback again"
        )
    again = f"hopfleet resume {handle}"
    if ending.reason:
        return WorkersLost(f"{name}: {ending.reason}: {again}")
    return Interrupted(f"{name} was interrupted and can continue: {again}, or call fit() again")


def _failed(results: Results) -> list[TrialResult]:
    return [trial for trial in results.trials if trial.state is TrialState.FAILED]


def _why(trial: TrialResult) -> str:
    return (trial.error or "an unknown error").rstrip()
