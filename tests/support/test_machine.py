"""What a machine offers, and how many workers that makes."""

from __future__ import annotations

import pytest

from hopfleet.support import machine as machines
from hopfleet.support.machine import Machine, choose_workers, core_shares, most_workers, this_machine

GIB = 1 << 30
BIG = Machine(cores=16, memory=64 * GIB)


@pytest.mark.parametrize(
    ("machine", "options", "count", "why"),
    [
        (BIG, {}, 16, "16 cores, 1 thread per worker"),
        (BIG, {"threads": 4}, 4, "16 cores, 4 threads per worker"),
        (BIG, {"threads": 32}, 1, "16 cores, 32 threads per worker"),
        (BIG, {"device": "cuda", "devices": 2}, 2, "one per cuda device"),
        (Machine(16, 3 * GIB), {}, 3, "3.0 GiB of free memory, 1 GiB per worker"),
        (Machine(16, GIB // 2), {}, 1, "0.5 GiB of free memory, 1 GiB per worker"),
        (Machine(1, GIB // 2), {}, 1, "1 cores, 1 thread per worker"),
        (BIG, {"trials": 5}, 5, "there are only 5 trials, and a trial trains on one worker at a time"),
        (BIG, {"trials": 1}, 1, "there is only one trial, and a trial trains on one worker at a time"),
    ],
)
def test_choose_workers(machine, options, count, why):
    options = {"device": "cpu", "devices": 1, "threads": 1, "trials": 100} | options
    assert choose_workers(machine, **options) == (count, why)


def test_most_workers():
    assert [most_workers(Machine(cores, 1 << 30)) for cores in (1, 2, 64)] == [16, 16, 512]


def test_this_machine_offers_something():
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.memory > 0


@pytest.fixture
def files(monkeypatch):
    """What the kernel says, by path."""
    found = {"/proc/meminfo": "MemTotal: 99 kB\nMemAvailable: 4194304 kB"}
    monkeypatch.setattr(machines, "_lines", lambda path: found.get(path, "").splitlines())
    monkeypatch.setattr(machines.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return found


def test_affinity_and_available_memory(files):
    assert this_machine() == Machine(8, 4 * GIB)


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1)])
def test_cpu_quota(files, quota, cores):
    files["/sys/fs/cgroup/cpu.max"] = quota
    assert this_machine().cores == cores


@pytest.mark.parametrize(("limit", "memory"), [("max", 4 * GIB), (str(3 * GIB), 2 * GIB), (str(99 * GIB), 4 * GIB)])
def test_memory_limit(files, limit, memory):
    files["/sys/fs/cgroup/memory.max"], files["/sys/fs/cgroup/memory.current"] = limit, str(GIB)
    assert this_machine().memory == memory


def test_a_system_without_these_files(files, monkeypatch):
    files.clear()
    monkeypatch.delattr(machines.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(machines.os, "cpu_count", lambda: None)
    assert this_machine() == Machine(1, 8 * GIB)


def test_unreadable_files_are_empty(tmp_path):
    assert machines._lines(str(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("processes", "each", "shares"),
    [
        (2, 1, [{4, 6, 7}, {5}]),
        (2, 2, [{4, 5}, {6, 7}]),
        (1, 1, [{4, 5, 6, 7}]),
        (3, 2, []),
        (0, 1, []),
    ],
)
def test_each_process_has_cores_of_its_own_and_the_first_has_the_rest(processes, each, shares):
    assert core_shares([4, 5, 6, 7], processes, each) == shares
