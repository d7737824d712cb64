"""A very small HTTP/1.1 server for a few pages that are made on demand. One request a connection; everything a caller
may take is bounded: bytes of the request, connections, seconds."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from peer.aio.servers import close_servers
from peer.errors import AddressError

MAX_HEAD = 8192
"""Bytes of request line and headers together."""
MAX_CONNECTIONS = 16
DEADLINE_S = 5.0
"""Of one connection, from accept to close."""
TEXT = "text/plain; charset=utf-8"
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Page:
    """What is answered."""

    body: bytes
    content_type: str = TEXT
    status: int = 200


class HttpServer:
    """`pages`: for each path what makes it; called on the event loop, so it must be quick."""

    def __init__(self, pages: Mapping[str, Callable[[], Page]], deadline_s: float = DEADLINE_S) -> None:
        self._pages = pages
        self._deadline_s = deadline_s
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._closing = False

    async def start(self, host: str, port: int, option: str) -> int:
        """Listen; the port. `option`: what the person can change. Raises AddressError."""
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=MAX_HEAD)
        except OSError as error:  # that a name is not known is one too
            taken = error.errno == errno.EADDRINUSE
            found = "another program holds this port" if taken else error.strerror or str(error)
            raise AddressError(
                f"cannot listen on {host}:{port}: {found}", f"Choose another {option}; 0 takes any free one."
            ) from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and end what is under way."""
        if self._server is None:
            return
        self._closing = True
        await close_servers([self._server])
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing or len(self._serving) >= MAX_CONNECTIONS:
            if not self._closing:
                writer.write(_response(Page(b"too many connections\n", status=503), body=True))
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(lambda done: self._served(done, writer))

    def _served(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()  # here, and not in the task: one cancelled before it began runs no `finally`
        self._serving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "a page failed", "exception": error})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                method, page = await self._answer(reader)
                writer.write(_response(page, body=method != "HEAD"))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass  # slow or gone: its own loss

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, Page]:
        """The method and the page."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return "", Page(b"the request is too long\n", status=431)
        parts = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return "", Page(b"not a request\n", status=400)
        method, target, _ = parts
        if method not in ("GET", "HEAD"):
            return method, Page(b"only GET is answered\n", status=405)
        make = self._pages.get(target.partition("?")[0])
        return method, make() if make is not None else Page(b"no such page\n", status=404)


def _response(page: Page, *, body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {REASONS[page.status]}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        + ("Allow: GET, HEAD\r\n" if page.status == 405 else "")
        + "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (page.body if body else b"")
