"""A server that speaks as much of S3 as a client that fetches objects needs: GET and HEAD, without checking who asks.

Objects are the files of a folder, read once into memory. The server is one process with one thread; a request costs it
little beside what it costs the client, so that a benchmark measures clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

HEAD = "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nContent-Type: {kind}\r\n\r\n"
MISSING = b"<Error><Code>NoSuchKey</Code><Message>There is no such object.</Message></Error>"


class Objects(asyncio.Protocol):
    """One connection, on which a client sends requests one after another."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self._contents = contents
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            method, path = head.split(b" ", 2)[:2]
            self._answer(self._contents.get(unquote(path.partition(b"?")[0].decode())[1:]), with_body=method == b"GET")

    def _answer(self, content: bytes | None, *, with_body: bool) -> None:
        status, kind = ("200 OK", "image/jpeg") if content is not None else ("404 Not Found", "application/xml")
        body = MISSING if content is None else content
        head = HEAD.format(status=status, length=len(body), kind=kind).encode()
        self._transport.write(head + body if with_body else head)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the folders in ``folder`` as buckets, by a process of its own; yield the address."""
    command = [sys.executable, "-m", "benchmarks.object_server", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


async def serve(folder: Path) -> None:
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/*")}
    server = await asyncio.get_running_loop().create_server(lambda: Objects(contents), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
