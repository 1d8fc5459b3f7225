"""The source of data sets and the destination of models: a folder behind plain HTTP, like an object store.

The server answers GET and PUT of whole files. It is for a closed network: it authenticates no client.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

BLOCK = 1 << 20


def serve(folder: Path, address: str, port: int) -> ThreadingHTTPServer:
    """Return a server of this folder; run it with ``serve_forever``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(send=False)

        def do_GET(self) -> None:
            self._answer(send=True)

        def do_PUT(self) -> None:
            path = self._path()
            if path is None:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            left = int(self.headers["Content-Length"])
            with path.open("wb") as file:
                while left and (block := self.rfile.read(min(BLOCK, left))):
                    file.write(block)
                    left -= len(block)
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing."""

        def _path(self) -> Path | None:
            path = (folder / self.path.lstrip("/")).resolve()
            if path.is_relative_to(folder.resolve()):
                return path
            self.send_error(403)
            return None

        def _answer(self, *, send: bool) -> None:
            path = self._path()
            if path is None:
                return
            if not path.is_file():
                self.send_error(404)
                return
            with path.open("rb") as file:
                self.send_response(200)
                self.send_header("Content-Length", str(path.stat().st_size))
                self.end_headers()
                if send:
                    self.wfile.flush()
                    self.connection.sendfile(file)

    return ThreadingHTTPServer((address, port), Handler)


def fetch(url: str, target: Path) -> None:
    """Copy a file of the source to a local one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with _connected(url) as connection:
        connection.request("GET", urlsplit(url).path)
        response = connection.getresponse()
        if response.status != 200:
            raise FileNotFoundError(f"{url}: answered {response.status}; is the file there?")
        with target.open("wb") as file:
            shutil.copyfileobj(response, file, BLOCK)


def deliver(path: Path, url: str) -> None:
    """Copy a local file to the source."""
    with _connected(url) as connection, path.open("rb") as file:
        size = str(path.stat().st_size)
        connection.request("PUT", urlsplit(url).path, body=file, headers={"Content-Length": size})
        response = connection.getresponse()
        response.read()
        if response.status != 201:
            raise OSError(f"{url}: answered {response.status}")


def _connected(url: str) -> contextlib.closing[http.client.HTTPConnection]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return contextlib.closing(http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=600))


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])).serve_forever()
