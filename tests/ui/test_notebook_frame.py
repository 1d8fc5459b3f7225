"""What ``fit()`` shows in front ends that keep outputs in frames of another site, as VS Code and Colab do.

VS Code has the page of a notebook's outputs in a sandboxed frame, within a frame whose policy allows no other site
(``src/vs/workbench/contrib/webview/browser/pre/index.html`` of microsoft/vscode). With the setting
``notebook.experimental.enableCsp`` that page has a strict policy of its own (``backLayerWebView.ts`` in
``src/vs/workbench/contrib/notebook/browser/view/renderers``). Policies and sandboxes are copied from there; the scheme
``vscode-webview:`` is replaced by a name of this machine, which is another site than that of the server.
"""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hopfleet.runs.control import Control
from tests.helpers.browser import SECONDS, browser
from tests.helpers.cli import counting

pytestmark = pytest.mark.slow

WORKBENCH = "allow-scripts allow-same-origin allow-forms allow-pointer-lock allow-downloads"
WEBVIEW = "default-src 'none'; script-src 'self'; frame-src 'self'; style-src 'unsafe-inline'"
SANDBOX = "allow-same-origin allow-pointer-lock allow-scripts allow-downloads allow-forms"
STRICT = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src https: http: data:; font-src https:; connect-src https:; child-src https: data:"
)
FRONT_ENDS = {"vscode": (SANDBOX, ""), "vscode-strict": (SANDBOX, STRICT), "opaque": ("allow-scripts", "")}
"""The sandbox of the outputs, and their policy. An opaque frame has no origin, so it can show no other live page."""

SHOW = """for (const html of OUTPUTS) {
  const output = document.body.appendChild(document.createElement("div"));
  output.innerHTML = html;
  for (const inert of output.querySelectorAll("script")) {
    const script = Object.assign(document.createElement("script"), { text: inert.textContent });
    output.append(script);
    script.remove();
  }
}"""
"""Shows outputs and runs their scripts, as VS Code does."""


class Notebook:
    """The outputs of a cell, each with its updates, and a server with front ends that show them."""

    def __init__(self) -> None:
        self.outputs: list[list[str]] = []

    def display(self, html: str, **options: Any) -> Any:
        self.outputs.append([html])
        return SimpleNamespace(update=self.outputs[-1].append)

    def page(self, address: str, port: int) -> str:
        """Return the workbench, the frame in it, or the outputs, at their first or their last state."""
        _, name, state, part = address.split("/")
        sandbox, policy = FRONT_ENDS[name]
        if part == "workbench":
            return _frame(WORKBENCH, f"http://webview.localhost:{port}/{name}/{state}/webview")
        if part == "webview":
            return _policy(WEBVIEW) + _frame(sandbox, "content")
        outputs = json.dumps([output[0 if state == "first" else -1] for output in self.outputs])
        script = SHOW.replace("OUTPUTS", outputs.replace("<", "\\u003c"))
        return f"{_policy(policy)}<body><script>{script}</script>"


def _frame(sandbox: str, source: str) -> str:
    return f'<!doctype html><iframe sandbox="{sandbox}" src="{source}" style="width:1000px;height:700px"></iframe>'


def _policy(text: str) -> str:
    return f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{text}">' if text else "<!doctype html>"


@pytest.fixture
def notebook(own_home: Any, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    made = Notebook()
    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    ipython.display = ModuleType("IPython.display")
    ipython.display.HTML, ipython.display.display = str, made.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return made


@pytest.fixture
def editor(notebook: Notebook) -> Iterator[str]:
    """The address of the front ends."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.count("/") == 3
            self.send_response(200 if found else 404)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(notebook.page(self.path, server.server_port).encode() if found else b"")

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://editor.localhost:{server.server_port}"
        server.shutdown()


def test_front_ends_show_the_page_where_they_may_and_the_table_always(notebook: Notebook, editor: str) -> None:
    results = counting("mine").fit()
    assert len(notebook.outputs) == 2, "the page, and one table that is updated"
    assert "?code=" in notebook.outputs[1][0]
    assert "code=" not in notebook.outputs[1][-1], "what is saved opens nothing"
    with browser() as opened:
        page = opened.new_page()
        page.set_default_timeout(SECONDS * 1000)
        outputs = page.frame_locator("iframe").frame_locator("iframe")
        frame = outputs.locator("iframe[title='mine in Hopfleet']")
        for name in ("opaque", "vscode-strict"):
            page.goto(f"{editor}/{name}/first/workbench")
            outputs.locator("pre", has_text="watch it on http://127.0.0.1:").wait_for()
            address = outputs.locator("pre a").get_attribute("href")
            assert "t0003" not in outputs.locator("pre").inner_text()
            page.goto(f"{editor}/{name}/last/workbench")
            outputs.locator("pre", has_text="t0003").wait_for()
            assert frame.bounding_box()["height"] == 0, "no empty frame above it"
            page.goto(address)
            page.locator(".board tbody tr").first.wait_for()
        page.goto(f"{editor}/vscode/last/workbench")
        outputs.locator("pre", has_text="t0003").wait_for()
        inside = frame.content_frame
        inside.locator(".board tbody tr").first.wait_for()
        assert frame.bounding_box()["height"] > 600
        inside.get_by_role("button", name="Extend…").click()
        inside.get_by_label("More trials").fill("1")
        inside.get_by_role("button", name="Extend", exact=True).click()
        inside.get_by_role("alert").filter(has_text="Refused: trials 1: a grid has one trial per point").wait_for()
        inside.get_by_label("More trials").fill("0")
        inside.get_by_label("More epochs for all trials").fill("1")
        inside.get_by_role("button", name="Extend", exact=True).click()
        inside.locator(".messages", has_text="queued for the next run").wait_for()
    assert [request.request for request in Control(results.folder).requests()] == ["extend"]
