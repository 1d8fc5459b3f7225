"""Visits to the page of a run that goes on: to steer it, and to compare what is drawn with its journal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import hopfleet as hop
from tests.helpers.browser import Visitor, until


def steer(visitor: Visitor, gate: Path) -> None:
    """Use every button of a running experiment. It is paused meanwhile, so that it does not end before the last one."""
    page = visitor.page
    trained = re.compile(r"(?<!\d)[1-9]\d*/")  # epochs
    page.locator(".board tbody tr", has_text="t0002").filter(has_text=trained).wait_for()
    page.get_by_role("button", name="Pause").click()
    visitor.says("running units end")
    page.get_by_role("button", name="Undo").click()
    visitor.says("the experiment goes on")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Continue").wait_for()
    gate.touch()
    page.get_by_role("button", name="One worker more").dblclick()
    visitor.says("from 2 to 3 workers")
    page.get_by_text("3 workers", exact=True).wait_for()
    page.get_by_role("button", name="One worker less").click()
    visitor.says("from 3 to 2 workers")
    page.get_by_role("button", name="Extend…").click()
    page.get_by_label("More trials").fill("1")
    page.get_by_role("button", name="Extend", exact=True).click()
    visitor.says("1 more trial")
    page.get_by_role("button", name="Add trial…").click()
    until(lambda: "lr" in page.locator("dialog textarea").input_value(), "a configuration to start from")
    page.get_by_role("button", name="Add", exact=True).click()
    visitor.says("is added")
    page.locator(".board a", has_text="t0002").click()
    page.get_by_role("button", name="Stop").click()
    page.locator("main .title .state.stopped").wait_for()
    page.get_by_role("button", name="Resume…").click()
    page.get_by_label("Train up to this epoch").fill("5")
    page.get_by_role("button", name="Resume", exact=True).click()
    visitor.says("until epoch 5")
    page.get_by_role("button", name="Train first").click()
    visitor.says("t0002 has level 1")
    page.locator(".message", has_text="t0002 has level 1").get_by_role("button", name="Undo").click()
    visitor.says("t0002 has level 0")
    page.get_by_role("button", name="Clone…").click()
    page.locator(".fields label", has_text="dropout").locator("input").fill("0.25")
    page.get_by_role("button", name="Clone", exact=True).click()
    visitor.says("starts afresh")
    page.get_by_role("button", name="Clone…").click()
    page.get_by_label("warm").check()
    page.get_by_role("button", name="Clone", exact=True).click()
    visitor.says("goes on from epoch")
    page.get_by_role("button", name="Clone…").click()
    page.get_by_label("Train up to this epoch").fill("0.5")
    page.locator("dialog form").evaluate("form => form.noValidate = true")
    page.get_by_role("button", name="Clone", exact=True).click()
    page.wait_for_selector("dialog [role=alert] >> text=Refused")
    visitor.picture("refused")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete t0002").click()
    page.wait_for_selector(".board")
    visitor.go("#/x/live/workers")
    page.get_by_role("cell", name="MiB").first.wait_for()
    page.get_by_role("cell", name="ago").first.wait_for()
    visitor.picture("workers-live")
    visitor.go("#/x/live/requests")
    page.wait_for_selector("text=clone")
    until(lambda: page.locator("tbody tr").count() >= 14, "all requests")
    visitor.go("#/x/live")
    page.wait_for_selector(".board")
    page.get_by_role("button", name="Continue").click()
    visitor.says("the experiment goes on")


def check_points(visitor: Visitor, results: hop.Results) -> None:
    """Compare the points of the page with the journal: none is missing, none is doubled."""
    expected = {trial.id: [[row["epoch"], row["accuracy"]] for row in trial.history] for trial in results.trials}
    read = """async () => { const { feedOf } = await import('./static/store.js'); const feed = feedOf('live');
        feed.needCurves('accuracy'); await feed.loading.get('accuracy'); const found = {};
        for (const [trial, curve] of feed.curves.get('accuracy') ?? []) if (feed.trials.has(trial))
          found[trial] = Array.from(
            { length: curve.epochs.length }, (_, i) => [curve.epochs.get(i), curve.values.get(i)]);
        return JSON.stringify(found) }"""

    def same() -> bool:
        found = json.loads(visitor.page.evaluate(read))
        return found.keys() == {trial for trial, rows in expected.items() if rows} and all(
            [epoch for epoch, _ in rows] == [epoch for epoch, _ in expected[trial]]
            and all(abs(a - b) < 1e-6 for (_, a), (_, b) in zip(rows, expected[trial], strict=True))
            for trial, rows in found.items()
        )

    until(same, "the same points as in the journal")
