"""Compare the code that runs on GPUs with the record of its last test run on a GPU.

    python tools/check_gpu_record.py                        fail if the code differs from the record
    python tools/check_gpu_record.py --write REPORT         write a record of a test run, given its JUnit report
    python tools/check_gpu_record.py --pending REASON       accept the present code until the next run on a GPU

CI has no GPU. ``make gpu`` runs the tests on a machine that has one and writes the record, and ``make lint`` compares.
A file counts as changed if its syntax tree differs: comments, docstrings and formatting do not matter.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path("tests/frameworks/gpu_record.json")
CODE = ("src/hopfleet/frameworks/base.py", "src/hopfleet/frameworks/state", "src/hopfleet/frameworks/torch")
"""The files and folders that the tests on a GPU cover: the adapter of PyTorch and what it is made of."""

REFRESH = "run `make gpu` on a machine with an NVIDIA GPU and commit the record"
WAIVE = 'without a GPU, run `make gpu-pending REASON="..."` and commit the record'

Record = dict[str, Any]
Hashes = Mapping[str, str | None]
"""The hash of each file by its path; None for a file that was removed."""


def normalized(source: str) -> str:
    """Return the syntax of a module as text, without docstrings; the same for all versions of Python."""
    return _text(ast.parse(source))


def _text(node: object) -> str:
    if isinstance(node, list):
        return "[" + ",".join(map(_text, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(value, list):
            value = [each for each in value if not _is_bare_string(each)]
        # Fields that a version of Python adds are empty in code that does not use them.
        if value is not None and value != [] and name not in ("ctx", "kind", "type_comment"):
            parts.append(f"{name}={_text(value)}")
    return f"{type(node).__name__}({','.join(parts)})"


def _is_bare_string(node: object) -> bool:
    """Whether a statement is a string and nothing else: a docstring, or the description of a constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def hashes(root: Path = ROOT) -> dict[str, str]:
    """Return the hash of each file in ``CODE``."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(normalized(path.read_text("utf-8")).encode()).hexdigest()
        for name in CODE
        for path in _python_files(root / name)
    }


def _python_files(path: Path) -> Iterator[Path]:
    yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def differences(found: Mapping[str, str], expected: Hashes) -> dict[str, str | None]:
    """Return the present hashes of the files that are not as expected."""
    paths = sorted({*found, *expected})
    return {path: found.get(path) for path in paths if found.get(path) != expected.get(path)}


def load(root: Path = ROOT) -> Record:
    """Return the record; an empty one if there is none."""
    path = root / RECORD
    record: Record = json.loads(path.read_text("utf-8")) if path.exists() else {"files": {}}
    return record


def save(record: Record, root: Path = ROOT) -> None:
    """Replace the record."""
    (root / RECORD).write_text(json.dumps(record, indent=2) + "\n", "utf-8")


def check(root: Path = ROOT) -> int:
    """Print what differs from the record; return 1 unless all of that is accepted as pending."""
    record, found = load(root), hashes(root)
    pending: Record = record.get("pending") or {"files": {}}
    changed = differences(found, {**record["files"], **pending["files"]})
    if changed:
        print(f"{RECORD}: the code has changed since the last test run on a GPU ({_files(changed)}):")
        print(*(f"  {path}" for path in changed), sep="\n")
        print(f"Remedy: {REFRESH}; {WAIVE}.")
        return 1
    if waived := differences(found, record["files"]):
        since, reason = pending.get("since"), pending.get("reason")
        print(f"warning: {_files(waived)} untested on a GPU since {since} ({reason}); {REFRESH}")
    return 0


def waive(reason: str, root: Path = ROOT) -> None:
    """Accept the present code until the next run on a GPU."""
    record = load(root)
    changed = differences(hashes(root), record["files"])
    record.pop("pending", None)
    if changed:
        record["pending"] = {"reason": reason, "since": _today(), "files": changed}
    save(record, root)


def write(report: Path, machine: Mapping[str, str], root: Path = ROOT) -> None:
    """Write the record of a test run on ``machine``."""
    outcomes = counted(report.read_text("utf-8"))
    if outcomes["failed"] or not outcomes["passed"]:
        raise SystemExit(f"{report}: {outcomes['failed']} tests failed, {outcomes['passed']} passed: no record is made")
    tests = {name: outcomes[name] for name in ("passed", "skipped")}
    save({"commit": commit(root), "date": _today(), **machine, "tests": tests, "files": hashes(root)}, root)


def counted(report: str) -> dict[str, int]:
    """Count the outcomes of the tests in a JUnit report."""
    outcomes = {"passed": 0, "skipped": 0, "failed": 0}
    for case in ElementTree.fromstring(report).iter("testcase"):
        kinds = {child.tag for child in case}
        failed = kinds & {"failure", "error"}
        outcomes["failed" if failed else "skipped" if "skipped" in kinds else "passed"] += 1
    return outcomes


def commit(root: Path = ROOT) -> str:
    """Return ``$COMMIT``, for copies of a checkout; else the commit that is checked out, or "unknown"."""
    if given := os.environ.get("COMMIT"):
        return given
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def this_machine() -> dict[str, str]:
    """Return the versions and the device that tests run with. Raises SystemExit without a GPU."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no CUDA device: a record needs a machine with an NVIDIA GPU")
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "device": torch.cuda.get_device_name(0),
    }


def _files(paths: Hashes) -> str:
    return f"{len(paths)} file{'' if len(paths) == 1 else 's'}"


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or change the record if asked to; return 1 if the code differs from the record."""
    parser = argparse.ArgumentParser(description="Compare GPU code with the record of its last test run on a GPU.")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--write", metavar="REPORT", type=Path, help="write a record, given the JUnit report of a run")
    choice.add_argument("--pending", metavar="REASON", help="accept the present code until the next run on a GPU")
    options = parser.parse_args(arguments)
    if options.write:
        write(options.write, this_machine())
    elif options.pending is not None:
        if not options.pending.strip():
            parser.error('the reason is empty: set REASON, as in make gpu-pending REASON="no GPU at hand"')
        waive(options.pending)
    return check()


if __name__ == "__main__":
    sys.exit(main())
