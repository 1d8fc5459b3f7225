"""Who may use the server, and how: the checks of every request, and the headers of every answer.

Without a session, the server answers with the files of the page and nothing else; a page exchanges the code of its
address for a session (``ui.secrets``). A page of another site can make a browser send requests here, but it has no key,
and it cannot set the ``Origin`` of a request: a request that changes something must come from a page of this server.
Other sites may show the page in a frame, as notebooks do, at ``/frame`` alone, where cookies do not count.
"""

from __future__ import annotations

import ipaddress
import json
import time as clocks
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any

from hopfleet.ui.secrets import Codes, Sessions

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_BODY = 64 * 1024
"""Bytes of the largest body of a request."""

LONGEST_TARGET = 8 * 1024
"""Bytes of the longest path with its query."""

MOST_REQUESTS, MOST_CODES, WINDOW_SECONDS = 30, 10, 10.0
"""Requests that change something, codes that are tried, and the seconds in which no more of each are accepted."""

PAGE_KEY, FRAME_KEY = "x-hopfleet-page", "x-hopfleet-frame"
"""Headers with the key that belongs to the cookie, and with the session of a page in a frame."""

SESSION, FRAME = "/api/session", "/frame"
"""Where a code is exchanged for a session, and where the page can be shown in a frame."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every answer. Scripts and styles come from this server's files alone."""


FRAMED_HEADERS = {
    name: value.removesuffix("; frame-ancestors 'none'") for name, value in HEADERS.items() if name != "x-frame-options"
}
"""Headers of the page that other sites may show in a frame."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass
class Refusal(Exception):
    """A request that is not answered, with the status and the reason."""

    status: int
    reason: str
    headers: dict[str, str] = field(default_factory=dict)


class Window:
    """A limit of how often something happens."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: deque[float] = deque()

    def enter(self) -> None:
        """Count once more. Raise Refusal if that is too often."""
        now = clocks.monotonic()
        while self._times and now - self._times[0] > WINDOW_SECONDS:
            self._times.popleft()
        if len(self._times) >= self._most:
            wait = f"{WINDOW_SECONDS:.0f}"
            raise Refusal(429, "too many requests; try again in a few seconds", {"retry-after": wait})
        self._times.append(now)


class Access:
    """The gate before the application: refuses what it must, and adds the headers to every answer."""

    def __init__(
        self,
        app: App,
        *,
        host: str,
        port: int,
        secure: bool,
        sessions: Sessions,
        codes: Codes,
        read_only: bool = False,
        metrics_port: int | None = None,
    ) -> None:
        self._app = app
        self._metrics_port = metrics_port
        self._sessions = sessions
        self._codes = codes
        self._secure = secure
        self._read_only = read_only
        self._loopback = is_loopback(host)
        self.cookie = f"hopfleet-{port}"
        self._changes, self._attempts = Window(MOST_REQUESTS), Window(MOST_CODES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        more = dict(FRAMED_HEADERS if scope["path"] == FRAME else HEADERS)

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", []))
                known = {name for name, _ in given}
                extra = [(n.encode(), v.encode("latin-1")) for n, v in more.items() if n.encode() not in known]
                message = {**message, "headers": [*given, *extra]}
            await send(message)

        try:
            self._check(scope, headers)
            if scope["path"] == SESSION and scope["method"] == "POST":
                await self._begin_session(await _body(_limited(receive)), answer)
                return
        except Refusal as refusal:
            await _refuse(answer, refusal)
            return
        await self._app(scope, _limited(receive), answer)

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        """Raise Refusal for a request that must not be answered."""
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_TARGET:
            raise Refusal(414, "the address is too long")
        name = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
        if self._loopback and not is_loopback(name):
            raise Refusal(421, "this server answers under the name of this machine only")
        path, changes = scope["path"], scope["method"] not in ("GET", "HEAD")
        if self._metrics_port is not None and (scope.get("server") or ("", None))[1] == self._metrics_port:
            if scope["method"] != "GET" or path != "/metrics":
                raise Refusal(404, "this port has nothing but /metrics")
            return
        if not changes and (path in ("/", FRAME) or path.startswith("/static/")):
            return
        self._check_origin(headers, changes)
        if path == SESSION and scope["method"] == "POST":
            self._check_body(headers)
            self._attempts.enter()
            return
        if not self._knows(headers):
            raise Refusal(401, "this page has no session; open it with a new address", {"www-authenticate": "Bearer"})
        if changes:
            if self._read_only:
                raise Refusal(403, "this server is read-only; start hopfleet ui without --read-only to steer")
            self._check_body(headers)
            self._changes.enter()

    def _knows(self, headers: dict[str, str]) -> bool:
        """Whether a request belongs to a session, or has the token."""
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._sessions.knows(bearer.strip())
        if FRAME_KEY in headers:
            return self._sessions.admits_frame(headers[FRAME_KEY])
        return self._sessions.admits(self._cookie_of(headers), headers.get(PAGE_KEY, ""))

    def _cookie_of(self, headers: dict[str, str]) -> str:
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return ""
        return cookies[self.cookie].value if self.cookie in cookies else ""

    async def _begin_session(self, body: bytes, send: Send) -> None:
        """Exchange a code, or the token, for a session."""
        try:
            given = json.loads(body)
            code, framed = str(given["code"]), bool(given.get("frame"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Refusal(400, "code: must be given, in JSON") from None
        if not (self._codes.redeem(code) or self._sessions.knows(code)):
            raise Refusal(401, "this code is wrong, too old or used already")
        cookie, key, session = self._sessions.begin()
        secure = "; Secure" if self._secure else ""
        value = f"{self.cookie}={cookie}; Path=/; HttpOnly; SameSite=Strict{secure}"
        headers = {"cache-control": "no-store"} | ({} if framed else {"set-cookie": value})
        await _answer(send, 200, {"key": session if framed else key}, headers)

    def _check_origin(self, headers: dict[str, str], changes: bool) -> None:
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Refusal(403, "requests from other sites are refused")
        scheme = "https" if self._secure else "http"
        origin = headers.get("origin")
        if origin is not None and origin != f"{scheme}://{headers.get('host', '')}":
            raise Refusal(403, "requests from other sites are refused")
        if changes and origin is None and "authorization" not in headers:
            raise Refusal(403, "a request that changes something must name its origin")

    def _check_body(self, headers: dict[str, str]) -> None:
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Refusal(415, "the body of a request must be JSON")
        length = headers.get("content-length", "0") or "0"
        if not length.isdigit() or int(length[:12]) > LARGEST_BODY:
            raise Refusal(413, f"the body of a request has at most {LARGEST_BODY} bytes")


def _limited(receive: Receive) -> Receive:
    """Return a ``receive`` that ends a body which is longer than it may be."""
    received = 0

    async def limited() -> MutableMapping[str, Any]:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > LARGEST_BODY:
            return {"type": "http.disconnect"}
        return message

    return limited


async def _body(receive: Receive) -> bytes:
    """Return the body of a request; what came of it, if the request breaks off."""
    found = bytearray()
    while True:
        message = await receive()
        found += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body"):
            return bytes(found)


async def _refuse(send: Send, refusal: Refusal) -> None:
    await _answer(send, refusal.status, {"error": refusal.reason}, refusal.headers)


async def _answer(send: Send, status: int, content: dict[str, str], more: dict[str, str]) -> None:
    body = json.dumps(content).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **more}
    listed = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
