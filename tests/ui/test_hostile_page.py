"""Hostile strings in names, configurations, metrics, logs, errors, notices and requests stay text in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet.domain.messages import (
    EpochEnded,
    Message,
    RecordLogged,
    TrialAdded,
    TrialEnded,
    UnitFailed,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.store.local import open_journal
from tests.helpers.browser import Server, Visitor, browser, until
from tests.helpers.cli import fitted

pytestmark = pytest.mark.slow

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "'><iframe src=javascript:alert(1)>",
    "javascript:alert(1)",
    "${alert(1)}",
    "{{constructor.constructor('alert(1)')()}}",
    "</textarea><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "<a href='javascript:alert(1)'>x</a>",
    "<style>*{display:none}</style>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\u202egnp.exe",
    "=cmd|' /C calc'!A0",
    "\x1b[31mred",
    "<!--",
    "]]>",
    "__proto__",
    "constructor",
    "hasOwnProperty",
    "../../etc/passwd",
    "%00%0a%0dSet-Cookie: a=b",
    "\n\nevent: reset\ndata: {}\n\n",
    "data:text/html,<script>alert(1)</script>",
    "<math><mi//xlink:href='data:x,<script>alert(1)</script>'>",
    "<svg/onload=alert`1`>",
    "<body onload=alert(1)>",
    "<details open ontoggle=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<object data=javascript:alert(1)>",
    "<embed src=javascript:alert(1)>",
    "<link rel=stylesheet href=//evil.example>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<form action=//evil.example><button>x",
    "<video><source onerror=alert(1)>",
    "<marquee onstart=alert(1)>",
    "`${alert(1)}`",
    "');alert(1);//",
    '";alert(1);//',
    "\\u003cscript\\u003ealert(1)",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "<ScRiPt>alert(1)</sCrIpT>",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "🙂" * 200,
    "a" * 5000,
    "\u0000nul",
    "\u2028\u2029",
    "-1+1",
    "@SUM(1)",
]

FOREIGN = """() => [...document.querySelectorAll("#app *")].filter((each) =>
    each.matches("script, iframe, object, embed, style, link, base, meta, math, video, marquee")
    || [...each.attributes].some(({ name, value }) => name.startsWith("on")
      || (["href", "src", "action", "data"].includes(name) && /^\\s*(javascript|data):/i.test(value))))
    .map((each) => each.outerHTML)"""
"""Elements and attributes that the page never makes itself."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment whose journal and logs have a hostile string wherever a string can be."""
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path))
    results = fitted("hostile", {"text": hop.grid_search(["one"])}, search=hop.Grid(max_epochs=1), partitions=1)
    journal = open_journal(results.folder, writable=True)
    *_, (_, last, _) = journal.read()
    step: list[Message] = []
    for number, text in enumerate(HOSTILE, 2):
        name = f"t{number:04d}"
        worker = f"w{number} {text}"
        step += [
            WorkerJoined(worker),
            TrialAdded(name, number, {"text": text, text: number}, number, 2),
            EpochEnded(name, 1, 1, {"train_units": number / 100, text: 0.5}, True),
            UnitFailed(worker, Unit(name, 2, 0), 1000 + number, last, last + 1, text, text, text),
            RecordLogged(worker, name, text),
            TrialEnded(name, TrialState.FAILED, text, text),
            WorkerLost(worker, text),
        ]
        (results.folder.logs / f"{name}.log").write_text(text * 3, errors="replace")
    journal.append(last + 1, step)
    for text in HOSTILE:
        journal.requests.ask(text, "stop", {"trial": text})
    journal.close()
    return tmp_path


def test_hostile_strings_stay_text(home: Path) -> None:
    with Server(home) as server, browser() as opened:
        visitor = Visitor(opened, server)
        page = visitor.page

        def look(place: str, selector: str = "main table, main .frame") -> str:
            visitor.go(place)
            page.wait_for_selector(selector)
            until(lambda: "reading" not in page.inner_text("main"), f"{place} that is loaded")
            assert page.evaluate(FOREIGN) == [], place
            return str(page.inner_text("main"))

        look("#/")
        for view in ("", "/curves", "/schedule", "/parallel", "/importance", "/workers", "/requests", "/data"):
            look(f"#/x/hostile{view}", "main h1")
        for number, text in enumerate(HOSTILE, 2):
            shown = look(f"#/x/hostile/t/t{number:04d}", f"h2:has-text('t{number:04d}')")
            if text.isprintable() and len(text) < 60:
                assert shown.count(text) >= 3, "the configuration, the reason and the log"
        for text in HOSTILE:
            look(f"#/x/{text}", "main, #content")
            look(f"#/x/hostile/t/{text}", "main")
            look(f"#/x/hostile?q={text}&sort={text}&metric={text}", "main")
        expected = ("404", "400")  # no such experiment, no such trial
        assert [each for each in visitor.problems if not any(status in each for status in expected)] == []
        visitor.context.close()
