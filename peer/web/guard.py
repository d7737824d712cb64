"""Checks that every request to a page passes, and headers that every response carries."""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peer.web.address import names_this_page

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_RAW = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
READING = frozenset({"GET", "HEAD"})
"""Methods that change nothing, for which the Origin is not checked."""


class Guard:
    """ASGI middleware that rejects requests addressed to another host name, and cross-origin requests that act.

    `names`: accepted host names besides IP addresses and `localhost`, in lower case."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope["type"]

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_RAW]}
            await send(message)

        if (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or not names_this_page(hosts[0], self._names):
            return PlainTextResponse("This page has another name. Its operator can add one with --web-name.\n", 421)
        origins = {f"{scheme}://{hosts[0]}" for scheme in ("http", "https")}
        if scope["method"] not in READING and any(one not in origins for one in _values(scope, b"origin")):
            return PlainTextResponse("Only this page itself may act.\n", 403)
        return None


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]
