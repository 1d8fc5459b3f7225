"""Which versions are kept and refused, decided by functions of the state."""

from __future__ import annotations

import pytest

from hopfleet.controller.decisions.versions import at_risk, needed_versions
from hopfleet.domain import messages as m
from hopfleet.domain.trial import Trial
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.progress import Progress, Save, Saved
from tests.helpers.controller_desk import Desk


@pytest.mark.parametrize(("waits", "risk"), [(True, True), (False, False)])
def test_a_save_that_waits_in_memory_protects_nothing(waits, risk):
    desk = Desk("w1", partitions=4)
    desk.finished(took=1.0)
    progress = desk["t0001"]
    progress.saves = {7: Save(1, durable=True, worker="w1", waits=waits)}
    assert at_risk(desk.controller.state, progress, 1) is risk


def test_the_newest_the_newest_durable_the_best_and_lent_versions_are_needed():
    progress = Progress(Trial("t0001", 0, {}, 0, 9), 1)
    progress.saved = {version: Saved(version, durable=version < 6) for version in range(1, 8)}
    progress.best = (2, (True, 0.5))
    assert needed_versions(progress) == {7, 5, 2}
    progress.lends = {"t0002": 1, "t0003": 4}
    assert needed_versions(progress) == {7, 5, 2, 1, 4}


def test_of_the_versions_on_their_way_to_a_storage_the_first_and_the_last_are_needed():
    progress = Progress(Trial("t0001", 0, {}, 0, 9), 1)
    progress.saved = {version: Saved(version, durable=False) for version in range(1, 8)}
    progress.saves = {number: Save(number, durable=True, worker="w1") for number in range(2, 6)}
    progress.saves[90] = Save(1, durable=True, worker="w1")
    progress.saves[91] = Save(6, durable=True, worker="w1")
    assert needed_versions(progress) == {7, 2, 5}, "a save from memory needs no other file"


def saved_twice():
    """A trial with a version whose first file was replaced; the numbers of both saves."""
    desk = Desk("w1", partitions=4)
    desk.finished()
    desk.saved_unasked(1)
    first = desk["t0001"].saved[1].attempt
    desk.saved_from("w1", 1)
    return desk, first, desk["t0001"].saved[1].attempt


def test_the_loss_of_a_file_that_was_replaced_is_refused():
    desk, first, second = saved_twice()
    assert first != second
    assert desk.controller.refuses(m.VersionLost(VersionRef("t0001", 1, first), "gone"))
    assert not desk.controller.refuses(m.VersionLost(VersionRef("t0001", 1, second), "gone"))


def test_the_loss_that_an_attempt_of_the_past_reports_is_refused():
    """Whatever file the report is about: another attempt has begun since, and reports what it finds."""
    desk, _, second = saved_twice()
    ref, running = VersionRef("t0001", 1, second), desk.controller.schedule.slots["w1"].attempt
    for worker, attempt in [("w1", running + 90), ("w2", running), (None, running)]:
        assert desk.controller.refuses(m.VersionLost(ref, "gone", worker, attempt))
    assert not desk.controller.refuses(m.VersionLost(ref, "gone", "w1", running))
