"""The secrets of a server: codes that open it once, the sessions they are exchanged for, and a token for programs.

An address has a code, which works once and for a few minutes, so an address in a log, a notebook or a browser's history
opens nothing. A page exchanges the code for a session. Browsers send a cookie to all ports of a host, other users'
included, so a session has two halves: a cookie that scripts cannot read, and a key that the page keeps in the storage
of its own origin, to which the port belongs. Neither half is of use without the other. A page in a frame of another
site has no cookie, and keeps a whole session in the storage of its tab.

Sessions are not stored: a half proves itself by a hash with the server's key. So they last as long as that key does: as
long as the server, or as the token where one is given.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time as clocks
from collections.abc import Callable

from hopfleet.errors import UsageError

SHORTEST_TOKEN = 16
"""Characters of the shortest token that is accepted."""

CODE_SECONDS, FRAME_SECONDS = 600.0, 60.0
"""Seconds for which the code in an address works, and the code in the output of a notebook."""

_NONCE, _TIME, _PROOF = 12, 6, 16
"""Bytes of the parts of a code."""


def checked_token(token: str | None) -> str | None:
    """Return a token, if there is one. Raise UsageError for one that can be guessed or cannot be sent."""
    if token is None:
        return None
    if len(token) < SHORTEST_TOKEN:
        raise UsageError(f"token: has {len(token)} characters, must have at least {SHORTEST_TOKEN}")
    if not all(character.isascii() and (character.isalnum() or character in "-_.~") for character in token):
        raise UsageError("token: must consist of letters, digits and the characters - _ . ~")
    return token


class Codes:
    """Codes that work once. A process that knows the key can make them, and so open the server that it started."""

    def __init__(self, key: str | None = None, clock: Callable[[], float] = clocks.time) -> None:
        self.key = key or secrets.token_hex(32)
        self._clock = clock
        self._used: dict[bytes, float] = {}  #: codes that were redeemed, until they would have expired

    def issue(self, seconds: float = CODE_SECONDS) -> str:
        """Return a new code."""
        content = secrets.token_bytes(_NONCE) + int(self._clock() + seconds).to_bytes(_TIME, "big")
        return _text(content + _hash(self.key, b"code", content)[:_PROOF])

    def redeem(self, code: str) -> bool:
        """Return whether a code works. It does so once, before it has expired."""
        now = self._clock()
        self._used = {used: until for used, until in self._used.items() if until > now}
        given = _bytes(code)
        content, proof = given[: _NONCE + _TIME], given[_NONCE + _TIME :]
        if not hmac.compare_digest(proof, _hash(self.key, b"code", content)[:_PROOF]):
            return False
        until = int.from_bytes(content[_NONCE:], "big")
        if until <= now or content in self._used:
            return False
        self._used[content] = until
        return True


class Sessions:
    """The sessions of the server at one port."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self._token = token
        self._key = token or secrets.token_hex(32)
        self._port = port

    def begin(self) -> tuple[str, str, str]:
        """Return a cookie, the key that belongs to it, and a session without a cookie, for a frame."""
        name = secrets.token_urlsafe(16)
        return name, self._proof("page", name), f"{name}.{self._proof('frame', name)}"

    def admits(self, cookie: str, key: str) -> bool:
        """Whether a cookie and a key belong together."""
        return bool(cookie) and hmac.compare_digest(key.encode(), self._proof("page", cookie).encode())

    def admits_frame(self, session: str) -> bool:
        """Whether a session of a page in a frame is one of this server's."""
        name, _, proof = session.partition(".")
        return bool(name) and hmac.compare_digest(proof.encode(), self._proof("frame", name).encode())

    def knows(self, token: str) -> bool:
        """Whether this is the token that was given."""
        return self._token is not None and hmac.compare_digest(token.encode(), self._token.encode())

    def _proof(self, kind: str, name: str) -> str:
        return _text(_hash(self._key, f"{kind} {self._port}".encode(), name.encode()))


def _hash(key: str, kind: bytes, content: bytes) -> bytes:
    return hmac.digest(hashlib.sha256(key.encode()).digest(), kind + b" " + content, "sha256")


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    """Return the bytes of a text; none if the text is not what ``_text`` writes."""
    try:
        content = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except ValueError:
        return b""
    return content if _text(content) == text else b""
