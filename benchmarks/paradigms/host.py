"""``python -m benchmarks.paradigms.host``: one host's part in one or more paradigms.

It talks to its parent process in lines: it reports each step (``ready``, ``loaded``, ``trained`` with the results) and
waits for a line before it continues, so that bytes and seconds can be counted in between.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.paradigms.catalogue import PARADIGMS
from benchmarks.paradigms.site import Site
from benchmarks.paradigms.workload import Workload


def main() -> None:
    torch.set_num_threads(1)
    told = json.loads(sys.argv[1])
    site = Site(
        told["rank"],
        tuple(told["addresses"]),
        told["port"],
        told["source"],
        Path(told["folder"]),
        Workload(**told["workload"]),
    )
    site.meet()
    # The first optimizer of a process imports more of PyTorch, which is not training time.
    site.session(0)
    for name in told["paradigms"]:
        paradigm = PARADIGMS[name]
        site.begin(name)
        say("ready")
        data = paradigm.load(site)
        say("loaded")
        outcomes = paradigm.train(site, data)
        say("trained", [asdict(outcome) for outcome in outcomes])
    site.part()


def say(done: str, what: Any = None) -> None:
    """Report a step, and wait for the signal to continue."""
    print(json.dumps([done, what]), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
