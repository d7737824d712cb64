"""uvicorn inside the daemon's own event loop: as one task, without its signal handlers and its logs.

Strangers may reach every page, so nothing that a caller holds is without a bound. A connection has a place, and places
are shared among address blocks. Each request has to be complete within a deadline, the first one and every later one.
A caller that does not take what it asked for is cut off."""

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
"""Bytes of a request's line and headers."""
REQUEST_S = 10.0
"""For a complete request, from accept or from the end of the answer before it."""
KEEP_ALIVE_S = 5
"""A connection on which nothing comes for so long after an answer is closed."""
TAKE_S = 30.0
"""A caller whose connection takes nothing for so long is cut off."""
GRACE_S = 2
"""For answers under way at the end, seconds."""
START_S, STOP_S = 5.0, 4.0
_LOG = logging.getLogger("peer.web")
_LOG.setLevel(logging.ERROR)  # strangers must not be able to write into the daemon's log
_READ = frozenset({h11.DONE, h11.MUST_CLOSE, h11.CLOSED})
"""States of a caller whose request is complete."""


class PageServer(uvicorn.Server):
    """A server that leaves the process's signals alone."""

    def end(self) -> None:
        """Tell it to stop, within `GRACE_S`."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class BoundedConnection(H11Protocol):
    """One connection. It has one of `places` as long as it is open."""

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
        super().on_response_complete()  # a request that was sent meanwhile begins here

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
        """Cut the caller off, after some time for what is left of the last answer. `close` would wait for ever."""
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
    """Serve within the context. `end_streams` is called at its end, and has to end the answers that go on for ever.

    An error of the server is told to the loop's exception handler: a page is no reason to stop training."""
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
