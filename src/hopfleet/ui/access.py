"""Who may use the server, and how: the token, the checks of every request, and the headers of every answer.

A page of another site can make a browser send requests here, but it can neither read the token nor set the ``Origin``
of a request. So every request needs the token, in a cookie that browsers do not send for other sites, and a request
that changes something must come from a page of this server. A notebook shows the page in a frame, where browsers keep
no such cookie: there every path begins with the token, ``/TOKEN/...``, and no other page can know the address.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import time as clocks
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from hopfleet.errors import UsageError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SHORTEST_TOKEN = 16
"""Characters of the shortest token that is accepted."""

LARGEST_BODY = 64 * 1024
"""Bytes of the largest body of a request."""

LONGEST_TARGET = 8 * 1024
"""Bytes of the longest path with its query."""

MOST_REQUESTS, WINDOW_SECONDS = 30, 10.0
"""Requests that change something, and the seconds in which no more of them are accepted."""

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
"""Headers of answers under ``/TOKEN/``: a page that knows that address may show it in a frame."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def checked_token(token: str | None) -> str:
    """Return a token, a random one by default. Raise UsageError for one that can be guessed or cannot be sent."""
    if token is None:
        return secrets.token_urlsafe(24)
    if len(token) < SHORTEST_TOKEN:
        raise UsageError(
            f"token: has {len(token)} characters, must have at least {SHORTEST_TOKEN}; without one, a token is made"
        )
    if not all(character.isascii() and (character.isalnum() or character in "-_.~") for character in token):
        raise UsageError("token: must consist of letters, digits and the characters - _ . ~")
    return token


@dataclass
class Refusal(Exception):
    """A request that is not answered, with the status and the reason."""

    status: int
    reason: str
    headers: dict[str, str] = field(default_factory=dict)


class Access:
    """The gate before the application: refuses what it must, and adds the headers to every answer."""

    def __init__(
        self,
        app: App,
        *,
        token: str,
        host: str,
        port: int,
        secure: bool,
        read_only: bool = False,
        metrics_port: int | None = None,
    ) -> None:
        self._app = app
        self._metrics_port = metrics_port
        self._token = token
        self._secure = secure
        self._read_only = read_only
        self._loopback = is_loopback(host)
        self.cookie = f"hopfleet-{port}"
        self._changes: deque[float] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        first, slash, rest = scope["path"].removeprefix("/").partition("/")
        framed = bool(slash) and self._matches(first)
        if framed:
            scope = {**scope, "path": f"/{rest}"}
        more = dict(FRAMED_HEADERS if framed else HEADERS)

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", []))
                known = {name for name, _ in given}
                extra = [(n.encode(), v.encode("latin-1")) for n, v in more.items() if n.encode() not in known]
                message = {**message, "headers": [*given, *extra]}
            await send(message)

        try:
            if self._check(scope, headers, framed):
                more["set-cookie"] = self._cookie()
        except Refusal as refusal:
            await _refuse(answer, refusal)
            return
        await self._app(scope, _limited(receive), answer)

    def _check(self, scope: Scope, headers: dict[str, str], framed: bool) -> bool:
        """Raise Refusal for a request that must not be answered; return whether to set the cookie."""
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_TARGET:
            raise Refusal(414, "the address is too long")
        name = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
        if self._loopback and not is_loopback(name):
            raise Refusal(421, "this server answers under the name of this machine only")
        if self._metrics_port is not None and (scope.get("server") or ("", None))[1] == self._metrics_port:
            if scope["method"] != "GET" or scope["path"] != "/metrics":
                raise Refusal(404, "this port has nothing but /metrics")
            return False
        changes = scope["method"] not in ("GET", "HEAD")
        if changes or scope["path"].startswith("/api/"):
            self._check_origin(headers, changes)
        fresh = not framed and self._authorise(scope, headers)
        if changes:
            self._check_change(headers)
        return fresh

    def _authorise(self, scope: Scope, headers: dict[str, str]) -> bool:
        """Return whether the token came in the address of a page, so that a cookie should replace it."""
        query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=50)
        if scope["path"] == "/" and self._matches(query.get("token", [""])[-1]):
            return True
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._matches(bearer.strip()):
            return False
        if self._matches(self._cookie_of(headers)):
            return False
        raise Refusal(
            401,
            "this page needs its token; open the address that hopfleet ui printed, which ends in ?token=...",
            {"www-authenticate": "Bearer"},
        )

    def _matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _cookie_of(self, headers: dict[str, str]) -> str:
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return ""
        return cookies[self.cookie].value if self.cookie in cookies else ""

    def _cookie(self) -> str:
        secure = "; Secure" if self._secure else ""
        return f"{self.cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict{secure}"

    def _check_origin(self, headers: dict[str, str], changes: bool) -> None:
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Refusal(403, "requests from other sites are refused")
        scheme = "https" if self._secure else "http"
        origin = headers.get("origin")
        if origin is not None and origin != f"{scheme}://{headers.get('host', '')}":
            raise Refusal(403, "requests from other sites are refused")
        if changes and origin is None and "authorization" not in headers:
            raise Refusal(403, "a request that changes something must name its origin")

    def _check_change(self, headers: dict[str, str]) -> None:
        if self._read_only:
            raise Refusal(403, "this server is read-only; start hopfleet ui without --read-only to steer")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Refusal(415, "the body of a request must be JSON")
        if int(headers.get("content-length", "0") or 0) > LARGEST_BODY:
            raise Refusal(413, f"the body of a request has at most {LARGEST_BODY} bytes")
        now = clocks.monotonic()
        while self._changes and now - self._changes[0] > WINDOW_SECONDS:
            self._changes.popleft()
        if len(self._changes) >= MOST_REQUESTS:
            wait = f"{WINDOW_SECONDS:.0f}"
            raise Refusal(429, "too many requests; try again in a few seconds", {"retry-after": wait})
        self._changes.append(now)


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


async def _refuse(send: Send, refusal: Refusal) -> None:
    body = json.dumps({"error": refusal.reason}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    listed = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
