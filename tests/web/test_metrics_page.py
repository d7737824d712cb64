"""The metrics endpoint, which has the same guard as the page for browsers."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from peer.cli.web import open_pages
from peer.errors import AddressError
from peer.node.metrics import DaemonMetrics
from peer.node.page import PageSource
from peer.observe.status.notices import read_status
from peer.observe.status.value import DaemonStatus
from peer.web.guard import HEADERS
from peer.web.metrics import metrics_app
from tests.prometheus_text import parse
from tests.web.asgi import Answer, call

BOOTSTRAP: dict[str, Any] = {"role": "bootstrap", "run_id": "ab", "status": "serving"}
NAMES = frozenset({"node.example"})


def serving() -> DaemonStatus:
    return read_status(BOOTSTRAP)


def asked(target: str, host: str = "127.0.0.1:9464", method: str = "GET") -> Answer:
    async def main() -> Answer:
        return await call(
            metrics_app(DaemonMetrics(lambda: read_status(BOOTSTRAP)), NAMES), target, method, {"Host": host}
        )

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9464", 200),
        ("[::1]", 200),
        ("198.51.100.7:9464", 200),
        ("Node.Example:9464", 200),
        ("evil.example:9464", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)
def test_only_those_who_ask_for_this_machine_read_the_metrics(host: str, status: int) -> None:
    for target in ("/metrics", "/healthz"):
        answer = asked(target, host)
        assert answer.status == status
        assert {name: answer.headers[name.lower()] for name in HEADERS} == HEADERS


@pytest.mark.parametrize(("target", "method", "status"), [("/other", "GET", 404), ("/metrics", "POST", 405)])
def test_nothing_else_is_answered(target: str, method: str, status: int) -> None:
    assert asked(target, method=method).status == status


def test_metrics_are_made_once_a_second_however_many_ask() -> None:
    made: list[int] = []

    def report() -> DaemonStatus:
        made.append(1)
        return read_status(BOOTSTRAP)

    async def main() -> None:
        metrics = DaemonMetrics(report)
        assert {metrics.text() for _ in range(50)} == {metrics.text()}

    asyncio.run(main())
    assert len(made) == 1


async def answer_of(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_metrics_are_served_only_where_they_are_wanted(tmp_path: Path) -> None:
    async def main() -> None:
        said: list[str] = []
        source = PageSource(
            home=tmp_path, report=lambda: read_status(BOOTSTRAP), metrics=DaemonMetrics(lambda: read_status(BOOTSTRAP))
        )
        async with open_pages(None, ()).opened(source, said.append):
            assert said == [], "no port, no page"
        async with open_pages(None, (), "127.0.0.1", 0).opened(source, said.append, said.append):
            (line,) = said
            assert line.startswith("metrics: http://127.0.0.1:")
            port = int(line.rpartition(":")[2].removesuffix("/metrics"))
            got = await answer_of(port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            health = await answer_of(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert health.endswith(b"\r\n\r\nok\n")
        head, _, body = got.partition(b"\r\n\r\n")
        assert b"content-type: text/plain; version=0.0.4" in head.lower()
        families = parse(body.decode())
        assert families["peer_process_resident_memory_bytes"].value(process="daemon") > 2**20
        assert families["peer_process_open_fds"].value(process="daemon") > 3
        with pytest.raises(ConnectionRefusedError):
            await answer_of(port, b"")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_port_in_use_is_a_persons_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(
            AddressError, match=f"127.0.0.1:{port} for the metrics: another program holds this port"
        ) as error:
            open_pages(None, (), "127.0.0.1", port)
    assert "--metrics-port" in error.value.fix
    with pytest.raises(AddressError):
        open_pages(None, (), "203.0.113.1", 0)
