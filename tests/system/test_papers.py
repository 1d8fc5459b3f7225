"""The report on the papers is made as a whole, and the kept one is complete."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks.paradigms.network import missing
from tests.helpers import warm

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "papers"
HEADLINES = (
    *("Table 2", "Figure 5: schedules", "Figure 6", "Figure 7", "Figure 8", "Figure 9", "Figures 10 and 11"),
    *("Section 6.3", "Figures 4.1 to 4.3", "Figure 5: speed-ups", "Tables 3 and 4", "Figure 4", "Candidates"),
    "Plans that were run",
)


def check(folder: Path) -> None:
    text, page = (folder / "README.md").read_text(), (folder / "index.html").read_text()
    for headline in HEADLINES:
        assert f"### {headline}" in text and re.search(f"<h3 id='[^']+'>{re.escape(headline)}", page), headline
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert len(pictures) == 8 and all((folder / name).stat().st_size > 10_000 for name in pictures)
    assert all(f"src='{name}'" in page for name in pictures)


def test_the_kept_report() -> None:
    check(KEPT)


@pytest.mark.slow
def test_plans_are_run_on_hosts() -> None:
    if lacks := missing():
        pytest.skip("; ".join(lacks))
    command = [sys.executable, "-m", "benchmarks.paradigms.plans", "--quick"]
    done = warm.run(command, cwd=ROOT, text=True)
    assert done.returncode == 0, done.stderr
    assert "by the best of 9 that were run" in done.stdout


@pytest.mark.slow
def test_the_report_is_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.papers", "--smoke", "--folder", str(tmp_path)]
    done = warm.run(command, cwd=ROOT, text=True)
    assert done.returncode == 0, done.stderr
    check(tmp_path)
