"""Mistakes in running on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hopfleet as hop
from hopfleet.errors import UsageError
from tests.helpers.mistakes import Mistake


def given(**options: Any) -> Callable[[], object]:
    return lambda: hop.Ray(**options)


def joined(address: str) -> Callable[[], object]:
    return lambda: hop.Ray(address).offer("cpu", 1)


MISTAKES: list[Mistake] = [
    Mistake("no replicas", given(replicas=0), UsageError, ("replicas=0", "at least 1")),
    Mistake("workers as the address", given(address=8), UsageError, ("address=8", "'auto' or HOST:PORT")),
    Mistake("two GPUs for a worker", given(gpus=2), UsageError, ("gpus=2", "between 0 and 1", "one GPU")),
    Mistake("fewer than no CPUs", given(cpus=-1), UsageError, ("cpus=-1", "at least 0")),
    Mistake("memory as a text", given(memory="8G"), UsageError, ("memory='8G'", "number of bytes")),
    Mistake("GPUs as a resource", given(resources={"GPU": 1}), UsageError, ("'GPU'", "give gpus=")),
    Mistake("a list of resources", given(resources=["licence"]), UsageError, ("['licence']", "must be a dict")),
    Mistake("a label that is a number", given(labels={"zone": 1}), UsageError, ("labels={'zone': 1}", "strings")),
    Mistake("a placement of Ray's groups", given(placement="STRICT_PACK"), UsageError, ("'SPREAD' or 'PACK'",)),
    Mistake("a negative outage", given(outage=-1), UsageError, ("outage=-1", "number of seconds, at least 0")),
    Mistake(
        "a cluster that is not running",
        joined("127.0.0.1:1"),
        UsageError,
        ("127.0.0.1:1", "nothing answers", "is the cluster running"),
    ),
    Mistake("an address without a port", joined("head"), UsageError, ("address='head'", "must be 'auto' or HOST:PORT")),
    Mistake("Ray's client protocol", joined("ray://head:10001"), UsageError, ("not supported", "ray job submit")),
]
