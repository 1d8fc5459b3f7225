"""The page of a space that is a function: the names that it asked for, and configurations where they are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

import hopfleet as hop
from tests.helpers.browser import Server, Visitor, browser, until
from tests.helpers.curve_task import asked, curve_experiment

pytestmark = pytest.mark.slow

NAMES = ["act.name", "blocks", "log_lr", "rate"]


def test_the_names_that_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path))
    results = curve_experiment("asked", space=asked, search=hop.Random(trials=12, max_epochs=2)).fit(quiet=True)
    trial = next(trial for trial in results if "rate" not in trial.chosen)
    with Server(tmp_path) as server, browser() as chromium:
        visitor = Visitor(chromium, server, viewport={"width": 1280, "height": 900})
        page = visitor.page
        visitor.go("#/x/asked")
        heads = page.locator(".board th button")
        until(lambda: {*NAMES} <= {*heads.all_inner_texts()}, "the names in the heads of the table")
        assert not {"lr", "width", "dropout"} & {*heads.all_inner_texts()}
        visitor.picture("chosen-table")
        for view in ("parallel", "importance", "slices"):
            visitor.go(f"#/x/asked/{view}")
            visitor.drawn()
            visitor.picture(f"chosen-{view}")
        visitor.go(f"#/x/asked/t/{trial.id}")
        page.wait_for_selector("h3:text-is('Chosen values')")
        pairs = page.locator("section", has=page.locator("h3", has_text="Chosen values")).locator("th")
        assert sorted(pairs.all_inner_texts()) == NAMES[:-1]
        pairs = page.locator("section", has=page.locator("h3", has_text="Configuration")).locator("th")
        assert pairs.all_inner_texts() == ["lr", "width", "dropout", "activation"]
        visitor.drawn()
        visitor.picture("chosen-trial")
        page.get_by_role("button", name="Clone…").click()
        fields = page.locator("dialog .fields span")
        until(lambda: fields.count() > 0, "the fields of a clone")
        assert fields.all_inner_texts() == ["lr", "width", "dropout", "activation"], "requests change configurations"
        assert visitor.problems == []
        visitor.context.close()
