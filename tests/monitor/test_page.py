"""Tables for notebooks."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from hopfleet.monitor.history import History
from hopfleet.monitor.page import facts_html, results_html, trial_html


def cells(page: str) -> list[list[str]]:
    tree = ElementTree.fromstring(page)
    return [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]


def test_the_best_trials(eventful_history: History) -> None:
    page = results_html(eventful_history)
    head, first, *rest = cells(page)
    best = eventful_history.leaderboard()[0]
    assert head[:4] == ["#", "trial", "state", "epochs"]
    assert first[:2] == ["1", best.id]
    assert len(rest) == 7
    assert f"best {best.id}" in page and "8 trials: 7 completed, 1 failed" in page
    assert re.findall(r"color[^;\"]*", page) == ["color:inherit"], "the colours are those of the theme"


def test_no_trial_yet() -> None:
    page = results_html(History(metric="loss", mode="min", partitions=1, name="new"))
    assert "no trials" in page and "<table" not in page


def test_a_trial(eventful_history: History) -> None:
    page = trial_html(eventful_history.trials["t0001"], "digits")
    facts = dict(cells(page))
    assert facts["trial"] == "t0001 of digits"
    assert facts["state"] == "failed, 2 of 4 epochs"
    assert facts["why it ended"].startswith("RuntimeError: CUDA out of memory")
    assert "optimizer.name" in facts


def test_text_is_escaped() -> None:
    assert "<b>" not in facts_html([("<b>", "<b>\x1b[31m")])
