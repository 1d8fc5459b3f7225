"""``python -m benchmarks``: run benchmarks, print one table, and with ``--write`` put it into docs/benchmarks.md."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from benchmarks.row import Row, table

SPINE = (
    *("imports", "decision", "simulation", "search", "overhead", "hop", "efficiency", "memory", "throughput"),
    *("preview", "control", "faults", "verify", "ray"),
)
SCHEDULING = (
    "openshop",
    "online",
    "replicas",
    "nodes",
    "fleet",
    "fleet_live",
    "fleet_rounds",
    "dike",
    "dike_run",
    "teams",
    "teams_live",
    "unequal",
    "unequal_live",
)
SEARCHING = ("searching", "sklearn_search")
FRAMEWORKS = ("adapters", "stacks")
WATCHING = ("ui", "watched", "dashboards", "importance")
CLUSTER = ("outages",)
DATA = ("etl", "etl_images", "etl_nodes", "predict")
NAMES = (*SPINE, *SCHEDULING, *SEARCHING, *FRAMEWORKS, *WATCHING, *CLUSTER, *DATA)
DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a functional check only")
    parser.add_argument("--only", choices=NAMES, action="append", help="run this benchmark only; may be repeated")
    parser.add_argument("--write", action="store_true", help=f"replace the table in {DOCUMENT.name}")
    options = parser.parse_args()
    if options.write and (options.quick or options.only):
        parser.error("--write: the document holds complete runs only; leave out --quick and --only")
    rows: list[Row] = []
    load = os.getloadavg()[0]
    for name in options.only or SPINE:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").measure(options.quick)
    status = conclude(rows, load, DOCUMENT if options.write else None)
    return 0 if options.quick else status


def conclude(rows: Sequence[Row], load: float, document: Path | None, begin: str = BEGIN, end: str = END) -> int:
    """Print the results with the load, and write them to a document; return 1 if a bar is missed, else 0."""
    results = f"{machine()} Load {load:.1f} before, {os.getloadavg()[0]:.1f} after.\n\n{table(rows)}"
    print(results)
    if document is not None:
        write(results, document, begin, end)
    return 1 if any(row.ok is False for row in rows) else 0


def machine() -> str:
    """Return when, at which commit and where the benchmarks run: the first line of every table."""
    cores = len(os.sched_getaffinity(0))
    packages = ", ".join(f"{package} {version(package)}" for package in ("numpy", "torch", "pyarrow", "safetensors"))
    python = f"Python {platform.python_version()}"
    where = f"{cores} cores ({platform.machine()}), {platform.system()}, {python}, {packages}."
    return f"Measured on {date.today()} ({commit()}). {where}"


def commit() -> str:
    """Return the commit of the checkout, or the release if there is none."""
    command = ["git", "-C", str(DOCUMENT.parent), "rev-parse", "--short", "HEAD"]
    try:
        return "commit " + subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"release {version('hopfleet')}"


def write(results: str, document: Path, begin: str = BEGIN, end: str = END) -> None:
    """Replace the text between two marker lines of a document."""
    before, rest = document.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    document.write_text(f"{before}{begin}\n\n{results}\n\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
