"""The part of the server that is built on uvicorn, and the limits of connections that say little or nothing."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from hopfleet.errors import MissingExtra
from hopfleet.ui.access import App
from hopfleet.ui.application import Application

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingExtra("uvicorn", "ui") from error


REQUEST_SECONDS = 10.0
"""Seconds in which a request must be complete, however slowly it comes."""

CONNECTIONS = 256
"""Connections at the same time; beyond that, the one that has waited longest for a request is closed."""


class Connection(H11Protocol):
    """A connection that is closed unless a whole request comes in time."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._began = self.loop.time()
        self._expect()
        if len(self.connections) > CONNECTIONS:
            waiting = [each for each in self.connections if isinstance(each, Connection) and each.waits]
            min(waiting, key=lambda each: each._began).transport.abort()

    @property
    def waits(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._expect()
        else:
            self._relax()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def configuration(app: App, certificate: Path | None, key: Path | None) -> uvicorn.Config:
    """Return the settings of the server: no log of addresses, and small headers only."""
    return uvicorn.Config(
        app,
        access_log=False,
        log_level="error",
        server_header=False,
        timeout_graceful_shutdown=2,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        h11_max_incomplete_event_size=32 * 1024,
        http=Connection,
        ws="none",
        proxy_headers=False,
    )


class Server(uvicorn.Server):
    """A server that ends its live streams when it stops; they would go on for ever."""

    def __init__(self, config: uvicorn.Config, application: Application) -> None:
        super().__init__(config)
        self._application = application

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._application.end_streams()
        await super().shutdown(sockets)
