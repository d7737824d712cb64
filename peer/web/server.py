"""uvicorn inside the daemon's own event loop: as one task, without its signal handlers and its logs.

A page may face strangers, so connections are counted, and one that asks for nothing is closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from peer.aio.tasks import cancel_and_wait
from peer.web.address import BoundSocket

MOST_CONNECTIONS = 256
MOST_HEAD = 16384
"""Bytes of a request's line and headers."""
FIRST_REQUEST_S = 10.0
"""From accept to a complete request."""
KEEP_ALIVE_S = 5
GRACE_S = 2
"""For answers under way at the end, seconds."""
START_S, STOP_S = 5.0, 4.0
_LOG = logging.getLogger("peer.web")
_LOG.setLevel(logging.ERROR)  # strangers must not be able to write into the daemon's log


class BoundedConnection(H11Protocol):
    """One connection. Beyond `MOST_CONNECTIONS`, or without a request in time, it is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.logger = _LOG
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self.loop.call_later(FIRST_REQUEST_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if getattr(self, "cycle", None) is None:  # it is None until a request has come
            self.transport.close()


class OwnedServer(uvicorn.Server):
    """A server that leaves the process's signals alone."""

    def end(self) -> None:
        """Tell it to stop, within `GRACE_S`."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving_app(app: ASGIApp, bound: BoundSocket, end_streams: Callable[[], None]) -> AsyncIterator[None]:
    """Serve within the context. `end_streams` is called at its end, and has to end the answers that go on for ever.

    An error of the server is told to the loop's exception handler: a page is no reason to stop training."""
    server = OwnedServer(_config(app))
    task = asyncio.create_task(server.serve(sockets=[bound.socket]), name="page")
    task.add_done_callback(_tell_defect)
    try:
        async with asyncio.timeout(START_S):
            while not (server.started or task.done()):
                await asyncio.sleep(0.01)
        yield
    finally:
        end_streams()
        server.end()
        await asyncio.wait({task}, timeout=STOP_S)
        await cancel_and_wait(task)
        bound.socket.close()


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        interface="asgi3",
        loop="none",
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=MOST_HEAD,
    )


def _tell_defect(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the page failed", "exception": error})
