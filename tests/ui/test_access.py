"""The gate of the server: tokens, origins, hosts, sizes and rates, asked as a browser or an attacker would."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from hopfleet.errors import UsageError
from hopfleet.ui.access import LARGEST_BODY, MOST_REQUESTS, Access, checked_token, is_loopback
from hopfleet.ui.application import Application
from hopfleet.ui.shelf import Shelf

TOKEN = "a-token-of-24-characters"
BASE = "http://127.0.0.1:9000"
COOKIE = {"cookie": f"hopfleet-9000={TOKEN}"}
SAME = {**COOKIE, "origin": BASE, "content-type": "application/json"}


def gate(**more: Any) -> Access:
    options = {"token": TOKEN, "host": "127.0.0.1", "port": 9000, "secure": False, **more}
    return Access(Application(Shelf()).routes(), **options)


def ask(method: str, path: str, *, gate: Access = gate(), **more: Any) -> httpx.Response:  # noqa: B008
    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=gate), base_url=BASE) as client:
            return await client.request(method, path, **more)

    return asyncio.run(send())


def post(path: str, headers: dict[str, str], gate: Access, content: str | bytes = "{}") -> httpx.Response:
    return ask("POST", path, gate=gate, headers=headers, content=content)


@pytest.mark.parametrize(
    "path", ["/", "/static/app.js", "/api/about", "/api/experiments", "/api/experiments/x/events", "/metrics"]
)
def test_nothing_is_answered_without_the_token(path: str) -> None:
    for headers in ({}, {"cookie": "hopfleet-9000=wrong"}, {"authorization": "Bearer wrong"}, {"cookie": "a=;b==;;,"}):
        answer = ask("GET", path, headers=headers)
        assert answer.status_code == 401
        assert "hopfleet ui printed" in answer.json()["error"]
    assert ask("GET", "/api/about", params={"token": TOKEN}).status_code == 401, "only a page takes it from the address"


def test_a_token_in_the_address_becomes_a_cookie_that_scripts_cannot_read() -> None:
    answer = ask("GET", "/", params={"token": TOKEN})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"hopfleet-9000={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "set-cookie" not in ask("GET", "/", headers=COOKIE).headers
    assert "Secure" in ask("GET", "/", params={"token": TOKEN}, gate=gate(secure=True)).headers["set-cookie"]


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/about", "/api/nothing", "/api/experiments/none"])
def test_every_answer_forbids_foreign_and_inline_scripts(path: str) -> None:
    for headers in (COOKIE, {}):
        policy = ask("GET", path, headers=headers).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


def test_the_page_has_no_inline_script_or_style() -> None:
    text = ask("GET", "/", headers=COOKIE).text
    assert "<style" not in text
    assert "<script>" not in text
    assert " on" not in text.split("<body>")[1].replace(" only", "")


@pytest.mark.parametrize(
    "headers",
    [
        {**SAME, "origin": "http://evil.example"},
        {**SAME, "origin": "null"},
        {**SAME, "origin": "https://127.0.0.1:9000"},
        {**SAME, "sec-fetch-site": "cross-site"},
        {**SAME, "sec-fetch-site": "same-site"},
        {name: value for name, value in SAME.items() if name != "origin"},
    ],
    ids=["foreign", "null", "scheme", "cross-site", "same-site", "none"],
)
def test_requests_of_other_sites_are_refused(headers: dict[str, str]) -> None:
    answer = post("/api/experiments/x/requests", headers, gate())
    assert answer.status_code == 403
    if headers.get("sec-fetch-site"):
        assert ask("GET", "/api/experiments", headers=headers).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9000", "127.0.0.1.evil.example", ""])
def test_names_that_are_not_this_machine_are_refused(host: str) -> None:
    assert ask("GET", "/api/about", headers={**COOKIE, "host": host}).status_code == 421


def test_another_host_answers_under_any_name_and_still_needs_the_token() -> None:
    public = gate(host="0.0.0.0")
    assert ask("GET", "/api/about", gate=public, headers={**COOKIE, "host": "cluster:9000"}).status_code == 200
    assert ask("GET", "/api/about", gate=public, headers={"host": "cluster:9000"}).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/%2e%2e/errors.py",
        "/static/vendor/../../board.py",
        "/static//etc/passwd",
        "/../../../etc/passwd",
        "/api/experiments/..%2f..%2fetc",
        "/api/experiments/../../etc/passwd",
        "/api/experiments/%2e%2e/trials/t0001",
        "/static/style.css%00.js",
    ],
)
def test_no_path_leads_out(path: str) -> None:
    answer = ask("GET", path, headers=COOKIE)
    assert answer.status_code in (400, 404)
    assert "root:" not in answer.text
    assert "import" not in answer.text


def test_trials_and_charts_that_do_not_exist_are_named(own_home: Path) -> None:
    base = "/api/experiments/none"
    for path in (base, f"{base}/trials/t0001", f"{base}/epochs?metric=x", f"{base}/charts/curves", f"{base}/requests"):
        answer = ask("GET", path, headers=COOKIE)
        assert answer.status_code == 404
        assert "'none': no such experiment here" in answer.json()["error"]


def test_oversized_and_malformed_requests_are_refused(own_home: Path) -> None:
    path = "/api/experiments/x/requests"
    assert post(path, SAME, gate(), b"x" * (LARGEST_BODY + 1)).status_code == 413
    for body in (
        b"",
        b"{",
        b"[]",
        b"null",
        b'"a"',
        b"\xff\xfe",
        b"[" * 5000,
        b'{"request": "explode"}',
        b'{"request": []}',
        b'{"request": "stop", "arguments": {"shell": 1}}',
        b'{"request": "add", "arguments": {"config": %s1%s}}' % (b'{"a":' * 900, b"}" * 900),
        b'{"request": "prioritise", "arguments": {"trial": "t0001", "level": %s}}' % (b"9" * 3000),
        b'{"request": "extend", "arguments": {"space": %s1%s}}' % (b'{"a":' * 450, b"}" * 450),
    ):
        answer = post(path, SAME, gate(), body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]
    assert post(path, {**SAME, "content-type": "text/plain"}, gate()).status_code == 415
    assert ask("GET", f"/api/about?{'a' * 9000}", headers=COOKIE).status_code == 414
    assert ask("GET", "/api/experiments/x/events?after=-1", headers=COOKIE).status_code == 400
    assert ask("DELETE", "/api/about", headers=SAME).status_code == 405


def test_a_body_that_lies_about_its_length_is_cut() -> None:
    async def chunks() -> Any:
        for _ in range(10):
            yield b" " * (LARGEST_BODY // 4)

    answer = ask("POST", "/api/experiments/x/requests", gate=gate(), headers=SAME, content=chunks())
    assert answer.status_code == 400


def test_a_read_only_server_steers_nothing() -> None:
    answer = post("/api/experiments/x/requests", SAME, gate(read_only=True))
    assert answer.status_code == 403
    assert "--read-only" in answer.json()["error"]


def test_many_requests_in_a_short_time_are_refused() -> None:
    door = gate()
    found = [post("/api/experiments/x/requests", SAME, door).status_code for _ in range(MOST_REQUESTS + 5)]
    assert found == [400] * MOST_REQUESTS + [429] * 5
    assert "retry-after" in post("/api/experiments/x/requests", SAME, door).headers


def test_tokens_that_can_be_guessed_are_refused() -> None:
    assert len(checked_token(None)) >= 32
    assert checked_token(None) != checked_token(None)
    for token in ("", "short", "fifteen-letters"):
        with pytest.raises(UsageError, match="must have at least 16"):
            checked_token(token)
    with pytest.raises(UsageError, match="letters, digits"):
        checked_token("sixteen letters; and a space")


def test_loopback_is_told_from_other_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "")))


def test_a_port_for_metrics_has_nothing_else_and_needs_no_token() -> None:
    guarded = gate(metrics_port=9001)

    def there(method: str, path: str, **headers: str) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=guarded)
            base = "http://127.0.0.1:9001"
            async with httpx.AsyncClient(transport=transport, base_url=base) as client:
                return await client.request(method, path, headers=headers)

        return asyncio.run(send())

    answer = there("GET", "/metrics")
    assert answer.status_code == 200
    assert "# TYPE hopfleet_units_total counter" in answer.text
    for method, path in (("GET", "/"), ("GET", "/api/experiments"), ("POST", "/metrics"), ("GET", "/metrics/")):
        assert there(method, path).status_code == 404
    assert there("GET", "/metrics", host="evil.example:9001").status_code == 421
    assert ask("GET", "/metrics", gate=guarded).status_code == 401, "the other port still needs the token"


def test_only_who_knows_the_token_may_frame_the_page_and_needs_no_cookie() -> None:
    for plain in (ask("GET", "/", headers=COOKIE), ask("GET", "/", params={"token": TOKEN})):
        assert plain.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in plain.headers["content-security-policy"]
    framed = ask("GET", f"/{TOKEN}/", headers={"sec-fetch-site": "cross-site"})
    assert framed.status_code == 200
    assert "x-frame-options" not in framed.headers and "set-cookie" not in framed.headers
    assert "frame-ancestors" not in framed.headers["content-security-policy"]
    assert "script-src 'self'" in framed.headers["content-security-policy"]
    for path, status in (("static/app.js", 200), ("api/about", 200), ("nothing", 404), (f"{TOKEN}/", 404)):
        assert ask("GET", f"/{TOKEN}/{path}").status_code == status
    for path in (f"/{TOKEN}", f"/{TOKEN[:-1]}/", f"/{TOKEN}x/api/about", f"//{TOKEN}/", f"/x/{TOKEN}/"):
        assert ask("GET", path).status_code == 401


def test_requests_of_other_sites_are_refused_under_the_address_of_a_frame_too() -> None:
    path = f"/{TOKEN}/api/experiments/x/requests"
    own = {"origin": BASE, "content-type": "application/json"}
    assert post(path, own, gate()).status_code == 400, "what it asks for is looked at"
    for origin in ("null", "http://evil.example", "http://127.0.0.1:9001"):
        assert post(path, {**own, "origin": origin}, gate()).status_code == 403
    assert post(path, {"content-type": "application/json"}, gate()).status_code == 403
    assert ask("GET", f"/{TOKEN}/api/about", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert post(path, own, gate(read_only=True)).status_code == 403
