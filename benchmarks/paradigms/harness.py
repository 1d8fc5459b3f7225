"""Run one paradigm after another on separate hosts; measure bytes, time, memory, disk and accuracy."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from benchmarks.paradigms.network import Network, Traffic
from benchmarks.paradigms.site import on_interface
from benchmarks.paradigms.workload import Workload

SOURCE, STORAGE, HEAD = "source", "storage", "head"
HTTP, MEETING = 8000, 29500
SAMPLE, LOOK = 0.5, 10
"""Seconds between samples of processor times and disks; samples per measurement of memory, which takes longer."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a run: its seconds, and processor seconds and bytes on the wire of all hosts together."""

    seconds: float
    processor: float
    bytes: int
    busiest: int  #: bytes in one direction of the busiest link of a host

    def times(self, factor: float) -> Phase:
        """Return the phase multiplied by a factor."""
        count = (round(factor * number) for number in (self.bytes, self.busiest))
        return Phase(factor * self.seconds, factor * self.processor, *count)


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost of a paradigm. Loading fetches the data that hosts keep; training is the rest, with models delivered.

    Before that, processes start and import what they need.
    """

    start: float  #: seconds
    loading: Phase
    training: Phase
    memory: int  #: peak bytes of the host that needed most
    storage: int  #: the same for the disk
    best: float  #: the best validation accuracy of any trial after any epoch
    curves: list[list[float]]  #: the accuracy of every trial after every epoch
    load: float  #: the machine's load average in the last minute of the run
    notes: dict[str, Any] = field(default_factory=dict)


def in_the_middle(found: Sequence[Measured]) -> Measured:
    """Return the run with the median seconds, or the faster one of two; it includes the seconds of all."""
    ordered = sorted(found, key=lambda one: one.training.seconds)
    middle = ordered[(len(ordered) - 1) // 2]
    return replace(middle, notes={**middle.notes, "seconds of all": [one.training.seconds for one in found]})


@dataclass(frozen=True, slots=True)
class Lab:
    """A network, the folder with every host's disk, and the data at the source."""

    network: Network
    folder: Path
    workload: Workload
    hosts: tuple[str, ...]

    @property
    def source(self) -> str:
        return f"http://{self.network.addresses[SOURCE]}:{HTTP}"

    def disk(self, host: str) -> Path:
        return self.folder / host

    def wipe(self) -> None:
        """Empty the disks of all hosts."""
        for host in (*self.hosts, HEAD):
            shutil.rmtree(self.disk(host), ignore_errors=True)

    def python(self, host: str, *words: str, **options: Any) -> subprocess.Popen[str]:
        return self.network.start(host, [sys.executable, "-u", *words], env=on_interface("eth0"), **options)


@contextlib.contextmanager
def laboratory(folder: Path, workload: Workload, *, hosts: int, rate: float) -> Iterator[Lab]:
    """Create hosts with empty disks, and a source with the data and a link as wide as all of theirs together.

    Hopping also has a host for Ray's head, and one for durable versions.
    """
    workload.write(folder / SOURCE)
    names = tuple(f"host{number}" for number in range(1, hosts + 1))
    rates = {**dict.fromkeys(names, rate), SOURCE: rate * hosts, STORAGE: rate * hosts, HEAD: rate}
    with Network(rates) as network:
        lab = Lab(network, folder, workload, names)
        lab.python(SOURCE, "-m", "benchmarks.paradigms.source", str(folder / SOURCE), "0.0.0.0", str(HTTP))
        yield lab


@dataclass(frozen=True, slots=True)
class Mark:
    """The counters at one moment of a run."""

    when: float
    processor: float
    traffic: dict[str, Traffic]

    @classmethod
    def now(cls, lab: Lab) -> Self:
        processor = sum(map(lab.network.processor, lab.hosts))
        return cls(time.perf_counter(), processor, lab.network.traffic())

    def until(self, later: Mark) -> Phase:
        """Return the phase between two moments. A byte counts once, where it is sent; the source and head send too."""
        passed = {host: later.traffic[host] - self.traffic[host] for host in later.traffic}
        links = [link for host, link in passed.items() if host not in (SOURCE, STORAGE, HEAD)]
        return Phase(
            later.when - self.when,
            later.processor - self.processor,
            sum(link.sent for link in passed.values()),
            max(max(link.sent, link.received) for link in links),
        )


class Watch:
    """A thread that samples the memory and the disks of hosts and keeps the peaks.

    It also keeps the processor time of processes that end during the run.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.memory: dict[str, int] = dict.fromkeys(lab.hosts, 0)
        self.storage: dict[str, int] = dict.fromkeys(lab.hosts, 0)
        #: Processor seconds by process, and of all together over time.
        self._taken: dict[int, float] = {}
        self._history: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._count()
        self._look()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stopped.wait(SAMPLE):
                return
            self._count()
            if number % LOOK == 0:
                self._look()

    def processor(self, when: float) -> float:
        """Return the processor seconds of all hosts up to a moment."""
        return max((taken for moment, taken in self._history if moment <= when), default=0.0)

    def _count(self) -> None:
        self._taken |= self._lab.network.own_processor(self._lab.hosts)
        self._history.append((time.perf_counter(), sum(self._taken.values())))
        for host in self._lab.hosts:
            self.storage[host] = max(self.storage[host], size_of(self._lab.disk(host)))

    def _look(self) -> None:
        for host in self._lab.hosts:
            self.memory[host] = max(self.memory[host], self._lab.network.memory(host))


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder. Files and folders may disappear meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(place, name).stat().st_size
    return total


def run(lab: Lab, name: str) -> Measured:
    """Measure one of the paradigms of the catalogue."""
    lab.wipe()
    orders = [_orders(lab, name, rank) for rank in range(len(lab.hosts))]
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(Watch(lab))
        began = time.perf_counter()
        processes = SteppedProcesses(
            [
                lab.python(host, "-m", "benchmarks.paradigms.host", order, stdin=-1, stdout=-1)
                for host, order in zip(lab.hosts, orders, strict=True)
            ]
        )
        stack.callback(processes.end)
        processes.all_say("ready")
        ready = Mark.now(lab)
        processes.go_on()
        processes.all_say("loaded")
        loaded = Mark.now(lab)
        processes.go_on()
        said = processes.all_say("trained")
        trained = Mark.now(lab)
        processes.go_on()
    epochs = {outcome["number"]: outcome["epochs"] for part in said for outcome in part}
    return measured(watch, ready.when - began, ready.until(loaded), loaded.until(trained), epochs)


def measured(
    watch: Watch,
    start: float,
    loading: Phase,
    training: Phase,
    epochs: Mapping[int, Sequence[Mapping[str, float]]],
    **notes: Any,
) -> Measured:
    """Return the figures, with every trial's metrics by epoch."""
    curves = [[metrics["accuracy"] for metrics in epochs[number]] for number in sorted(epochs)]
    return Measured(
        start,
        loading,
        training,
        memory=max(watch.memory.values()),
        storage=max(watch.storage.values()),
        best=max(map(max, curves)),
        curves=curves,
        load=os.getloadavg()[0],
        notes=notes,
    )


def _orders(lab: Lab, name: str, rank: int) -> str:
    return json.dumps(
        {
            "paradigms": [name],
            "rank": rank,
            "addresses": [lab.network.addresses[host] for host in lab.hosts],
            "port": MEETING,
            "source": lab.source,
            "folder": str(lab.disk(lab.hosts[rank])),
            "workload": asdict(lab.workload),
        }
    )


class SteppedProcesses:
    """Processes that report each step and wait before they continue."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def all_say(self, done: str) -> list[Any]:
        """Wait until all have reported a step; return what each of them added."""
        return [_said(process, done) for process in self._processes]

    def go_on(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def end(self) -> None:
        """Wait until all have ended, or kill them."""
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
            with process:
                pass  # closes its pipes


def _said(process: subprocess.Popen[str], done: str) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a host ended with status {process.wait()} before it reported {done!r}; see above")
    said, what = json.loads(line)
    assert said == done, line
    return what
