"""Calls an ASGI application in this process, as a server would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Scope

OWN = "127.0.0.1:4880"


@dataclass
class Answer:
    """A complete HTTP response."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    over: bool = False
    """Whether the response is complete."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def scope(method: str, target: str, headers: Mapping[str, str] | list[tuple[str, str]], client: str) -> Scope:
    path, _, query = target.partition("?")
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in pairs],
        "server": ("127.0.0.1", 4880),
        "client": (client, 5000),
    }


class Visit:
    """A request with an open-ended response: `answer` grows, and `leave` acts as a browser that closes."""

    def __init__(
        self,
        app: ASGIApp,
        target: str,
        method: str = "GET",
        headers: Mapping[str, str] | list[tuple[str, str]] | None = None,
        client: str = "127.0.0.1",
    ) -> None:
        self.answer = Answer()
        self._left = asyncio.Event()
        self._asked = False
        given = {"Host": OWN} if headers is None else headers
        self.task = asyncio.create_task(app(scope(method, target, given, client), self._receive, self._send))  # type: ignore[arg-type]

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.answer.status = message["status"]
            self.answer.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            self.answer.body += message.get("body", b"")
            self.answer.over = not message.get("more_body", False)


async def call(
    app: ASGIApp,
    target: str,
    method: str = "GET",
    headers: Mapping[str, str] | list[tuple[str, str]] | None = None,
    client: str = "127.0.0.1",
) -> Answer:
    """Make a request and return the complete response. `headers`: by default the page's own host name."""
    visit = Visit(app, target, method, headers, client)
    async with asyncio.timeout(60):
        await visit.task
    return visit.answer
