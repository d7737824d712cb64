"""Runs uvicorn as a task in the daemon's event loop, without its signal handlers and logs.

Pages may be reachable by strangers, so everything a caller holds is bounded. Connections are limited, with places
shared among address blocks. Each request has to be complete within a deadline. A caller that does not read its response
is disconnected."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from peer.aio.tasks import cancel_and_wait
from peer.protocol.block_places import BlockPlaces
from peer.protocol.endpoints import block_of_host
from peer.web.address import BoundSocket

MOST_CONNECTIONS = 256
MOST_HEAD = 16384
"""Largest request line plus headers, in bytes."""
REQUEST_S = 10.0
"""Timeout of a complete request in seconds, from accept or from the end of the previous response."""
KEEP_ALIVE_S = 5
"""Seconds after a response after which an idle connection is closed."""
TAKE_S = 30.0
"""Seconds after which a caller that does not read its response is disconnected."""
GRACE_S = 2
"""Seconds that running responses get at shutdown."""
START_S, STOP_S = 5.0, 4.0
"""Timeouts of starting and stopping the server, in seconds."""
_LOG = logging.getLogger("peer.web")
_LOG.setLevel(logging.ERROR)  # strangers must not be able to write into the daemon's log
_READ = frozenset({h11.DONE, h11.MUST_CLOSE, h11.CLOSED})
"""States of h11 in which the caller's request is complete."""


class PageServer(uvicorn.Server):
    """A uvicorn server that does not handle the process's signals."""

    def end(self) -> None:
        """Make `serve` stop within `GRACE_S`."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class BoundedConnection(H11Protocol):
    """An HTTP connection with deadlines that occupies one of `places` while it is open."""

    def __init__(self, places: BlockPlaces[BoundedConnection], **given: Any) -> None:
        super().__init__(**given)
        self.logger = _LOG
        self._places = places
        self._until_request: asyncio.TimerHandle | None = None
        self._until_taken: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host = self.client[0] if self.client is not None else ""
        placing = self._places.enter(self, block_of_host(host), host=host)
        if placing.evicted is not None:
            placing.evicted.transport.abort()
        if placing.admitted:
            self._expect_request()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._places.leave(self)
        self._request_came()
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete and self.conn.their_state in _READ:
            self._request_came()

    def on_response_complete(self) -> None:
        self._expect_request()
        super().on_response_complete()  # starts a pipelined request, if there is one

    def pause_writing(self) -> None:
        super().pause_writing()
        self._until_taken = self.loop.call_later(TAKE_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._until_taken is not None:
            self._until_taken.cancel()
            self._until_taken = None
        super().resume_writing()

    def _expect_request(self) -> None:
        """Start the deadline of the next request."""
        self._request_came()
        self._until_request = self.loop.call_later(REQUEST_S, self._late)

    def _late(self) -> None:
        """Disconnect the caller. If it has yet to read part of the last response, it first gets `TAKE_S`, because
        `close` would wait for it without a limit."""
        if self.transport.get_write_buffer_size():
            self._until_request = self.loop.call_later(TAKE_S, self.transport.abort)
        else:
            self.transport.abort()

    def _request_came(self) -> None:
        if self._until_request is not None:
            self._until_request.cancel()
            self._until_request = None


@contextlib.asynccontextmanager
async def serving_app(
    app: ASGIApp, bound: BoundSocket, end_streams: Callable[[], None] = lambda: None
) -> AsyncIterator[None]:
    """Serve within the context. `end_streams` is called on exit and has to end all endless responses.

    Errors of the server go to the loop's exception handler, so that a failing page does not stop training."""
    server = PageServer(_config(app))
    task = asyncio.create_task(server.serve(sockets=[bound.socket]), name="page")
    task.add_done_callback(_report_defect)
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
    places: BlockPlaces[BoundedConnection] = BlockPlaces(MOST_CONNECTIONS)
    return uvicorn.Config(
        app,
        interface="asgi3",
        loop="none",
        http=cast(type[asyncio.Protocol], functools.partial(BoundedConnection, places)),
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


def _report_defect(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the page failed", "exception": error})
