"""Fuzzing by batches: mutated inputs in a process of their own, so that a crash of the interpreter is only a finding.

A target is a function ``target(mutator, folder)`` in an importable module. It makes an input in the empty ``folder``
with the help of the mutator, uses the input as a user would, and returns. A HopfleetError means that the input was
refused in words, which is well; an AssertionError tells of a silent difference; any other exception is a raw traceback.

    fuzz("tests.helpers.fuzz_targets.journals:journal", range(200))
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import importlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopfleet.errors import HopfleetError
from hopfleet.store.shared_memory import TMPFS
from tests.helpers import warm
from tests.helpers.mutation import Mutator

Target = Callable[[Mutator, Path], None]

ROOT = Path(__file__).parents[2]

LIMIT_SECONDS = 300
"""A batch that takes longer hangs."""

SHOWN = 5
"""Findings to show in full."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a batch: how many inputs had no effect, and how many were refused."""

    harmless: int
    refused: int


def fuzz(target: str, seeds: Sequence[int]) -> Outcome:
    """Run a target, ``module:function``, on inputs made from ``seeds``. Raise AssertionError with all findings."""
    command = [sys.executable, "-m", "tests.helpers.fuzzing", target, json.dumps(list(seeds))]
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=TMPFS if TMPFS.is_dir() else None) as folder:
        environment = os.environ | {"HOPFLEET_HOME": str(Path(folder, "home")), "TMPDIR": folder}
        done = warm.run(command, cwd=ROOT, env=environment, text=True, timeout=LIMIT_SECONDS)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    counts = collections.Counter(line["verdict"] for line in lines)
    began = counts["began"] - counts["harmless"] - counts["refused"] - counts["finding"]
    assert not began and not done.returncode, (
        f"{target}: the process ended with {done.returncode} at seed {lines[-1]['seed'] if lines else '?'}\n"
        f"{done.stderr[-4000:]}"
    )
    findings = [line for line in lines if line["verdict"] == "finding"]
    shown = "\n".join(f"seed {line['seed']}: {line['text']}" for line in findings[:SHOWN])
    assert not findings, f"{target}: {len(findings)} of {len(seeds)} inputs, seeds {_seeds(findings)}\n{shown}"
    assert counts["harmless"] + counts["refused"] == len(seeds), counts
    return Outcome(counts["harmless"], counts["refused"])


def _seeds(findings: list[dict[str, object]]) -> list[object]:
    return [line["seed"] for line in findings]


def _main(target: str, seeds: Sequence[int]) -> None:
    faulthandler.enable()
    tempfile.tempdir = None  # a warm process may have chosen another one
    module, _, name = target.partition(":")
    function: Target = getattr(importlib.import_module(module), name)
    for seed in seeds:
        _say(seed, "began")
        with tempfile.TemporaryDirectory(prefix="input-") as folder:
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    function(Mutator(seed), Path(folder))
            except HopfleetError as error:
                empty = not str(error).strip()
                _say(seed, "finding" if empty else "refused", "an error without words" if empty else "")
            except Exception:
                _say(seed, "finding", traceback.format_exc(limit=-6))
            else:
                _say(seed, "harmless")


def _say(seed: int, verdict: str, text: str = "") -> None:
    sys.stdout.write(json.dumps({"seed": seed, "verdict": verdict, "text": text}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
