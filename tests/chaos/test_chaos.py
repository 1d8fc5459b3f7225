"""The attacks in their short forms. ``make chaos`` runs the long ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.schedule import Schedule
from tests.chaos import liveness, simulated
from tests.chaos.__main__ import ATTACKS
from tests.helpers import warm
from tests.helpers.attempts import Attempts
from tests.helpers.processes import ROOT, environment


def python(*arguments: str) -> str:
    # Fork servers are children of the runs that are attacked, so they start cold.
    done = warm.run([sys.executable, "-m", *arguments], cwd=ROOT, env={**environment(), warm.ADDRESS: ""}, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 1_000), marks=pytest.mark.slow)], ids=len)
def test_simulated(seeds: range) -> None:
    told = python("tests.chaos.simulated", "--seeds", f"{seeds.start}:{seeds.stop}")
    assert f"{len(seeds):,} seeds" in told


STALLED = (64, 80, 152, 208, 239)
"""Seeds that stalled while plans had gaps for trials that went on after a pause."""


@pytest.mark.parametrize(
    "seeds", [(*STALLED[:2], *range(3)), pytest.param((*STALLED, *range(500, 525)), marks=pytest.mark.slow)], ids=len
)
def test_no_run_stalls(seeds: Sequence[int]) -> None:
    assert liveness.run_all(seeds) == []


SHORT = {"journal"}


@pytest.mark.parametrize(
    "name",
    [
        *sorted(SHORT),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in sorted(ATTACKS.keys() - {"controller-steps-local"} - SHORT)
        ),
    ],
)
def test_real(name: str) -> None:
    python("tests.chaos", "--only", name, "--faults", "8")


# -------------------------------------------------------------------------------------- the attacks can find something


def found(seeds: int) -> bool:
    return any(simulated.run([seed]).failed for seed in range(seeds))


def test_a_zombie_that_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the number of the attempt, reports of those taken for dead are accepted."""
    monkeypatch.setattr(Schedule, "accepts", lambda self, worker, unit, attempt: worker in self.slots)
    assert found(100)


def test_a_lost_worker_that_keeps_its_models_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = Schedule.leave

    def kept(self: Schedule, worker: str) -> object:
        held = [progress for progress in self.trials.values() if progress.holder == worker]
        unit = leave(self, worker)
        for progress in held:
            progress.holder = worker
        return unit

    monkeypatch.setattr(Schedule, "leave", kept)
    assert found(100)


def test_another_order_after_a_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    roll_back = Schedule.roll_back

    def freely(self: Schedule, trial: str, version: int) -> None:
        roll_back(self, trial, version)
        self.trials[trial].forced.clear()

    monkeypatch.setattr(Schedule, "roll_back", freely)
    assert found(300)


def test_what_the_journal_does_not_tell_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that forgets in a crash what was rolled back."""
    restore = Controller.restore

    def forgetful(self: Controller, messages: list[m.Message]) -> None:
        restore(self, [message for message in messages if not isinstance(message, m.TrialRolledBack)])

    monkeypatch.setattr(Controller, "restore", forgetful)
    assert found(300)


def test_the_history_is_read_attempt_by_attempt() -> None:
    added = m.TrialAdded("t0001", 0, {}, 0, 1)
    start = m.RunUnit("w1", Unit("t0001", 1, 0), 1, VersionRef("t0001", 0, None))
    end = m.UnitFinished("w1", Unit("t0001", 1, 0), 1, 1, 0.0, 1.0)
    assert Attempts(2).read([added, start, end]).visits == {"t0001": [0]}
    for wrong in (
        [added, end],
        [added, start, end, end],
        [added, start, start],
        [added, start, m.WorkerLost("w1", "killed"), end],
        [added, start, m.RunStarted("test"), end],
        [added, start, m.RunUnit("w2", Unit("t0001", 1, 1), 2, VersionRef("t0001", 0, None))],
        [added, start, end, m.RunUnit("w1", Unit("t0001", 1, 1), 2, VersionRef("t0001", 0, None))],
        [added, m.VersionSaved(VersionRef("t0001", 1, 0), True, "", 0)],
        [added, m.TrialRolledBack("t0001", 0)],
        [added, start, end, m.VersionSaved(VersionRef("t0001", 1, 0), True, "", 0), m.TrialRolledBack("t0001", 0)],
    ):
        with pytest.raises(AssertionError):
            Attempts(2).read(wrong)
