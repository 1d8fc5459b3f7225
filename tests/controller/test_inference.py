"""Work with trained models: idle workers, losses, failures, and what a journal says is done."""

from __future__ import annotations

from hopfleet.controller.inference import Candidate, InferenceController
from hopfleet.domain.messages import Message, RunUnit, UnitFailed, UnitFinished, VersionLost, WorkerJoined, WorkerLost
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum, means
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef

REF = VersionRef("t0001", 1, 1)


def made(partitions: int = 2) -> tuple[InferenceController, Candidate]:
    candidate = Candidate(Trial("t0001", 1, {}, 0, 1), REF, "abc")
    return InferenceController([candidate], partitions), candidate


def joined(worker: str) -> WorkerJoined:
    return WorkerJoined(worker, Placement.on("cpu"))


def commands(messages: list[Message]) -> list[RunUnit]:
    return [message for message in messages if isinstance(message, RunUnit)]


def finished(command: RunUnit, loss: float = 1.0, *, whole: bool = False) -> UnitFinished:
    sums = {"loss": RowSum.of(loss, 1)}
    return UnitFinished(command.worker, command.unit, command.attempt, 1, 0.0, 1.0, False, sums, whole=whole)


def test_every_partition_is_done_once() -> None:
    controller, candidate = made(3)
    (first,) = commands(controller.take([joined("w1")]))
    assert (first.unit, first.model, first.digest) == (Unit("t0001", 1, 0, Work.EVALUATE), REF, "abc")
    told = controller.take([finished(first, 1.0)])
    assert told[0] == finished(first, 1.0)  # what counts is journaled before what follows
    for loss in (2.0, 6.0):
        (command,) = commands(told)
        told = controller.take([finished(command, loss)])
    assert controller.finished and not commands(told) and means(candidate.sums) == {"loss": 3.0}
    assert controller.schedule.find("t0001") is candidate


def test_workers_take_partitions_that_are_at_hand_first() -> None:
    controller, _ = made(4)
    one, two = commands(controller.take([WorkerJoined("w1", valid=(2,)), WorkerJoined("w2", valid=(1, 3))]))
    assert (one.unit.partition, two.unit.partition) == (2, 1)
    one, two = commands(controller.take([finished(one), finished(two)]))
    assert (one.unit.partition, two.unit.partition) == (0, 3), "w1 fetches what no other worker has begun"


def test_units_of_lost_workers_are_done_again() -> None:
    controller, _ = made()
    one, two = commands(controller.take([joined("w1"), joined("w2")]))
    (again,) = commands(controller.take([WorkerLost("w1", "killed"), finished(two)]))
    assert again.unit == one.unit and again.worker == "w2" and not controller.finished
    assert controller.take([finished(one)]) == []  # a report that came too late does not count
    controller.take([WorkerLost("w9", "killed")])
    assert not controller.finished


def test_attempts_count_up_from_one_and_each_is_reported_once() -> None:
    controller, _ = made()
    one, two = commands(controller.take([joined("w1"), joined("w2")]))
    assert (one.attempt, two.attempt) == (1, 2)
    assert controller.take([finished(one)]) == [finished(one)]
    assert controller.take([finished(one)]) == []


def test_a_worker_that_was_lost_while_it_was_idle_gets_nothing() -> None:
    controller, _ = made(1)
    (one,) = commands(controller.take([joined("w1"), joined("w2"), joined("w3")]))
    controller.take([WorkerLost("w2", "killed")])
    (again,) = commands(controller.take([WorkerLost("w1", "killed")]))
    assert (one.worker, again.worker) == ("w1", "w3")


def test_three_losses_end_it() -> None:
    controller, _ = made()
    for number in range(3):
        assert not controller.finished
        controller.take([joined(f"w{number}")])
        controller.take([WorkerLost(f"w{number}", "killed")])
    assert controller.finished and controller.error == "t0001 failed: 3 workers were lost; the last one: killed"
    assert not commands(controller.take([joined("w4")]))


def test_failures_are_explained() -> None:
    controller, _ = made()
    (command,) = commands(controller.take([joined("w1")]))
    late = UnitFailed("w9", command.unit, 7, 0.0, 1.0, "late", "", "")
    assert controller.take([late]) == [] and not controller.finished
    controller.take([UnitFailed("w1", command.unit, command.attempt, 0.0, 1.0, "ValueError: no", "Trace", "")])
    assert controller.finished and controller.error == "t0001 failed: ValueError: no\n\nTrace"
    controller, _ = made()
    (command,) = commands(controller.take([joined("w1")]))
    for worker, attempt in (("w1", 7), ("w9", 1), (None, 1)):
        assert controller.take([VersionLost(REF, "late", worker, attempt)]) == [] and not controller.finished
    controller.take([VersionLost(REF, "is damaged", "w1", command.attempt)])
    assert controller.error == "t0001 failed: is damaged"


def test_a_journal_tells_what_is_left() -> None:
    controller, _ = made(3)
    journal = controller.take([joined("w1"), joined("w2")])
    one, two = commands(journal)
    journal += controller.take([finished(one, 5.0), finished(two, 7.0)])
    again, candidate = made(3)
    again.restore([*journal, finished(one, 5.0)], lambda unit: unit.partition != 1)  # its file is lost
    assert not again.finished and means(candidate.sums) == {"loss": 5.0}
    left = commands(again.take([joined("w1"), joined("w2"), joined("w3")]))
    assert [command.unit.partition for command in left] == [1, 2]
    assert min(command.attempt for command in left) > max(command.attempt for command in commands(journal))


def test_an_evaluation_of_the_whole_set_ends_all_others() -> None:
    controller, candidate = made(5)
    journal = controller.take([joined("w1"), joined("w2"), joined("w3"), joined("w4")])
    first, second, third, _ = commands(journal)
    journal += controller.take([finished(second, 7.0)])  # a part
    journal += controller.take([finished(first, 5.0, whole=True)])
    assert controller.finished and means(candidate.sums) == {"loss": 5.0}
    late = [finished(third, 9.0), WorkerLost("w4", "killed")]
    journal += controller.take(late)
    assert controller.finished and means(candidate.sums) == {"loss": 5.0} and not controller.error
    again, candidate = made(5)
    again.restore(journal, lambda unit: True)
    assert again.finished and means(candidate.sums) == {"loss": 5.0}
    assert not commands(again.take([joined("w1")]))


def test_what_an_evaluation_of_the_whole_set_covers_is_not_begun() -> None:
    candidates = [Candidate(Trial(name, 1, {}, 0, 1), VersionRef(name, 1, 1), "abc") for name in ("t0001", "t0002")]
    controller = InferenceController(candidates, 3)
    (first,) = commands(controller.take([joined("w1")]))
    told = controller.take([finished(first, whole=True)])
    for partition in range(3):
        (command,) = commands(told)
        assert (command.unit.trial, command.unit.partition) == ("t0002", partition)
        told = controller.take([finished(command)])
    assert controller.finished
