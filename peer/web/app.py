"""The ASGI application of a page: its files, the account as JSON and as an event stream, and the volunteer's
commands."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from peer.aio.tasks import cancel_and_wait
from peer.errors import PeerError, UsageError
from peer.node.control import Handler
from peer.web.broadcast import Broadcast, Viewer
from peer.web.guard import Guard
from peer.web.static_files import StaticFile, read_all

ACTIONS = frozenset({"pause", "resume", "leave"})
AGAIN_S = 30
"""Seconds after which a rejected viewer may try again (Retry-After)."""
_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
NO_STORE = {"Cache-Control": "no-store"}
UNAUTHORIZED = "This needs the page's token: open the address that the daemon printed."
Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Actions:
    """The commands that a page may run: `handler` runs them for callers that present `token`."""

    handler: Handler
    token: str

    def knows(self, request: Request) -> bool:
        """Return whether the request presents the token, compared in constant time."""
        kind, _, shown = request.headers.get("authorization", "").partition(" ")
        right = secrets.compare_digest(shown.strip().encode(), self.token.encode())
        return right and kind.lower() == "bearer"


def page_app(index: str, broadcast: Broadcast, actions: Actions | None, names: frozenset[str]) -> ASGIApp:
    """Create the application. `index`: name of the static file to serve as `/`. `actions` None: the page is read-only.
    `names`: see `peer.web.guard`."""
    files = read_all()
    routes = [
        Route("/", _file(files[index])),
        Route("/api/snapshot", _snapshot(broadcast)),
        Route("/api/events", EventStream(broadcast)),
        *(Route(f"/static/{name}", _file(file)) for name, file in files.items()),
    ]
    if actions is not None:
        routes += [Route("/api/token", _token_check(actions), methods=["POST"])]
        routes += [Route(f"/api/{name}", _action(name, actions), methods=["POST"]) for name in sorted(ACTIONS)]
    return Guard(Starlette(routes=routes), names)


class EventStream:
    """Endpoint that streams the account to one viewer as server-sent events, until either side closes."""

    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await PlainTextResponse("Only GET is answered.\n", 405, {"Allow": "GET"})(scope, receive, send)
            return
        viewer = self._broadcast.enter(scope["client"][0] if scope["client"] else "")
        if viewer is None:
            refusal = PlainTextResponse("Too many look at this page now.\n", 503, {"Retry-After": str(AGAIN_S)})
            await refusal(scope, receive, send)
            return
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
            if await self._stream(viewer, receive, send):
                await send({"type": "http.response.body", "body": b""})  # evicted: the browser reconnects by itself
        finally:
            self._broadcast.leave(viewer)

    async def _stream(self, viewer: Viewer, receive: Receive, send: Send) -> bool:
        """Send frames until the page closes or the viewer disconnects. Return whether the viewer was evicted."""
        sending = asyncio.create_task(self._send(send))
        ends = [sending, asyncio.create_task(_gone(receive)), asyncio.create_task(viewer.evicted.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return viewer.evicted.is_set() and not sending.done()
        finally:
            for task in ends:
                await cancel_and_wait(task)

    async def _send(self, send: Send) -> None:
        async for frame in self._broadcast.frames():
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"event: end\ndata: {}\n\n"})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _file(file: StaticFile) -> Answer:
    async def answer(request: Request) -> Response:
        return file.answer(request)

    return answer


def _snapshot(broadcast: Broadcast) -> Answer:
    async def answer(request: Request) -> Response:
        return Response(broadcast.snapshot(), headers=NO_STORE, media_type="application/json")

    return answer


def _token_check(actions: Actions) -> Answer:
    async def answer(request: Request) -> Response:
        """Return whether the presented token is valid."""
        return _json({"known": True}) if actions.knows(request) else _unauthorized()

    return answer


def _action(command: str, actions: Actions) -> Answer:
    async def answer(request: Request) -> Response:
        if not actions.knows(request):
            return _unauthorized()
        try:
            return _json(await actions.handler(command, _arguments(request)))
        except PeerError as error:
            return _json({"reason": error.found, "fix": error.fix}, 409)

    return answer


def _arguments(request: Request) -> dict[str, Any]:
    """Return the arguments of a command from the query. Raises UsageError."""
    given = request.query_params.get("for_s")
    if given is None:
        return {}
    try:
        return {"for_s": float(given)}
    except ValueError:
        raise UsageError("for_s is a number of seconds", "E.g. /api/pause?for_s=3600") from None


def _unauthorized() -> Response:
    return JSONResponse({"reason": UNAUTHORIZED}, 401, {**NO_STORE, "WWW-Authenticate": "Bearer"})


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return JSONResponse(body, status, NO_STORE)
