"""A Ray cluster whose links, storage, head and nodes fail for a while: the time that it costs, and the bits.

Four hosts in network namespaces, two of them with a worker; versions go to an object store. Each run meets one fault
after its first units. Times run from the first unit that ended to the last. While the driver's link is down, workers
end their units and wait for the next ones, so that run is compared with the undisturbed one and the outage together.
Storage and head are not in the way of training. The head keeps its state in Redis.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.paradigms.network import missing
from benchmarks.row import Row
from hopfleet.domain.messages import UnitFinished
from hopfleet.store.folder import RunFolder
from tests.helpers.cluster.hosts import DRIVER, HEAD, REDIS_SERVER, STORAGE, WORKERS, Hosts, hosts, recommended
from tests.helpers.cluster.started import dated, wait_until

BAR = 1.1
PATIENCE = 400.0
FIRST = 10
"""Units before the fault."""

Fault = Callable[[Hosts], object]


def measure(quick: bool) -> list[Row]:
    if why := [*missing(), *([] if REDIS_SERVER else ["needs Redis: bash tools/install_redis.sh"])]:
        return [Row("outages", "; ".join(why), "not measured")]
    epochs, links, storage, head = (8, (2.0,), 2.0, 2.0) if quick else (60, (5.0, 30.0, 60.0), 100.0, 10.0)
    rows = []
    with tempfile.TemporaryDirectory() as home, hosts(Path(home), redis=True, **recommended()) as made:
        made.serve_bucket("bucket")
        run = partial(_run, made, epochs)
        alone, bits = run("alone", lambda _: None)
        faults: list[tuple[str, Fault, float]] = [
            *((f"the driver's link is down for {each:.0f} s", partial(_cut, DRIVER, each), each) for each in links),
            (f"the storage is down for {storage:.0f} s", partial(_cut, STORAGE, storage), 0.0),
            (f"the head is lost and back after {head:.0f} s", partial(_restart, HEAD, head), 0.0),
        ]
        for number, (what, fault, outage) in enumerate(faults):
            took, found = run(f"fault-{number}", fault)
            rows.append(_row(what, took, alone, outage, same=found == bits))
        took, found = run("node", partial(_restart, WORKERS[0], head))
        rows.append(
            _row(f"one of two nodes is lost and back after {head:.0f} s", took, alone, None, same=found == bits)
        )
    return rows


def _row(what: str, took: float, alone: float, outage: float | None, *, same: bool) -> Row:
    """Return the row of a fault; without an ``outage``, a worker is missing, and there is no bar."""
    expected = alone + (outage or 0.0)
    beside = f"{alone:.1f} s undisturbed" + (f" and {outage:.0f} s" if outage else "")
    bits = "the same bits" if same else "OTHER BITS"
    bar, ok = ("", None) if outage is None else (f"≤ {BAR}", took <= BAR * expected and same)
    return Row("outages", what, f"{took:.1f} s, {bits}", beside, took / expected, bar, ok)


def _run(made: Hosts, epochs: int, name: str, fault: Fault) -> tuple[float, object]:
    """Run an experiment with a fault; return how long it trained, and the digests of its models."""
    folder = RunFolder(made.home / name)
    made.drive(name, epochs=epochs, address=made.address, storage="s3://bucket/runs", elastic=True)
    wait_until(lambda: len(dated(folder, UnitFinished)) >= FIRST or made.driver_ended, PATIENCE)
    assert not made.driver_ended, made.said()
    fault(made)
    found = json.loads(made.said())
    times = [when for _, when in dated(folder, UnitFinished)]
    return max(times) - min(times), found


def _cut(host: str, seconds: float, made: Hosts) -> None:
    made.network.cut(host)
    time.sleep(seconds)
    made.network.mend(host)


def _restart(host: str, seconds: float, made: Hosts) -> None:
    made.lose(host)
    time.sleep(seconds)
    made.start(host)
