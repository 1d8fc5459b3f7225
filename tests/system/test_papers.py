"""The report on the papers is made as a whole, and the kept one is complete."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks.papers import contents
from benchmarks.paradigms.network import missing
from tests.helpers import warm
from tests.helpers.marks import long

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "papers"
HEADLINES = (
    *("Table 2", "Figure 5: schedules", "Figure 6", "Figure 7", "Figure 8", "Figure 9", "Figures 10 and 11"),
    *("Figures 12 and 13", "Figures 4.1 to 4.3", "Figure 5: speed-ups", "Figures 6 to 9", "Tables 3 and 4"),
    *("Figure 4", "Candidates", "Plans that were run"),
)
PRINTED = {
    contents.CEREBRO: ("figures 1-13", "tables 1-6"),
    contents.PLATFORM: ("figures 1.1 2.1 3.1-3.7 4.1-4.3 5.1-5.4", "tables 1.1 4.1 5.1 5.2"),
    contents.FLEET: ("figures 1-9", "tables 1-4"),
    contents.DIKE: ("figures 1-4", "tables 1-2"),
}
"""The numbers of all tables and figures that each paper has."""


def printed() -> set[tuple[str, str]]:
    found = set()
    for paper, (kind, *numbers) in ((paper, line.split()) for paper, lines in PRINTED.items() for line in lines):
        for first, _, last in (number.partition("-") for number in numbers):
            chapter, _, at = first.rpartition(".")
            for number in range(int(at), int(last.rpartition(".")[2] or at) + 1):
                found.add((paper, f"{kind[:-1].title()} {chapter}{'.' if chapter else ''}{number}"))
    return found


def test_every_table_and_figure_is_listed_once() -> None:
    names = [(entry.paper, entry.name) for entry in contents.ENTRIES]
    assert len(set(names)) == len(names)
    assert {(paper, name.rstrip("ABC")) for paper, name in names} == printed()
    for entry in contents.ENTRIES:
        # A part by itself, such as figure 7A, does not stand for the whole figure.
        whole = entry.name.rstrip("ABC")
        parts = [name for paper, name in names if paper == entry.paper and name.rstrip("ABC") == whole]
        assert parts == [whole] or (len(parts) > 1 and whole not in parts)
        assert bool(entry.row) != bool(entry.reason) and entry.shows


def check(folder: Path) -> None:
    text, page = (folder / "README.md").read_text(), (folder / "index.html").read_text()
    for headline in HEADLINES:
        assert f"### {headline}" in text and re.search(f"<h3 id='[^']+'>{re.escape(headline)}", page), headline
    lines = text.splitlines()
    for entry in contents.ENTRIES:
        name = f"{entry.paper}, {entry.name[0].lower()}{entry.name[1:]}"
        (line,) = (line for line in lines if line.startswith(f"| {name} |"))
        assert ("not repeated: " in line) == bool(entry.reason), line
        assert not entry.row or any(line.startswith(f"| {entry.row}") for line in lines), entry
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


@long
@pytest.mark.slow
def test_the_report_is_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.papers", "--smoke", "--folder", str(tmp_path)]
    done = warm.run(command, cwd=ROOT, text=True)
    assert done.returncode == 0, done.stderr
    check(tmp_path)
