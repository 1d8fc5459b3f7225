"""``python -m benchmarks.paradigms.plans``: Dike's plan against all plans, run on hosts with unequal links.

Four hosts have links of different rates. First the planner's costs are measured, as ``hopfleet plan`` measures those
between the nodes of a backend. Then every plan, a set of servers and a set of workers, takes some steps of synchronous
training: each worker fetches its part of the weights from each server, computes for a fixed time, and sends gradients
of the same size back. Only the network differs between plans, so other load on the machine matters little.
Needs root, Linux and iproute2.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.paradigms.network import Network, missing
from benchmarks.row import Row, table
from hopfleet.planner.dike.place import compare
from hopfleet.planner.dike.problem import Cluster, Model, Node, Placement, rows_per_second, worker_need
from hopfleet.support.links import LinkServer, seconds_per_byte

RATES = {"a": 80.0, "b": 40.0, "c": 20.0, "d": 10.0}
"""Mbit/s of each host."""

WEIGHTS = 100_000
"""Bytes of the weights."""

COMPUTING, BATCH, PORT = 0.05, 32, 7711
GOAL = 0.95

# ---------------------------------------------------------------------------------------------- on a host


def serve(listener: socket.socket) -> None:
    """Send as many bytes as a connection asks for, and take as many, again and again."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while request := connection.recv(8, socket.MSG_WAITALL):
        size = int.from_bytes(request, "big")
        connection.sendall(bytes(size))
        _take(connection, size)
        connection.sendall(b"!")


def _take(connection: socket.socket, size: int) -> None:
    while size:
        size -= len(connection.recv(min(size, 1 << 16)))


def exchange(connections: Iterable[socket.socket], size: int, computing: float) -> None:
    """Fetch from all servers at once, compute, and send to all at once."""
    some = list(connections)
    _each(some, _fetch, size)
    time.sleep(computing)
    _each(some, _send, size)


def _fetch(connection: socket.socket, size: int) -> None:
    connection.sendall(size.to_bytes(8, "big"))
    _take(connection, size)


def _send(connection: socket.socket, size: int) -> None:
    connection.sendall(bytes(size))
    connection.recv(1)


def _each(connections: Sequence[socket.socket], work: Callable[[socket.socket, int], None], size: int) -> None:
    threads = [threading.Thread(target=work, args=(one, size)) for one in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def host(address: str) -> None:
    """Serve, and carry out the orders that come as lines.

    An order is a step (servers, bytes from each, seconds of computing), or a link to measure (address, port, bytes).
    """
    links = LinkServer(address)
    listener = socket.create_server((address, PORT), backlog=64)
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    print(links.port, flush=True)
    open_to: dict[str, socket.socket] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if isinstance(order[0], str):
            print(seconds_per_byte(*order), flush=True)
            continue
        servers, size, computing = order
        began = time.perf_counter()
        for server in servers:
            if server not in open_to:
                open_to[server] = socket.create_connection((server, PORT), timeout=30)
                open_to[server].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        exchange([open_to[server] for server in servers], size, computing)
        print(time.perf_counter() - began, flush=True)


# ---------------------------------------------------------------------------------------------- the comparison


class Hosts:
    """The hosts of a network, each with a process that takes orders through a pipe."""

    def __init__(self, network: Network) -> None:
        self._addresses = list(network.addresses.values())
        command = [sys.executable, "-m", "benchmarks.paradigms.plans", "--host"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 1}
        folder = Path(__file__).parents[2]
        self._processes = [
            network.start(name, [*command, address], cwd=folder, **pipes) for name, address in network.addresses.items()
        ]
        self._ports = [int(self._hear(number)) for number in range(len(self._processes))]

    def cost(self, one: int, other: int, size: int) -> float:
        """Return the seconds of each byte from one host to another."""
        self._tell(other, self._addresses[one], self._ports[one], size)
        return float(self._hear(other))

    def step(self, servers: Sequence[int], workers: Sequence[int], size: int, computing: float) -> float:
        """Take a step; return its seconds."""
        began = time.perf_counter()
        for worker in workers:
            self._tell(worker, [self._addresses[server] for server in servers], size, computing)
        for worker in workers:
            self._hear(worker)
        return time.perf_counter() - began

    def _tell(self, number: int, *order: Any) -> None:
        pipe = self._processes[number].stdin
        assert pipe is not None
        pipe.write(json.dumps(order) + "\n")
        pipe.flush()

    def _hear(self, number: int) -> str:
        pipe = self._processes[number].stdout
        assert pipe is not None
        if not (line := pipe.readline()):
            raise OSError(f"host {number} is gone")
        return str(line)


def measure(quick: bool = False) -> list[Row]:
    rates = dict(list(RATES.items())[:2]) if quick else RATES
    count, rounds = len(rates), 2 if quick else 3
    with Network(rates) as network:
        hosts = Hosts(network)
        costs = tuple(tuple(hosts.cost(one, other, WEIGHTS) for other in range(count)) for one in range(count))
        nodes = tuple(Node(name, 3, 1, 1e9) for name in rates)
        model = Model(WEIGHTS, COMPUTING / BATCH, BATCH)
        cluster = Cluster(nodes, costs, gpu_flops=1.0)
        chosen = compare(cluster, model)[0]
        found, expected = {}, {}
        subsets = [some for size in range(1, count + 1) for some in itertools.combinations(range(count), size)]
        for servers, workers in itertools.product(subsets, subsets):
            hosts.step(servers, workers, WEIGHTS // len(servers), COMPUTING)  # connects
            steps = [hosts.step(servers, workers, WEIGHTS // len(servers), COMPUTING) for _ in range(rounds)]
            found[servers, workers] = BATCH * len(workers) / median(steps)
            placed = tuple((worker_need(model, 1, 1),) if at in workers else () for at in range(count))
            expected[servers, workers] = rows_per_second(cluster, model, Placement(servers, placed))
    ours = chosen.placement.servers, tuple(at for at, there in enumerate(chosen.placement.workers) if there)
    best = max(found, key=lambda plan: found[plan])
    share = found[ours] / found[best]
    errors = sorted(abs(expected[plan] / found[plan] - 1) for plan in found)
    names = list(rates)
    return [
        Row(
            "plans",
            f"throughput of the chosen plan ({_said(ours, names)}) by the best of {len(found)} that were run",
            f"{found[ours]:.0f} rows/s",
            f"{found[best]:.0f} rows/s: {_said(best, names)}",
            share,
            f"≥ {GOAL}",
            None if quick else share >= GOAL,
        ),
        Row("plans", "error of the model of a step, median and largest", f"{median(errors):.0%}, {errors[-1]:.0%}"),
        Row("plans", "the slowest plan", f"{min(found.values()):.0f} rows/s", "", min(found.values()) / found[best]),
    ]


def _said(plan: tuple[Sequence[int], Sequence[int]], names: Sequence[str]) -> str:
    servers, workers = ("".join(names[at] for at in some) for some in plan)
    return f"servers {servers}, workers {workers}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paradigms.plans", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two hosts: a functional check only")
    parser.add_argument("--host", metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host:
        host(options.host)
        return 0
    if lacks := missing():
        print("This machine lacks " + "; ".join(lacks), file=sys.stderr)
        return 1
    rows = measure(options.quick)
    print(table(rows))
    return 1 if any(row.ok is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
