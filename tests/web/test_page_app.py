"""Who may read a page, who may run commands on it, and the headers of every response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import ASGIApp

from peer.errors import UsageError
from peer.web.app import Actions, page_app
from peer.web.broadcast import Broadcast
from peer.web.guard import HEADERS
from tests.web.asgi import OWN, Answer, Visit, call

TOKEN = "t" * 43
PROOF = {"Host": OWN, "Authorization": f"Bearer {TOKEN}"}


class Daemon:
    """Records the commands that it receives."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    async def act(self, command: str, request: dict[str, Any]) -> dict[str, Any]:
        self.told.append((command, request))
        if command == "resume":
            raise UsageError("there is no pause", "Do nothing.")
        return {"done": command}


def played(check: Callable[[ASGIApp, Daemon, Broadcast], Awaitable[None]], viewers: int = 100) -> Daemon:
    async def main() -> Daemon:
        daemon = Daemon()
        broadcast = Broadcast(lambda: {"peer": {"status": "training"}}, lambda: 0.0, viewers)
        app = page_app("volunteer.html", broadcast, Actions(daemon.act, TOKEN), frozenset({"swarm.example"}))
        await check(app, daemon, broadcast)
        return daemon

    return asyncio.run(main())


def answered(target: str, method: str = "GET", headers: Any = None) -> Answer:
    got: list[Answer] = []

    async def check(app: ASGIApp, daemon: Daemon, broadcast: Broadcast) -> None:
        got.append(await call(app, target, method, headers))

    played(check)
    return got[0]


@pytest.mark.parametrize("command", ["pause", "resume", "leave", "token"])
@pytest.mark.parametrize(
    "proof", ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN]
)
def test_nothing_is_done_without_the_token(command: str, proof: str) -> None:
    async def check(app: ASGIApp, daemon: Daemon, broadcast: Broadcast) -> None:
        headers = {"Host": OWN} | ({"Authorization": proof} if proof else {})
        answer = await call(app, f"/api/{command}?token={TOKEN}", "POST", headers)
        assert (answer.status, daemon.told) == (401, [])
        assert "token" in answer.json["reason"]

    played(check)


def test_with_the_token_the_control_handler_is_asked() -> None:
    async def check(app: ASGIApp, daemon: Daemon, broadcast: Broadcast) -> None:
        assert (await call(app, "/api/token", "POST", PROOF)).json == {"known": True}
        assert (await call(app, "/api/pause?for_s=60", "POST", PROOF)).json == {"done": "pause"}
        assert (await call(app, "/api/leave", "POST", PROOF)).status == 200
        assert daemon.told == [("pause", {"for_s": 60.0}), ("leave", {})]

    played(check)


def test_what_the_daemon_refuses_is_told_with_its_fix() -> None:
    answer = answered("/api/resume", "POST", PROOF)
    assert (answer.status, answer.json) == (409, {"reason": "there is no pause", "fix": "Do nothing."})
    assert answered("/api/pause?for_s=soon", "POST", PROOF).status == 409


def test_reading_an_action_does_nothing() -> None:
    async def check(app: ASGIApp, daemon: Daemon, broadcast: Broadcast) -> None:
        assert (await call(app, "/api/leave", "GET", PROOF)).status == 405
        assert daemon.told == []

    played(check)


def test_an_operators_page_has_no_actions() -> None:
    async def main() -> Answer:
        app = page_app("run.html", Broadcast(dict, lambda: 0.0), None, frozenset())
        return await call(app, "/api/leave", "POST", PROOF)

    assert asyncio.run(main()).status == 404


@pytest.mark.parametrize(
    ("target", "method", "headers", "status"),
    [
        ("/", "GET", {"Host": OWN}, 200),
        ("/api/snapshot", "GET", {"Host": OWN}, 200),
        ("/static/style.css", "GET", {"Host": OWN}, 200),
        ("/nowhere", "GET", {"Host": OWN}, 404),
        ("/api/pause", "POST", {"Host": OWN}, 401),
        ("/", "GET", {"Host": "evil.example"}, 421),
    ],
)
def test_every_answer_has_the_strict_headers(target: str, method: str, headers: dict[str, str], status: int) -> None:
    answer = answered(target, method, headers)
    assert answer.status == status
    assert {name: answer.headers[name.lower()] for name in HEADERS} == HEADERS
    assert "set-cookie" not in answer.headers
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"


@pytest.mark.parametrize(
    ("host", "let_in"),
    [
        (OWN, True),
        ("localhost:4880", True),
        ("LOCALHOST", True),
        ("[::1]:4880", True),
        ("192.0.2.7", True),
        ("swarm.example", True),
        ("Swarm.Example:443", True),
        ("evil.example", False),
        ("evil.example:4880", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_a_name_that_is_not_ours_is_refused(host: str, let_in: bool) -> None:
    """DNS rebinding: a stranger's host name that was made to resolve to this machine."""
    assert (answered("/api/snapshot", headers={"Host": host}).status == 200) is let_in


def test_a_request_needs_one_host() -> None:
    assert answered("/", headers={}).status == 421
    assert answered("/", headers=[("Host", OWN), ("Host", "evil.example")]).status == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (f"http://{OWN}", 200),
        (f"https://{OWN}", 200),
        ("http://evil.example", 403),
        (f"http://{OWN}.evil.example", 403),
        ("http://127.0.0.1:9999", 403),
        ("null", 403),
    ],
)
def test_a_foreign_page_cannot_act_even_with_the_token(origin: str, status: int) -> None:
    async def check(app: ASGIApp, daemon: Daemon, broadcast: Broadcast) -> None:
        assert (await call(app, "/api/pause", "POST", PROOF | {"Origin": origin})).status == status
        assert bool(daemon.told) is (status == 200)

    played(check)


def test_viewers_are_counted_and_one_too_many_hears_503() -> None:
    async def check(app: ASGIApp, daemon: Daemon, broadcast: Broadcast) -> None:
        visits = [Visit(app, "/api/events") for _ in range(3)]
        async with asyncio.timeout(60):
            while not all(visit.answer.body for visit in visits):
                await asyncio.sleep(0)
        assert broadcast.viewers == 3
        refused = await call(app, "/api/events")
        assert (refused.status, refused.headers["retry-after"]) == (503, "30")
        visits[0].leave()
        await visits[0].task
        assert broadcast.viewers == 2
        again = Visit(app, "/api/events")
        async with asyncio.timeout(60):
            while not again.answer.body:
                await asyncio.sleep(0)
        assert again.answer.headers["content-type"] == "text/event-stream"
        broadcast.close()
        await asyncio.gather(*(visit.task for visit in (*visits[1:], again)))
        assert again.answer.body.endswith(b"event: end\ndata: {}\n\n")
        assert broadcast.viewers == 0

    played(check, viewers=3)


def test_one_address_does_not_take_every_stream() -> None:
    async def check(app: ASGIApp, daemon: Daemon, broadcast: Broadcast) -> None:
        crowd = [Visit(app, "/api/events", client="203.0.113.5") for _ in range(3)]
        await until_all_see(crowd)
        assert (await call(app, "/api/events", client="203.0.113.5")).status == 503
        neighbour = Visit(app, "/api/events", client="203.0.113.9")
        other = Visit(app, "/api/events", client="198.51.100.7")
        await until_all_see([neighbour, other])
        async with asyncio.timeout(60):
            await crowd[2].task
            await crowd[1].task
        assert not crowd[2].answer.body.endswith(b"event: end\ndata: {}\n\n"), "its browser shall ask again"
        assert (crowd[2].answer.over, broadcast.viewers) == (True, 3)
        broadcast.close()
        await asyncio.gather(crowd[0].task, neighbour.task, other.task)

    played(check, viewers=3)


async def until_all_see(visits: list[Visit]) -> None:
    async with asyncio.timeout(60):
        while not all(visit.answer.body for visit in visits):
            await asyncio.sleep(0)


def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    first = answered("/static/uPlot.iife.min.js")
    again = answered("/static/uPlot.iife.min.js", headers={"Host": OWN, "If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize("name", ["../app.py", "%2e%2e/app.py", "uPlot.LICENSE.txt", ""])
def test_no_other_file_is_served(name: str) -> None:
    assert answered(f"/static/{name}").status == 404
