"""The endpoint's HTTP: pages for who asks well, bounds for everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from peer.errors import AddressError
from peer.node.metrics import LoopLag, MetricsEndpoint, serving
from peer.observe.http_server import MAX_CONNECTIONS, MAX_HEAD, HttpServer, Page
from peer.run.options import NodeOptions
from tests.prometheus_text import parse

BOOTSTRAP: dict[str, Any] = {"role": "bootstrap", "run_id": "ab", "status": "serving"}


def served(check: Callable[[int], Awaitable[None]], deadline_s: float = 5.0) -> None:
    """Run `check(port)` against a server of one page."""

    async def main() -> None:
        server = HttpServer({"/page": lambda: Page(b"hello\n")}, deadline_s)
        port = await server.start("127.0.0.1", 0, "--port")
        try:
            async with asyncio.timeout(60):
                await check(port)
        finally:
            await server.close()

    asyncio.run(main())


async def answer(port: int, request: bytes, *, end: bool = False) -> bytes:
    """Everything that comes back for these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    if end:
        writer.write_eof()
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def test_a_page_is_answered_with_its_length_and_the_connection_closed() -> None:
    async def check(port: int) -> None:
        got = await answer(port, b"GET /page?x=1 HTTP/1.1\r\nHost: a\r\n\r\n")
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.split(b"\r\n") == [
            b"HTTP/1.1 200 OK",
            b"Content-Type: text/plain; charset=utf-8",
            b"Content-Length: 6",
            b"Connection: close",
        ]
        assert body == b"hello\n"
        head_only = await answer(port, b"HEAD /page HTTP/1.0\r\n\r\n")
        assert head_only == head + b"\r\n\r\n"

    served(check)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /../page HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /page HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"GET /page\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),
        (b"GET /page SPDY/3\r\n\r\n", b"400"),
        (b"GET /" + b"x" * MAX_HEAD + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET /page HTTP/1.1\r\n" + b"A: b\r\n" * MAX_HEAD, b"431"),
    ],
)
def test_what_is_no_proper_request_is_told_so(request_: bytes, status: bytes) -> None:
    async def check(port: int) -> None:
        got = await answer(port, request_)
        assert got.split(b" ")[1] == status

    served(check)


def test_half_a_request_is_dropped_at_the_deadline_or_when_it_ends() -> None:
    async def check(port: int) -> None:
        assert await answer(port, b"GET /page HTTP/1.1\r\n") == b""
        assert await answer(port, b"GET /page HTTP/1.1\r\n", end=True) == b""
        assert await answer(port, b"GET /page HTTP/1.1\r\n\r\n") != b""

    served(check, deadline_s=0.05)


def test_more_connections_than_allowed_are_turned_away_and_the_place_is_given_back() -> None:
    async def check(port: int) -> None:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
        got = await answer(port, b"")
        assert got.startswith(b"HTTP/1.1 503 ")
        for _, writer in idle:
            writer.close()
        while not (await answer(port, b"GET /page HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200"):
            await asyncio.sleep(0)

    served(check)


def test_a_port_in_use_is_a_persons_error() -> None:
    async def check(port: int) -> None:
        with pytest.raises(AddressError, match=f"127.0.0.1:{port}: another program holds this port") as error:
            await HttpServer({}).start("127.0.0.1", port, "--metrics-port")
        assert "--metrics-port" in error.value.fix
        with pytest.raises(AddressError):
            await HttpServer({}).start("203.0.113.1", 0, "--metrics-port")

    served(check)


def test_the_endpoint_serves_metrics_only_where_it_is_wanted(tmp_path: Path) -> None:
    async def main() -> None:
        said: list[str] = []
        async with serving(MetricsEndpoint(lambda: BOOTSTRAP), NodeOptions(home=tmp_path), said.append):
            assert said == [], "no port, no page"
        async with serving(MetricsEndpoint(lambda: BOOTSTRAP), NodeOptions(home=tmp_path, metrics_port=0), said.append):
            assert said[0].startswith("metrics: http://127.0.0.1:")
            port = int(said[0].rpartition(":")[2].removesuffix("/metrics"))
            got = await answer(port, b"GET /metrics HTTP/1.1\r\n\r\n")
            assert (await answer(port, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\nok\n")
        head, _, body = got.partition(b"\r\n\r\n")
        assert b"Content-Type: text/plain; version=0.0.4" in head
        families = parse(body.decode())
        assert families["peer_process_resident_memory_bytes"].value(process="daemon") > 2**20
        assert families["peer_process_open_fds"].value(process="daemon") > 3
        with pytest.raises(ConnectionRefusedError):
            await answer(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert [task.get_name() for task in asyncio.all_tasks()] == [asyncio.current_task().get_name()]  # type: ignore[union-attr]

    asyncio.run(main())


def test_a_blocked_event_loop_shows_as_lag() -> None:
    async def main() -> None:
        lag = LoopLag()
        task = asyncio.create_task(lag.run())
        await asyncio.sleep(0)
        now = asyncio.get_running_loop().time
        end = now() + 0.6
        while now() < end:
            pass  # what a heavy callback does to everybody else
        assert lag.take() >= 0.3
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(main())
