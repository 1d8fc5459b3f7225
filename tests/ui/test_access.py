"""The gate of the server: sessions, origins, hosts, sizes and rates, asked as a browser or an attacker would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from hopfleet.errors import UsageError
from hopfleet.runs.control import Control
from hopfleet.ui.access import LARGEST_BODY, MOST_CODES, MOST_REQUESTS, Access, is_loopback
from hopfleet.ui.application import Application
from hopfleet.ui.secrets import CODE_SECONDS, Codes, Sessions, checked_token
from hopfleet.ui.shelf import Shelf
from tests.helpers.cli import fitted

TOKEN = "a-token-of-24-characters"
BASE = "http://127.0.0.1:9000"
COOKIE, KEY, FRAMED = Sessions(9000, TOKEN).begin()
OPENED = {"cookie": f"hopfleet-9000={COOKIE}", "x-hopfleet-page": KEY}
OWN = {"origin": BASE, "content-type": "application/json"}
SAME = {**OPENED, **OWN}


def gate(**more: Any) -> Access:
    options: dict[str, Any] = {"host": "127.0.0.1", "port": 9000, "secure": False, "codes": Codes(), **more}
    options.setdefault("sessions", Sessions(options["port"], TOKEN))
    return Access(options.pop("app", None) or Application(Shelf()).routes(), **options)


def ask(method: str, path: str, *, gate: Access = gate(), **more: Any) -> httpx.Response:  # noqa: B008
    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=gate), base_url=BASE) as client:
            return await client.request(method, path, **more)

    return asyncio.run(send())


def post(path: str, headers: Mapping[str, str | bytes], gate: Access, content: str | bytes = "{}") -> httpx.Response:
    return ask("POST", path, gate=gate, headers=headers, content=content)


STRANGERS = {
    "nothing": {},
    "a wrong cookie": {"cookie": "hopfleet-9000=wrong", "x-hopfleet-page": KEY},
    "a wrong key": {**OPENED, "x-hopfleet-page": "wrong"},
    "a cookie alone": {"cookie": f"hopfleet-9000={COOKIE}"},
    "a cookie as both": {"cookie": f"hopfleet-9000={COOKIE}", "x-hopfleet-page": COOKIE},
    "a key alone": {"x-hopfleet-page": KEY},
    "an empty cookie": {"cookie": "hopfleet-9000=", "x-hopfleet-page": KEY},
    "no name": {"cookie": "a=;b==;;,", "x-hopfleet-page": KEY},
    "the token as a cookie": {"cookie": f"hopfleet-9000={TOKEN}", "x-hopfleet-page": TOKEN},
    "halves of two sessions": {**OPENED, "x-hopfleet-page": Sessions(9000, TOKEN).begin()[1]},
    "another port": {
        "cookie": f"hopfleet-9000={(other := Sessions(9001, TOKEN).begin())[0]}",
        "x-hopfleet-page": other[1],
    },
    "another server": {"cookie": f"hopfleet-9000={(last := Sessions(9000).begin())[0]}", "x-hopfleet-page": last[1]},
    "a key in a frame": {"x-hopfleet-frame": f"{COOKIE}.{KEY}"},
    "a frame of another port": {"x-hopfleet-frame": other[2]},
    "an empty frame": {"x-hopfleet-frame": ""},
    "a frame without a proof": {"x-hopfleet-frame": COOKIE},
    "a wrong token": {"authorization": "Bearer wrong"},
    "no token": {"authorization": "Bearer "},
    "a code as a token": {"authorization": f"Bearer {Codes().issue()}"},
    "letters beyond ASCII": {"cookie": "hopfleet-9000=\xfc", "x-hopfleet-page": "\xfc"},
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers_see_the_files_of_the_page_and_nothing_else(stranger: str) -> None:
    headers = {name: value.encode("latin-1") for name, value in STRANGERS[stranger].items()}
    for path in ("/api/about", "/api/experiments", "/api/experiments/x/events", "/metrics", "/x", "/frame/", "/api"):
        answer = ask("GET", path, headers=headers)
        assert answer.status_code == 401, path
        assert "no session" in answer.json()["error"]
        assert "set-cookie" not in answer.headers
    assert post("/api/experiments/x/requests", {**OWN, **headers}, gate()).status_code == 401
    for path in ("/", "/frame", "/static/app.js"):
        assert ask("GET", path, headers=headers).status_code == 200
    for address in (f"/api/about?token={TOKEN}", f"/api/about?code={Codes().issue()}", f"/{TOKEN}/api/about"):
        assert ask("GET", address, headers=headers).status_code == 401, "no address opens anything"


def test_a_session_a_frame_and_the_token_open_the_server() -> None:
    for headers in (OPENED, {"x-hopfleet-frame": FRAMED}, {"authorization": f"Bearer {TOKEN}"}):
        assert ask("GET", "/api/about", headers=headers).status_code == 200
    unnamed = gate(sessions=Sessions(9000))
    for token in (TOKEN, "", "None"):
        assert ask("GET", "/api/about", gate=unnamed, headers={"authorization": f"Bearer {token}"}).status_code == 401


def exchange(door: Access, code: str, **more: Any) -> httpx.Response:
    return ask("POST", "/api/session", gate=door, headers=OWN, json={"code": code, **more})


def test_a_code_becomes_a_session_once() -> None:
    codes = Codes()
    door = gate(codes=codes)
    code = codes.issue()
    answer = exchange(door, code)
    assert answer.status_code == 200
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert cookie.startswith("hopfleet-9000=")
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert not any(secret in answer.headers["set-cookie"] + answer.text for secret in (TOKEN, code, codes.key))
    assert answer.json()["key"] not in cookie
    opened = {"cookie": cookie, "x-hopfleet-page": answer.json()["key"]}
    assert ask("GET", "/api/about", gate=door, headers=opened).status_code == 200
    again = exchange(door, code)
    assert again.status_code == 401 and "set-cookie" not in again.headers
    assert "used already" in again.json()["error"]
    secure = gate(codes=codes, secure=True)
    there = ask(
        "POST",
        "/api/session",
        gate=secure,
        headers={**OWN, "origin": "https://127.0.0.1:9000"},
        json={"code": codes.issue()},
    )
    assert "; Secure" in there.headers["set-cookie"]


def test_a_frame_has_a_session_without_a_cookie() -> None:
    codes = Codes()
    door = gate(codes=codes)
    answer = exchange(door, codes.issue(), frame=True)
    assert "set-cookie" not in answer.headers
    headers = {"x-hopfleet-frame": answer.json()["key"]}
    assert ask("GET", "/api/about", gate=door, headers=headers).status_code == 200


def test_codes_expire_and_cannot_be_made_up() -> None:
    now = [1000.0]
    codes = Codes(clock=lambda: now[0])
    code, other = codes.issue(), codes.issue()
    assert code != other
    now[0] += CODE_SECONDS - 1
    assert codes.redeem(code)
    assert not codes.redeem(code)
    now[0] += 2
    assert not codes.redeem(other), "it is too old"
    assert not codes.redeem(code) and codes._used == {}, "used codes are forgotten when they expire"
    fresh = codes.issue()
    turned = fresh[:-1] + ("A" if fresh[-1] != "A" else "B")
    for wrong in ("", "x", turned, fresh[1:], f"{fresh}A", f"{fresh}==", "\xfc" * 46, Codes().issue(), fresh[:-22]):
        assert not codes.redeem(wrong), wrong
    assert Codes(codes.key, clock=lambda: now[0]).redeem(fresh), "who has the key makes codes"


def test_codes_are_exchanged_by_pages_of_the_server_alone_and_cannot_be_tried_often() -> None:
    codes = Codes()
    door = gate(codes=codes)
    for headers in (
        {**OWN, "origin": "http://evil.example"},
        {**OWN, "origin": "http://127.0.0.1:9001"},
        {**OWN, "origin": "null"},
        {**OWN, "sec-fetch-site": "same-site"},
        {"content-type": "application/json"},
    ):
        assert ask("POST", "/api/session", gate=door, headers=headers, json={"code": codes.issue()}).status_code == 403
    plain = {**OWN, "content-type": "text/plain"}
    assert post("/api/session", plain, door, "{}").status_code == 415
    for body in ("", "[]", "{}", "null", "[" * 5000, '{"code": '):
        assert post("/api/session", OWN, gate(), body).status_code == 400
    found = [exchange(door, f"wrong{number}").status_code for number in range(MOST_CODES + 2)]
    assert found == [401] * MOST_CODES + [429] * 2
    assert ask("GET", "/api/about", gate=door, headers=OPENED).status_code == 200, "others are not disturbed"
    assert post("/api/experiments/x/requests", SAME, door).status_code == 400


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/about", "/api/nothing", "/api/experiments/none"])
def test_every_answer_forbids_foreign_and_inline_scripts(path: str) -> None:
    for headers in (OPENED, {}):
        policy = ask("GET", path, headers=headers).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


def test_no_header_tells_other_sites_where_a_reader_came_from() -> None:
    for path in ("/", "/frame", "/api/about"):
        assert ask("GET", path, headers=OPENED).headers["referrer-policy"] == "no-referrer"


def test_the_page_has_no_inline_script_or_style() -> None:
    text = ask("GET", "/", headers=OPENED).text
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
    assert ask("GET", "/api/about", headers={**OPENED, "host": host}).status_code == 421


def test_another_host_answers_under_any_name_and_still_needs_a_session() -> None:
    public = gate(host="0.0.0.0")
    assert ask("GET", "/api/about", gate=public, headers={**OPENED, "host": "cluster:9000"}).status_code == 200
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
    answer = ask("GET", path, headers=OPENED)
    assert answer.status_code in (400, 404)
    assert "root:" not in answer.text
    assert "import" not in answer.text


def test_trials_and_charts_that_do_not_exist_are_named(own_home: Path) -> None:
    base = "/api/experiments/none"
    for path in (base, f"{base}/trials/t0001", f"{base}/epochs?metric=x", f"{base}/charts/curves", f"{base}/requests"):
        answer = ask("GET", path, headers=OPENED)
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
    assert ask("GET", f"/api/about?{'a' * 9000}", headers=OPENED).status_code == 414
    assert ask("GET", "/api/experiments/x/events?after=-1", headers=OPENED).status_code == 400
    assert ask("DELETE", "/api/about", headers=SAME).status_code == 405


def test_a_body_that_lies_about_its_length_is_cut() -> None:
    taken = 0

    async def chunks() -> Any:
        nonlocal taken
        while taken < 100:
            taken += 1
            yield b" " * (LARGEST_BODY // 4)

    answer = ask("POST", "/api/experiments/x/requests", gate=gate(), headers=SAME, content=chunks())
    assert answer.status_code == 400 and taken < 10


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
    assert checked_token(None) is None
    assert checked_token(TOKEN) == TOKEN
    for token in ("", "short", "fifteen-letters"):
        with pytest.raises(UsageError, match="must have at least 16"):
            checked_token(token)
    with pytest.raises(UsageError, match="letters, digits"):
        checked_token("sixteen letters; and a space")


def test_loopback_is_told_from_other_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "")))


def test_a_port_for_metrics_has_nothing_else_and_needs_no_session() -> None:
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
    assert ask("GET", "/metrics", gate=guarded).status_code == 401, "the other port still needs a session"


def test_other_sites_may_frame_one_address_where_cookies_do_not_count() -> None:
    plain = ask("GET", "/", headers=OPENED)
    assert plain.headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in plain.headers["content-security-policy"]
    framed = ask("GET", "/frame", headers={"sec-fetch-site": "cross-site"})
    assert framed.status_code == 200
    assert "x-frame-options" not in framed.headers
    assert "frame-ancestors" not in framed.headers["content-security-policy"]
    assert "script-src 'self'" in framed.headers["content-security-policy"]


def test_requests_of_other_sites_are_refused_in_frames_too() -> None:
    path, framed = "/api/experiments/x/requests", {"x-hopfleet-frame": FRAMED, **OWN}
    assert post(path, framed, gate()).status_code == 400, "what it asks for is looked at"
    for origin in ("null", "http://evil.example", "http://127.0.0.1:9001"):
        assert post(path, {**framed, "origin": origin}, gate()).status_code == 403
    there = {"sec-fetch-site": "cross-site", "x-hopfleet-frame": FRAMED}
    assert ask("GET", "/api/about", headers=there).status_code == 403
    assert post(path, framed, gate(read_only=True)).status_code == 403


def test_a_request_that_comes_twice_is_made_once(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A double click, or a browser that sends a request again."""
    asked: list[dict[str, Any]] = []

    def pause(self: Control) -> str:
        asked.append({})
        if len(asked) > 2:
            raise UsageError("refused")
        return f"answer {len(asked)}"

    monkeypatch.setattr(Control, "pause", pause)
    fitted("mine")
    application = Application(Shelf())
    door = gate(app=application.routes())

    async def send(*ids: str | None) -> list[Any]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=door), base_url=BASE) as client:
            path, more = "/api/experiments/mine/requests", [{} if each is None else {"id": each} for each in ids]
            sent = [client.post(path, headers=SAME, json={"request": "pause", **each}) for each in more]
            return [answer.json() for answer in await asyncio.gather(*sent)]

    first, second = asyncio.run(send("a", "a"))
    assert first == second == {"granted": True, "text": "answer 1"}
    assert asyncio.run(send("b"))[0]["text"] == "answer 2"
    assert not any(each["granted"] for each in asyncio.run(send("c", "c"))) and len(asked) == 3
    asyncio.run(send(None, None))
    assert len(asked) == 5, "without an id, each request counts"
    assert [each["error"][:3] for each in asyncio.run(send("", "x" * 65))] == ["id:", "id:"]
