"""What the documentation claims about the code: calls, names, files, limits and exit codes."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet.backends import supervision
from hopfleet.backends.local import backend as local
from hopfleet.backends.local import fork_server
from hopfleet.backends.ray import liveness
from hopfleet.cli import app
from hopfleet.data.etl import memory, work
from hopfleet.domain import bounds
from hopfleet.experiment import resources
from hopfleet.frameworks import whole_set
from hopfleet.search import base as searches
from hopfleet.trackers import base as trackers
from hopfleet.ui import access, secrets, serving
from hopfleet.worker import logs, saver

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

LIMITS = [
    ("operations.md", f"uses no processor for {local.SILENCE_SECONDS:g} s"),
    ("operations.md", f"after {fork_server.STOPPED_SECONDS:g} s without a heartbeat"),
    ("operations.md", f"did not react within {supervision.GIVE_UP_SECONDS:g} s"),
    ("operations.md", f"At most {searches.MAX_LIVE} trials are active at once"),
    ("operations.md", f"{bounds.DEPTH} levels and {bounds.SIZE:,} characters at most"),
    ("operations.md", f"the name of a trial, of at most {bounds.NAME} characters"),
    ("reliability.md", f"its log ends at {logs.LIMIT >> 20} MiB"),
    ("reliability.md", f"has {hop.WorkerOptions().start_timeout:g} seconds without progress"),
    ("reliability.md", f"up to {resources.VERIFY_BYTES >> 30} GiB"),
    ("reliability.md", f"{access.MOST_CODES} attempts in {access.WINDOW_SECONDS:g} seconds"),
    ("reliability.md", f"complete in {serving.REQUEST_SECONDS:g} s"),
    ("page.md", f"more than {access.LARGEST_BODY // 1024} kB and more than {access.MOST_REQUESTS} requests"),
    ("page.md", f"at least {secrets.SHORTEST_TOKEN} characters"),
    ("guide.md", f"at most {whole_set.LIMIT >> 30} GiB for each metric"),
    ("cluster.md", f"`outage` seconds, {liveness.OUTAGE_SECONDS / 60:g} minutes by default"),
    ("prepare.md", f"Up to {work.BATCH_ROWS:,} rows"),
    ("prepare.md", f"up to {memory.HELD_BYTES >> 20} MB of source"),
    ("concepts.md", f"at most {saver.PACE:.0%} of the time"),
    ("concepts.md", f"none waits longer than {hop.RunOptions().checkpoint_every:g} seconds"),
    ("trackers.md", f"waits at most {trackers.END_SECONDS:g} seconds"),
    ("cli.md", f"| {app.INTERRUPTED} | interrupted with Ctrl-C"),
    ("cli.md", f"| {app.USAGE} | wrong usage"),
    ("cli.md", f"| {app.FAILED} | some trials failed"),
    ("guide.md", f'`workers="{inspect.signature(hop.Experiment).parameters["workers"].default}"` (the default)'),
    ("scheduling.md", f'`hop.RunOptions(order="{hop.RunOptions().order}")`, the default'),
    ("concepts.md", f'`hop.WorkerOptions(fuse="{hop.WorkerOptions().fuse}")`, the default'),
]
"""Pages, and words in them that follow from the code."""


@cache
def words(page: Path) -> str:
    return " ".join(page.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(("page", "text"), LIMITS, ids=lambda value: str(value)[:40])
def test_limits_and_defaults_are_those_of_the_code(page: str, text: str) -> None:
    assert text in words(ROOT / "docs" / page)


def test_calls_take_the_arguments_that_are_named() -> None:
    checked = 0
    for page in PAGES:
        for name, given in re.findall(r"`[^`\n]*hop\.(\w+)\(([^()`\n]*)\)", page.read_text(encoding="utf-8")):
            if name.endswith(("Task", "SearchCV")) or "=" not in given:
                continue  # to ask for the task of a framework imports the framework
            try:
                (call,) = ast.parse(f"f({given})").body
                taken = inspect.signature(getattr(hop, name)).parameters
            except (SyntaxError, ValueError):  # not a whole call, or without a signature
                continue
            assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
            anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
            named = {keyword.arg for keyword in call.value.keywords if keyword.arg}
            assert anything or named <= taken.keys(), (page, name, given)
            checked += 1
    assert checked > 30


def test_variables_and_paths_exist() -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for part in ("src", "tests/helpers") for path in (ROOT / part).rglob("*.py")
    ) + (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in set(re.findall(r"\bHOPFLEET_[A-Z_]+\b", text)):
            assert name in sources, (page, name)
        for path in set(re.findall(r"`((?:src|tests|tools|benchmarks|examples|deploy|docs)/[\w./-]+)`", text)):
            assert (ROOT / path).exists(), (page, path)
