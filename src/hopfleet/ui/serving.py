"""The part of the server that is built on uvicorn."""

from __future__ import annotations

import socket
from pathlib import Path

from hopfleet.errors import MissingExtra
from hopfleet.ui.access import App
from hopfleet.ui.application import Application

try:
    import uvicorn
except ImportError as error:
    raise MissingExtra("uvicorn", "ui") from error


def configuration(app: App, certificate: Path | None, key: Path | None) -> uvicorn.Config:
    """Return the settings of the server: no log of addresses, which may contain a token, and small headers only."""
    return uvicorn.Config(
        app,
        access_log=False,
        log_level="error",
        server_header=False,
        timeout_graceful_shutdown=2,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        h11_max_incomplete_event_size=32 * 1024,
        http="h11",
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
