"""Ray: what a cluster adds to a unit, a hop, a start, and the loss of a node.

``python -m benchmarks.ray --write`` puts the table into docs/cluster.md.

A cluster of two nodes is started on this machine. The time of a unit of no work, and of a hop of 100 MB, are those of
``overhead`` and ``hop``, measured in the same way, within one node and between nodes (over loopback). A start is the
time from ``ray.init`` until the first worker has joined, without the import of a framework: the task needs none. A
raylet is killed with SIGKILL while a unit runs; the loss is noticed when the worker is reported lost, and repaired when
the unit is done elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.__main__ import conclude
from benchmarks.row import Row, milliseconds
from benchmarks.runs import scratch, tiny_data, units_of
from benchmarks.tasks import Freight, NoWork
from hopfleet.backends.ray.backend import Ray
from hopfleet.backends.ray.discovery import Discovery
from hopfleet.backends.ray.placement import Node, Place, WorkerNeeds
from hopfleet.domain.messages import RunUnit, UnitFinished, WorkerJoined, WorkerLost
from hopfleet.domain.placement import Placement
from hopfleet.testing.backends import spec, trial, unit

DOCUMENT = Path(__file__).parent.parent / "docs" / "cluster.md"
BEGIN, END = "<!-- ray: begin -->", "<!-- ray: end -->"

UNIT_BAR, HOP_BAR, START_BAR, NOTICE_BAR, ELSEWHERE_BAR = 10e-3, 0.15, 2.0, 3.0, 6.0


def measure(quick: bool) -> list[Row]:
    if importlib.util.find_spec("ray") is None:
        return [Row("ray", "everything", "not measured: Ray is not installed")]
    rows: list[Row] = []
    with cluster() as nodes:
        for row in itertools.chain(_starts(), _units(quick), _hops(quick), _loss(nodes)):
            print(f"{row.what}: {row.ours}", file=sys.stderr, flush=True)
            rows.append(row)
    return rows


@contextlib.contextmanager
def cluster() -> Iterator[Any]:
    """Start two nodes on this machine, which this process joins."""
    # By default Ray's workers would yield to everything else on this machine, which runs the driver and both nodes.
    os.environ.update({"RAY_worker_niceness": "0"})
    import ray
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 1 << 30}
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, **memory})
    nodes.add_node(num_cpus=2, **memory)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def _starts() -> Iterator[Row]:
    """Time a start, from an initialised Ray to a worker that has joined."""
    with scratch() as folder, _running(Ray(), folder, 1) as (_, seconds):
        what = "from ray.init to the first worker, a host for its node included"
        yield Row("ray", what, milliseconds(seconds), "", None, "≤ 2 s", seconds <= START_BAR)


@contextlib.contextmanager
def _running(backend: Ray, folder: Path, workers: int) -> Iterator[tuple[list[WorkerJoined], float]]:
    made = spec(folder)
    began = time.monotonic()
    try:
        backend.start(made, workers)
        joined: list[WorkerJoined] = []
        first = 0.0
        while len(joined) < workers:
            joined += [event for event in backend.receive(0.25) if isinstance(event, WorkerJoined)]
            first = first or (time.monotonic() - began if joined else 0.0)
        yield joined, first
    finally:
        backend.close(kill=True)


def _units(quick: bool) -> Iterator[Row]:
    trials, partitions, epochs = (2, 2, 2) if quick else (8, 8, 8)
    for workers in (1, 2):
        with scratch() as folder:
            data = tiny_data(folder, partitions)
            configs = [{"number": number} for number in range(trials)]
            units = units_of(
                NoWork(), data, configs, folder / "run", epochs=epochs, workers=workers, backend=Ray(elastic=False)
            )
        starts = sorted(unit.sums["train_began"].mean for _, unit in units)
        seconds = (starts[-1] - starts[0]) / (len(starts) - 1)
        hops = sum(unit.hopped for _, unit in units)
        what = f"{len(units)} units of no work on {workers} worker{'s' * (workers > 1)}, {hops} hops: time per unit"
        yield Row("ray", what, milliseconds(seconds), "", None, "≤ 10 ms", seconds <= UNIT_BAR)


class _FirstNode(Discovery):
    """A backend that places all workers on one node."""

    def choose(self, workers: int, teams: Sequence[WorkerNeeds]) -> tuple[list[Node], list[tuple[WorkerNeeds, Place]]]:
        nodes, chosen = super().choose(workers, teams)
        return nodes, [chosen[0]] * workers


class _Together(Ray):
    """A backend with both workers on one node, with one partition each."""

    def _reset(self) -> None:
        super()._reset()
        self._discovery = _FirstNode(elastic=self.elastic, autoscale=self.autoscale, outage=self.outage)

    def _admit(self, handle: Any) -> None:
        node = self._nodes[handle.node]
        if node.ready and handle.ready and not handle.joined:
            handle.joined = True
            number = sum(other.joined for other in self._workers.values()) - 1
            self._events.append(WorkerJoined(handle.name, Placement.on(handle.device), (number,)))


def _hops(quick: bool) -> Iterator[Row]:
    import ray

    for apart in (False, True):
        # Resources of the last run take a moment to be released; before that, both workers might be on one node.
        while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
            time.sleep(0.1)
        yield _hop(quick, apart)


def _hop(quick: bool, apart: bool) -> Row:
    hops = 3 if quick else 20
    config = {"megabytes": 1 if quick else 100, "optimizer": "sgd", "seconds": 0.3}
    backend = Ray(elastic=False) if apart else _Together(elastic=False)
    with scratch() as folder:
        data = tiny_data(folder, 2)
        units = units_of(Freight(), data, [config], folder / "run", epochs=hops + 1, workers=2, backend=backend)
    _, *times = [_began(b) - a.sums["train_ended"].mean for (_, a), (_, b) in pairwise(units) if b.hopped]
    where = "to another node, over loopback" if apart else "to another worker of the node"
    seconds = median(times)
    what = f"a model of {config['megabytes']} MB {where}, median of {len(times)}"
    bar = ("", None) if apart else ("≤ 150 ms", seconds <= HOP_BAR)
    return Row("ray", what, f"{milliseconds(seconds)} (best {milliseconds(min(times))})", "", None, *bar)


def _began(unit: UnitFinished) -> float:
    return unit.sums["train_began"].mean


def _loss(nodes: Any) -> Iterator[Row]:
    """Kill the raylet of a node with a busy worker."""
    backend = Ray(elastic=False)
    with scratch() as folder, _running(backend, folder, 2) as (joined, _):
        (doomed,) = nodes.worker_nodes
        victim = next(handle.name for handle in backend._workers.values() if handle.node == doomed.node_id)
        other = next(event.worker for event in joined if event.worker != victim)
        backend.send(unit(victim), trial(seconds=60.0))
        time.sleep(0.5)
        began = time.monotonic()
        os.kill(doomed.all_processes["raylet"][0].process.pid, 9)
        while not any(isinstance(event, WorkerLost) for event in backend.receive(0.25)):
            pass
        noticed = time.monotonic() - began
        again: RunUnit = unit(other, attempt=2)
        backend.send(again, trial())
        while not any(isinstance(event, UnitFinished) for event in backend.receive(0.25)):
            pass
        elsewhere = time.monotonic() - began
    yield Row("ray", "a raylet is killed: noticed", milliseconds(noticed), "", None, "< 3 s", noticed < NOTICE_BAR)
    what = "the same: its unit done elsewhere, by a worker that was there"
    yield Row("ray", what, milliseconds(elsewhere), "", None, "< 6 s", elsewhere < ELSEWHERE_BAR)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a functional check only")
    parser.add_argument("--write", action="store_true", help=f"replace the table in {DOCUMENT.name}")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = measure(options.quick)
    status = conclude(rows, load, DOCUMENT if options.write else None, BEGIN, END)
    return 0 if options.quick else status


if __name__ == "__main__":
    sys.exit(main())
