"""``python -m benchmarks.papers``: make all tables and pictures of the four papers, and write docs/papers."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks.__main__ import machine
from benchmarks.papers import cerebro, cerebro_runs, dike, fleet, platform
from benchmarks.papers.report import markdown, page
from benchmarks.papers.section import Effort, Maker

FOLDER = Path(__file__).parents[2] / "docs" / "papers"
PARTS = (cerebro, cerebro_runs, platform, fleet, dike)
SECTIONS: tuple[Maker, ...] = tuple(make for part in PARTS for make in part.SECTIONS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more seeds, 300 nodes, and real runs")
    parser.add_argument("--smoke", action="store_true", help="one seed of each: a functional check only")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write (default: docs/papers)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    effort = Effort(options.folder, 2 if options.full else 0 if options.smoke else 1)
    sections, load = [], os.getloadavg()[0]
    for make in SECTIONS:
        began = time.perf_counter()
        sections.append(make(effort))
        print(f"{sections[-1].paper}: {sections[-1].title} ({time.perf_counter() - began:.0f} s)", file=sys.stderr)
    kind = "with more seeds and real runs" if options.full else "with few seeds"
    where = f"{machine()} Made {kind}. Load {load:.0f} before, {os.getloadavg()[0]:.0f} after."
    (options.folder / "README.md").write_text(markdown(sections, where))
    (options.folder / "index.html").write_text(page(sections, where))
    print(f"written: {options.folder / 'README.md'} and {options.folder / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
