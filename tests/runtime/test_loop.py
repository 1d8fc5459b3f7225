"""The loop: everything is journaled before a command is sent. On the simulated backend, with a real journal."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import threading

import pytest

from hopfleet.backends.inline import Inline
from hopfleet.domain import messages as m
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import JournalError
from hopfleet.runtime.loop import AWAY_SECONDS, WAIT_SECONDS, Interrupts, Loop, Stopwatch
from hopfleet.scheduler.invariants import validate_history
from hopfleet.simulation.backend import Failure
from tests.helpers.cluster.chained import chained
from tests.helpers.loop_bench import START, Bench, HungOnce, SpyBackend, SpyJournal, SpyVersions


def is_command(message):
    return isinstance(message, m.RunUnit | m.SaveVersion | m.DropVersion)


def test_a_whole_run(tmp_path):
    with Bench(tmp_path) as bench:
        assert bench.loop.run(START) is True
        messages = bench.journaled()
        assert messages == bench.of("journal") == bench.of("show")
        assert messages[-1] == m.Finish(complete=True) == bench.journal.last()
        validate_history(messages, 3)
        assert bench.observer.refreshed > 0
        assert bench.of("act").count("release") == 1
        times = [time for _, time, _ in bench.journal.read()]
        assert times == sorted(times)


class Hasty(Loop):
    """Whatever runs is half done."""

    @property
    def _ages(self):
        return dict.fromkeys(self._controller.schedule.slots, math.inf)


def test_workers_that_are_told_ahead_what_comes_next(tmp_path):
    with Bench(tmp_path, trials=6, workers=3, partitions=[[0], [1], [2]]) as bench:
        bench.controller.schedule.sticky = True
        bench.controller.dispatcher = dataclasses.replace(bench.controller.dispatcher, lookahead=True)
        loop = Hasty(bench.controller, bench.backend, bench.journal, SpyVersions(bench.log), [bench.observer])
        assert loop.run(START) is True
        messages = bench.journaled()
        assert messages == bench.of("journal") == bench.of("show")
        validate_history(messages, 3)
        assert sum(isinstance(x, m.RunUnit) and x.lookahead for x in messages) > 5
        assert sum(isinstance(x, m.UnitFinished) and x.unit.trains for x in messages) == 6 * 2 * 3


def test_a_worker_begins_what_it_was_told_ahead_when_it_is_done(tmp_path):
    with Bench(tmp_path) as bench:
        started = []
        bench.loop._stopwatch.start = started.append
        bench.backend.send = lambda command, trial: None
        bench.loop._driver.step(START)
        for message in (
            m.RunUnit("w1", Unit("t0001", 1, 0), 1, VersionRef("t0001", 0, None)),
            m.RunUnit("w1", Unit("t0002", 1, 0), 2, VersionRef("t0002", 0, None), lookahead=True),
        ):
            bench.loop._driver._effects[type(message)](message)
        assert started == ["w1"] and 0.0 <= bench.loop._ages["w1"] < 60.0
        finished = m.UnitFinished("w1", Unit("t0001", 1, 0), 1, 1, 0.0, 1.0)
        bench.loop._driver._effects[m.UnitFinished](finished)
        assert started == ["w1", "w1"]


def test_written_before_acted(tmp_path):
    with Bench(tmp_path, failures=[Failure(2.5, "w1", 2.5), Failure(7.5, "w2")]) as bench:
        bench.loop.run(START)
        written, acted = [], []
        for who, what in bench.log:
            if who == "journal":
                written.append(what)
            elif who == "collect":
                assert what in {ended.trial for ended in written if isinstance(ended, m.TrialEnded)}
            elif who == "act" and what != "release":
                assert what in written
                acted.append(what)
            elif who == "show":
                assert what in written
        for drops in (True, False):  # those have a thread of their own
            asked = [message for message in written if is_command(message)]
            assert [one for one in acted if isinstance(one, m.DropVersion) is drops] == [
                one for one in asked if isinstance(one, m.DropVersion) is drops
            ]
        assert any(isinstance(message, m.WorkerLost) for message in written)


class BatchingBackend(SpyBackend):
    """Hands over several events at once, with late ones among them and most of them twice."""

    def receive(self, timeout):
        events = [event for _ in range(3) for event in super(BatchingBackend, self).receive(timeout)]
        again = [event for event in events if not isinstance(event, m.WorkerJoined)]
        return [m.UnitFinished("w9", Unit("t0001", 1, 0), 1, 1, 0.0, 1.0), *events, *again]


def test_late_reports_are_not_journaled(tmp_path):
    with Bench(tmp_path, backend=BatchingBackend) as bench:
        assert bench.loop.run(START) is True
        messages = bench.journaled()
        finished = [x for x in messages if isinstance(x, m.UnitFinished) and x.unit.trains]
        assert len(finished) == len({x.attempt for x in finished}) == 3 * 2 * 3
        assert not any(x.worker == "w9" for x in finished)
        validate_history(messages, 3)


class CrowdedBackend(SpyBackend):
    """With every evaluation, one more worker joins."""

    def receive(self, timeout):
        events = super().receive(timeout)
        more = [
            m.WorkerJoined("w9") for event in events if (isinstance(event, m.UnitFinished) and not event.unit.trains)
        ]
        return events + more


def test_a_journal_ends_with_finish(tmp_path):
    with Bench(tmp_path, trials=1, epochs=1, backend=CrowdedBackend) as bench:
        bench.loop.run(START)
        assert bench.journal.last() == m.Finish(complete=True)


class SilentBackend(SpyBackend):
    """Has nothing to tell every other time."""

    turn = 0

    def receive(self, timeout):
        self.turn += 1
        return super().receive(timeout) if self.turn % 2 else []


def test_nothing_is_written_when_nothing_happens(tmp_path):
    with Bench(tmp_path, backend=SilentBackend) as bench:
        bench.loop.run(START)
        assert bench.observer.refreshed == bench.backend.turn


class DrainingBackend(SpyBackend):
    """Drains as Ctrl-C does, as soon as a version is durable for the first time."""

    def receive(self, timeout):
        events = super().receive(timeout)
        if any(isinstance(event, m.VersionSaved) and event.durable for event in events):
            self.drain()
        return events


def test_drained_and_resumed(tmp_path):
    with Bench(tmp_path, backend=DrainingBackend) as bench:
        bench.backend.drain = bench.loop.drain
        assert bench.loop.run(START) is False
        first = bench.journaled()
        assert first.count(m.RequestMade("drain")) == 1
        asked = first.index(m.RequestMade("drain"))
        assert not any(isinstance(message, m.RunUnit) for message in first[asked:])
        assert first[-1] == m.Finish(complete=False)
    saved = bench.backend.saved
    with Bench(tmp_path) as bench:
        bench.backend.saved = saved
        assert bench.loop.run(START) is True
        messages = bench.journaled()
        assert messages[: len(first)] == first
        assert messages[-1] == m.Finish(complete=True)
        assert not any(isinstance(message, m.TrialRolledBack) for message in messages)
        assert sum(isinstance(message, m.UnitFinished) and message.unit.trains for message in messages) == 3 * 2 * 3


def test_a_drain_that_comes_too_late_is_a_complete_run(tmp_path):
    with Bench(tmp_path, trials=1, epochs=1, workers=1, backend=DrainingBackend) as bench:
        bench.backend.drain = bench.loop.drain
        assert bench.loop.run(START) is True
        assert m.RequestMade("drain") in bench.journaled()
        assert bench.journal.last() == m.Finish(complete=True)


def test_a_journal_that_fails_stops_the_run_before_it_acts(tmp_path):
    class BrokenJournal(SpyJournal):
        def append(self, time, messages):
            raise JournalError("disk full")

    with Bench(tmp_path) as bench:
        bench.loop._journal = BrokenJournal(tmp_path / "other.sqlite", bench.log)
        with pytest.raises(JournalError, match="disk full"):
            bench.loop.run(START)
        bench.loop._journal.close()
        assert bench.log == []


def test_interrupts_first_ask_then_raise():
    heard = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupts(lambda: heard.append(1)) as interrupts:
        assert isinstance(interrupts, Interrupts)
        os.kill(os.getpid(), signal.SIGINT)
        heard.append(2)
        os.kill(os.getpid(), signal.SIGINT)
        heard.append(3)
    assert heard == [1, 2]
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupts_leave_other_threads_alone():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def body():
        with Interrupts(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [before]


def test_time_counts_as_far_as_somebody_looked():
    now = 0.0
    watch = Stopwatch(lambda: now)
    watch.start("w1")
    now = WAIT_SECONDS / 2
    assert not watch.look()
    now = WAIT_SECONDS
    assert watch.look() and watch.ages == {"w1": WAIT_SECONDS}
    now = 8.0
    watch = Stopwatch(lambda: now)
    watch.start("w1")
    now = 8.25
    assert watch.look()
    now = 8.5
    assert watch.look()
    assert watch.ages == {"w1": 0.5}
    watch.start("w2")
    now = 1000.0  # the process was suspended by Ctrl-Z
    assert watch.look()
    assert watch.ages == {"w1": 0.5 + AWAY_SECONDS, "w2": AWAY_SECONDS}
    watch.start("w1")
    now = 1000.5
    assert watch.look(stands=True)  # the run is paused
    assert watch.ages["w1"] == 0.0


def test_a_unit_that_hangs_runs_again(tmp_path):
    with Bench(tmp_path, backend=HungOnce) as bench:
        bench.controller.unit_timeout = 5.0
        now = iter(range(10_000))
        bench.loop._stopwatch = Stopwatch(lambda: float(next(now)))
        assert bench.loop.run(START) is True
        messages = bench.journaled()
        (overdue,) = [x for x in messages if isinstance(x, m.UnitOverdue)]
        assert overdue.attempt == 1 and overdue.seconds > 5.0
        assert [x.attempt for x in messages if isinstance(x, m.StopUnit)] == [1]
        validate_history(messages, 3)


class Troubled(Inline):
    """A cluster of one machine whose network is down for some looks in the middle of a run."""

    looks = 0

    def offer(self, device: str, threads: int) -> tuple[int, str]:
        return 1, "one machine"

    def trouble(self) -> str:
        self.looks += 1
        return "the network is down" if 5 <= self.looks < 10 else ""


def test_trouble_of_a_cluster_is_said_once_and_so_is_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    backend = Troubled()
    chained("troubled", backend, workers=1).fit()
    shown = "".join(capsys.readouterr())
    assert backend.looks > 10
    assert shown.count("waiting: the network is down; the run continues when this is resolved") == 1
    assert shown.count("the run continues\n") == 1


def test_a_worker_that_waits_for_its_disk_is_stuck(tmp_path):
    with Bench(tmp_path) as bench:
        bench.controller.schedule.delayed[7] = "w1"
        assert bench.loop.stuck is True
