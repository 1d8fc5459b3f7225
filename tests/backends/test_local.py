"""What only processes can do: die, fall silent, and be replaced."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopfleet.backends import supervision
from hopfleet.backends.local import backend as local
from hopfleet.backends.local import fork_server
from hopfleet.backends.local.backend import Local, ProcessHandle
from hopfleet.backends.vitals import vitals
from hopfleet.domain.messages import UnitFinished, WorkerJoined, WorkerLost
from hopfleet.errors import WorkersLost
from hopfleet.frameworks.base import Session
from hopfleet.runtime.records import HealthRecord
from hopfleet.store.folder import RunFolder
from hopfleet.support import machine
from hopfleet.testing.backends import PATIENCE, spec, trial, unit, wait_for, wait_for_any
from hopfleet.testing.tasks import CountingTask
from hopfleet.worker.spec import Profile, WorkerSpec


@contextlib.contextmanager
def local_workers(spec: WorkerSpec, count: int) -> Iterator[tuple[Local, list[str]]]:
    """The backend with all its workers, and their names."""
    backend = Local()
    backend.start(spec, count)
    try:
        yield backend, [event.worker for event in wait_for(backend, WorkerJoined, count)]
        backend.close()
    except BaseException:
        backend.close(kill=True)
        raise


def pid_of(backend: Local, worker: str) -> int:
    return backend._workers[worker].pid


def test_a_killed_worker_is_reported_and_replaced(tmp_path: Path) -> None:
    backend = Local()
    backend.start(spec(tmp_path), 1)
    (joined,) = wait_for(backend, WorkerJoined)
    os.kill(backend._workers[joined.worker].pid, signal.SIGKILL)
    (lost,) = wait_for(backend, WorkerLost)
    assert lost.worker == joined.worker
    (fresh,) = wait_for(backend, WorkerJoined)
    assert fresh.worker != joined.worker
    # A command for the dead one is swallowed; its loss has been told already.
    backend.send(unit(joined.worker), trial())
    backend.send(unit(fresh.worker), trial())
    wait_for(backend, UnitFinished)
    backend.close()


def test_a_planned_worker_and_its_successor_keep_to_their_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(local, "usable_cores", lambda: [core])
    backend = Local()
    backend.keep_to(["this machine"], cpus=None, memory=0)
    backend.start(spec(tmp_path), 1)
    for _ in range(2):
        (joined,) = wait_for(backend, WorkerJoined)
        pid = pid_of(backend, joined.worker)
        threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
        assert [os.sched_getaffinity(thread) for thread in threads] == [{core}] * len(threads)
        os.kill(pid, signal.SIGKILL)
        wait_for(backend, WorkerLost)
    backend.close()


def test_the_worker_that_has_warmed_up_profiles_until_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_workers(spec(tmp_path), 2) as (backend, _):
        probed: list[str] = []

        def probe(handle: ProcessHandle, probe: object) -> Profile:
            probed.append(handle.name)
            return Profile()

        monkeypatch.setattr(backend, "_probe", probe)
        backend._workers["w1"].ready = False
        backend.probe(trial())
        backend._workers["w1"].ready = True
        backend.probe(trial())
        assert probed == ["w2", "w2"]
        os.kill(pid_of(backend, "w2"), signal.SIGKILL)
        wait_for(backend, WorkerLost)
        backend.probe(trial())
        assert probed[2:] == ["w1"]


def test_workers_tell_how_much_memory_they_have_and_when_they_were_heard(tmp_path: Path) -> None:
    with local_workers(spec(tmp_path), 1) as (backend, (worker,)):
        began, deadline = backend.now(), time.monotonic() + PATIENCE
        while not backend.health()[0].memory:
            assert time.monotonic() < deadline
            backend.receive(0.1)
        (health,) = backend.health()
        assert (health.worker, health.pid) == (worker, pid_of(backend, worker))
        assert 1e6 < health.memory < 1e12
        assert health.device_memory == 0
        assert health.processor > 0 and health.clock > 0
        assert began - PATIENCE < health.heard <= backend.now()
        folder = RunFolder(tmp_path / "run")
        with folder.lock():
            HealthRecord(folder, backend).refresh()
            assert folder.health()[worker]["memory"] == health.memory
            assert folder.health()[worker]["pid"] == health.pid
        assert folder.health() == {}, "no process runs the experiment"


@pytest.mark.slow
def test_a_stopped_worker_is_noticed_soon(tmp_path: Path) -> None:
    with local_workers(spec(tmp_path), 2) as (backend, (first, second)):
        os.kill(pid_of(backend, first), signal.SIGSTOP)
        lost, joined = wait_for_any(backend, 2)
        assert isinstance(lost, WorkerLost) and lost.worker == first
        assert "stopped (SIGSTOP)" in lost.reason
        assert isinstance(joined, WorkerJoined)
        for worker in (second, joined.worker):
            backend.send(unit(worker), trial())
            wait_for(backend, UnitFinished)


@pytest.mark.slow
def test_a_stopped_worker_is_killed_for_good(tmp_path: Path) -> None:
    with local_workers(spec(tmp_path), 1) as (backend, (first,)):
        pid = pid_of(backend, first)
        os.kill(pid, signal.SIGSTOP)
        wait_for(backend, WorkerLost)
        assert not Path(f"/proc/{pid}").exists()
        wait_for(backend, WorkerJoined)


@pytest.mark.slow
def test_a_worker_that_goes_on_in_time_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with local_workers(spec(tmp_path), 1) as (backend, (first,)):
        with monkeypatch.context() as busy:
            busy.setattr(local, "STOPPED_SECONDS", 60.0)  # half a second may take long on a busy machine
            os.kill(pid_of(backend, first), signal.SIGSTOP)
            assert backend.receive(0.5) == []
            os.kill(pid_of(backend, first), signal.SIGCONT)
        assert backend.receive(2 * local.STOPPED_SECONDS) == []
        backend.send(unit(first), trial())
        wait_for(backend, UnitFinished)


def test_a_worker_that_keeps_its_unit_for_too_long_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "GIVE_UP_SECONDS", 0.2)
    with local_workers(spec(tmp_path), 1) as (backend, (first,)):
        backend.send(unit(first), trial(seconds=60.0))
        backend.give_up(first, 1)
        (lost,) = wait_for(backend, WorkerLost)
        assert (lost.worker, lost.reason) == (first, supervision.STOPPED)


class Hogging(CountingTask):
    """Holds the interpreter for ``seconds`` in one call, working or asleep, so that nothing else runs meanwhile."""

    def open(self, config: Mapping[str, Any], **rest: Any) -> Session:
        seconds = config.get("hold", 0)
        if seconds:
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        return super().open(config, **rest)


@pytest.mark.slow
def test_a_long_call_without_a_beat_does_no_harm(tmp_path: Path) -> None:
    with local_workers(replace(spec(tmp_path), task=Hogging()), 1) as (backend, (first,)):
        backend.send(unit(first), trial(hold=2.5 * local.STOPPED_SECONDS))
        (event,) = wait_for(backend, UnitFinished)
        assert event.worker == first


@pytest.mark.slow
def test_a_worker_that_hangs_is_noticed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SILENCE_SECONDS", 2.0)
    with local_workers(replace(spec(tmp_path), task=Hogging()), 1) as (backend, (first,)):
        backend.send(unit(first), trial(hold=300))
        (lost,) = wait_for(backend, WorkerLost)
        assert lost.reason.startswith("it was silent for")
        wait_for(backend, WorkerJoined)


@pytest.mark.slow
def test_where_the_system_does_not_tell_silence_alone_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SILENCE_SECONDS", 2.0)
    monkeypatch.setattr(local, "vitals", lambda pid: None)
    with local_workers(spec(tmp_path), 1) as (backend, (first,)):
        os.kill(pid_of(backend, first), signal.SIGSTOP)
        (lost,) = wait_for(backend, WorkerLost)
        assert re.fullmatch(r"it was silent for \d+ s", lost.reason)
        wait_for(backend, WorkerJoined)


@pytest.mark.slow
def test_silence_does_not_count_while_nobody_listens(tmp_path: Path) -> None:
    with local_workers(spec(tmp_path), 1) as (backend, (first,)):
        os.kill(pid_of(backend, first), signal.SIGSTOP)
        threading.Event().wait(2 * local.STOPPED_SECONDS)
        assert backend.receive(0.0) == []
        os.kill(pid_of(backend, first), signal.SIGCONT)
        assert backend.receive(1.0) == []


class Ending(CountingTask):
    """Ends its process in the way that the configuration names."""

    def open(self, config: Mapping[str, Any], **rest: Any) -> Session:
        if "say" in config:
            print(config["say"], flush=True)
        if "exit" in config:
            os._exit(config["exit"])
        if "signal" in config:
            os.kill(os.getpid(), config["signal"])
        if "deaf" in config:  # its socket is closed, and it goes on
            os.closerange(3, 256)
            threading.Event().wait(300)
        return super().open(config, **rest)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"exit": 0}, "its process ended with exit code 0"),
        ({"exit": 7}, "its process ended with exit code 7"),
        ({"signal": signal.SIGKILL}, "its process was killed by SIGKILL"),
        ({"signal": signal.SIGSEGV}, "its process was killed by SIGSEGV"),
    ],
)
def test_a_death_has_a_name(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    with local_workers(replace(spec(tmp_path), task=Ending()), 1) as (backend, (first,)):
        backend.send(unit(first), trial(**config))
        lost, joined = wait_for_any(backend, 2)
        assert (lost.worker, lost.reason) == (first, reason)
        backend.send(unit(joined.worker), trial())
        wait_for(backend, UnitFinished)


def test_a_worker_without_a_socket_does_not_live_on(tmp_path: Path) -> None:
    with local_workers(replace(spec(tmp_path), task=Ending()), 1) as (backend, (first,)):
        pid = pid_of(backend, first)
        backend.send(unit(first), trial(deaf=True))
        wait_for(backend, WorkerLost)
        assert not Path(f"/proc/{pid}").exists()
        wait_for(backend, WorkerJoined)


@pytest.mark.slow
@pytest.mark.usefixtures("cold")
def test_a_loss_comes_with_the_last_words(tmp_path: Path) -> None:
    with local_workers(replace(spec(tmp_path), task=Ending()), 1) as (backend, (first,)):
        said = "\n".join(map(str, range(100)))
        backend.send(unit(first), trial(say=said, signal=int(signal.SIGKILL)))
        lost, joined = wait_for_any(backend, 2)
        assert lost.log.split() == [str(number) for number in range(100 - supervision.LOG_LINES, 100)]
        backend.send(unit(joined.worker), trial("t0002", signal=int(signal.SIGSEGV)))
        lost, _ = wait_for_any(backend, 2)
        assert "Segmentation fault" in lost.log
        assert "test_local.py" in lost.log


@pytest.mark.slow
def test_closing_does_not_wait_for_a_stopped_worker(tmp_path: Path) -> None:
    with local_workers(spec(tmp_path), 2) as (backend, (first, _)):
        os.kill(pid_of(backend, first), signal.SIGSTOP)


@pytest.mark.slow
def test_a_death_for_want_of_memory_is_told_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = 3
    monkeypatch.setattr(local, "starvations", lambda: killed)
    with local_workers(replace(spec(tmp_path), task=Ending()), 1) as (backend, (worker,)):
        reasons = []
        for ending in ({"exit": 1}, {"signal": signal.SIGKILL}, {"signal": signal.SIGKILL}):
            killed = 4
            backend.send(unit(worker), trial(**ending))
            lost, joined = wait_for_any(backend, 2)
            reasons.append(lost.reason)
            worker = joined.worker
    assert reasons == [
        "its process ended with exit code 1",
        "out of memory: killed by the kernel; use fewer workers or smaller batches",
        "its process was killed by SIGKILL",
    ]


def test_the_kernel_counts_who_it_killed_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(files: dict[str, str]) -> int:
        monkeypatch.setattr(machine, "_lines", lambda path: files.get(path, "").splitlines())
        return machine.starvations()

    events = "low 0\noom 3\noom_kill 2\noom_group_kill 9"
    assert answer({}) == 0
    assert answer({"/sys/fs/cgroup/memory.events": events}) == 2
    own = {"/proc/self/cgroup": "0::/user/me", "/sys/fs/cgroup/user/me/memory.events": events}
    assert answer(own | {"/sys/fs/cgroup/memory.events": "oom_kill 7"}) == 2
    first = {"/proc/self/cgroup": "4:memory:/box\n0::/", "/sys/fs/cgroup/memory/box/memory.oom_control": "oom_kill 5"}
    assert answer(first) == 5


class Stillborn(CountingTask):
    """Kills the first workers that get to know it."""

    def __init__(self, folder: Path, deaths: int) -> None:
        self.folder, self.deaths = folder, deaths

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        number = sum(1 for _ in self.folder.glob("death-*"))
        if number < self.deaths:
            (self.folder / f"death-{number}").touch()
            os._exit(9)


@pytest.mark.slow
def test_a_worker_that_dies_at_its_start_is_tried_again(tmp_path: Path) -> None:
    task = Stillborn(tmp_path, supervision.MAX_STARTS - 1)
    with local_workers(replace(spec(tmp_path), task=task), 1) as (backend, (first,)):
        backend.send(unit(first), trial())
        wait_for(backend, UnitFinished)
    assert len(list(tmp_path.glob("death-*"))) == supervision.MAX_STARTS - 1


@pytest.mark.slow
def test_a_worker_that_always_dies_at_its_start_ends_the_run(tmp_path: Path) -> None:
    backend = Local()
    backend.start(replace(spec(tmp_path), task=Stillborn(tmp_path, 99)), 1)
    with pytest.raises(WorkersLost, match=r"before it was ready, as 4 before it did: .* exit code 9; .*workers\.log"):
        for _ in range(PATIENCE):
            backend.receive(0.25)
    backend.close(kill=True)
    assert len(list(tmp_path.glob("death-*"))) == supervision.MAX_STARTS


def test_a_retired_worker_that_dies_is_not_replaced(tmp_path: Path) -> None:
    with local_workers(spec(tmp_path), 2) as (backend, (first, second)):
        backend.send(unit(first), trial(seconds=60))
        backend.retire(first)
        os.kill(pid_of(backend, first), signal.SIGKILL)
        assert wait_for(backend, WorkerLost) == [WorkerLost(first, "its process was killed by SIGKILL")]
        backend.send(unit(second), trial())
        wait_for(backend, UnitFinished)
        assert list(backend._workers) == [second]


def test_workers_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server.sys, "executable", "/bin/false")
    backend = Local()
    backend.start(spec(tmp_path), 1)
    with pytest.raises(WorkersLost, match=r"could not be started, tried 5 times.*workers\.log"):
        backend.receive(0.25)
    backend.close(kill=True)


# ------------------------------------------------------------------------------------------------ the fork server


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_workers_outlive_their_fork_server_and_another_one_is_started(tmp_path: Path, how: signal.Signals) -> None:
    with local_workers(replace(spec(tmp_path), task=Ending()), 2) as (backend, (first, second)):
        assert backend._fork_server is not None
        old = backend._fork_server.pid
        os.kill(old, how)
        backend.send(unit(first), trial())
        wait_for(backend, UnitFinished)
        os.kill(pid_of(backend, second), signal.SIGKILL)
        lost, joined = wait_for_any(backend, 2)
        assert lost.worker == second
        assert lost.reason in ("its process ended", "its process was killed by SIGKILL")
        assert backend._fork_server.pid != old and not Path(f"/proc/{old}").exists()
        # Of what the new one has forked all is known; what the old one has forked is only seen to end.
        for worker, reason in ((joined.worker, "ended with exit code 7"), (first, "its process ended")):
            backend.send(unit(worker), trial(exit=7))
            lost, _ = wait_for_any(backend, 2)
            assert lost.worker == worker and lost.reason.endswith(reason)


def test_a_worker_of_a_dead_fork_server_does_not_live_on_without_a_socket(tmp_path: Path) -> None:
    with local_workers(replace(spec(tmp_path), task=Ending()), 1) as (backend, (first,)):
        assert backend._fork_server is not None
        os.kill(backend._fork_server.pid, signal.SIGKILL)
        pid = pid_of(backend, first)
        backend.send(unit(first), trial(deaf=True))
        wait_for(backend, WorkerLost)
        wait_for(backend, WorkerJoined)
        found = vitals(pid)
        assert found is not None and found.gone


@pytest.mark.slow
def test_closing_does_not_wait_for_a_stopped_fork_server(tmp_path: Path) -> None:
    with local_workers(spec(tmp_path), 1) as (backend, _):
        assert backend._fork_server is not None
        os.kill(backend._fork_server.pid, signal.SIGSTOP)


# --------------------------------------------------------------------------------------------------- back-off


@pytest.mark.slow
def test_workers_that_do_nothing_but_die_come_back_more_and_more_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "RETRY_SECONDS", 0.01)
    pauses = []
    with local_workers(replace(spec(tmp_path), task=Ending()), 1) as (backend, (worker,)):
        for _ in range(6):
            backend.send(unit(worker), trial(exit=1))
            wait_for(backend, WorkerLost)
            pauses.append([when for when, _, _ in backend._due])
            (joined,) = wait_for(backend, WorkerJoined)
            worker = joined.worker
        assert backend._workers[worker].failures == 6
        backend.send(unit(worker), trial())
        wait_for(backend, UnitFinished)
        backend.send(unit(worker), trial(exit=1))
        wait_for(backend, WorkerLost)
        assert backend._due == []  # it had done something
        wait_for(backend, WorkerJoined)
    assert [len(due) for due in pauses] == [0, 1, 1, 1, 1, 1]


def test_libraries_are_told_how_many_threads_there_are(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert fork_server.environment(3)["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert fork_server.environment(3)["OMP_NUM_THREADS"] == "8"
