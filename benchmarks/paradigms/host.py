"""``python -m benchmarks.paradigms.host``: one host's part in one or more paradigms.

It talks to who started it by lines: it says what it has done (``ready``, ``loaded``, ``trained`` with what came of it)
and waits for a line before it goes on, so that bytes and seconds can be counted in between.
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
    # The first optimizer of a process imports more of PyTorch, which is nobody's training time.
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
    """Tell, and wait to be told to go on."""
    print(json.dumps([done, what]), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
