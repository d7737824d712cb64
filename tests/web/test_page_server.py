"""A page on a real socket: it leaves signals alone, stops in time, and strangers cannot exhaust it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.errors import AddressError, HomeUnusable, UsageError
from peer.node.page import DaemonPages, PageSource
from peer.observe.log_file import log_file, log_line
from peer.observe.status.notices import read_status
from peer.observe.status.value import DaemonStatus
from peer.web import server, token
from peer.web.address import WebAddress
from peer.web.page import WebPage
from tests.web.test_accounts import nothing, report


def opened(home: Path, check: Callable[[int, list[str]], Awaitable[None]]) -> list[str]:
    """Run `check(port, said)` while a volunteer's page is served. Return the lines reported to the volunteer."""
    said: list[str] = []

    async def main() -> None:
        bound = WebAddress("127.0.0.1", 0).bind()
        source = PageSource(home=home, report=lambda: read_status(report()), control=nothing)
        async with asyncio.timeout(60), DaemonPages(WebPage(bound)).opened(source, said.append):
            await check(bound.address.port, said)

    asyncio.run(main())
    return said


async def closed(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


Begun = tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]


async def first_bytes(port: int, request: bytes, until: bytes) -> Begun:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    return await reader.readuntil(until), reader, writer


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def test_a_page_answers_and_leaves_signals_and_logging_alone(tmp_path: Path) -> None:
    handlers, caught = list(logging.getLogger().handlers), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    async def main() -> None:
        before = [signal.getsignal(one) for one in caught]
        bound = WebAddress("127.0.0.1", 0).bind()
        source = PageSource(home=tmp_path, report=lambda: read_status(report()), control=nothing)
        async with asyncio.timeout(60), DaemonPages(WebPage(bound)).opened(source, said.append):
            assert [signal.getsignal(one) for one in caught] == before

    async def check(port: int, said: list[str]) -> None:
        head, _, writer = await first_bytes(port, get("/"), b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"uvicorn" not in head.lower()
        await closed(writer)

    said = opened(tmp_path, check)
    asyncio.run(main())
    assert logging.getLogger().handlers == handlers
    assert said[0].startswith("page: http://127.0.0.1:")


def test_the_token_is_not_in_a_log(tmp_path: Path) -> None:
    async def check(port: int, said: list[str]) -> None:
        secret = (tmp_path / token.FILE).read_text().strip()
        assert len(secret) == 43
        assert secret not in "".join(said)
        assert str(tmp_path / token.FILE) in said[0]

    opened(tmp_path, check)


def test_a_terminal_is_shown_the_token_and_its_log_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.web.page.sys.stdout", SimpleNamespace(isatty=lambda: True))

    async def check(port: int, said: list[str]) -> None:
        secret = (tmp_path / token.FILE).read_text().strip()
        assert said == [f"page: http://127.0.0.1:{port}/#token={secret}"]
        with log_file(tmp_path / "peer.log"):
            log_line(said[0])
        log = (tmp_path / "peer.log").read_text()
        assert f"page: http://127.0.0.1:{port}/" in log
        assert secret not in log

    opened(tmp_path, check)


def test_a_page_with_viewers_closes_within_seconds(tmp_path: Path) -> None:
    held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    began: list[float] = []

    async def check(port: int, said: list[str]) -> None:
        for _ in range(3):
            head, reader, writer = await first_bytes(port, get("/api/events"), b"event: findings")
            assert b"text/event-stream" in head
            held.append((reader, writer))
        began.append(asyncio.get_running_loop().time())

    async def main() -> None:
        bound = WebAddress("127.0.0.1", 0).bind()
        source = PageSource(home=tmp_path, report=lambda: read_status(report()), control=nothing)
        async with asyncio.timeout(60):
            async with DaemonPages(WebPage(bound)).opened(source, lambda line: None):
                await check(bound.address.port, [])
            assert asyncio.get_running_loop().time() - began[0] < 2.0
            for reader, writer in held:
                assert b"event: end" in await reader.read()
                await closed(writer)

    asyncio.run(main())


def test_a_connection_without_a_request_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.05)

    async def check(port: int, said: list[str]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost:")
        assert await reader.read() == b""
        await closed(writer)

    opened(tmp_path, check)


@pytest.mark.parametrize(
    "then",
    [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nHost:",
        b"POST /api/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nx",
    ],
    ids=["nothing", "a byte", "half a head", "half a body"],
)
def test_every_later_request_has_a_deadline_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: bytes) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.05)

    async def check(port: int, said: list[str]) -> None:
        _, reader, writer = await first_bytes(port, get("/api/snapshot"), b"\r\n\r\n")
        writer.write(then)
        with contextlib.suppress(ConnectionError):  # it ends with a reset
            await reader.read()
        await closed(writer)

    opened(tmp_path, check)


def test_who_asks_again_and_again_and_takes_nothing_is_cut_off_and_nothing_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "TAKE_S", 0.05)

    async def check(port: int, said: list[str]) -> None:
        with socket.create_connection(("127.0.0.1", port)) as ours:
            ours.setblocking(False)
            loop, asked = asyncio.get_running_loop(), get("/static/uPlot.iife.min.js") * 500  # 25 MB of answers
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(ours, asked)
                while await loop.sock_recv(ours, 1) != b"":
                    await asyncio.sleep(0)
                    await loop.sock_sendall(ours, asked[: len(asked) // 500])

    opened(tmp_path, check)
    assert capfd.readouterr() == ("", "")


def test_an_event_stream_goes_on_beyond_the_deadline_of_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.05)
    monkeypatch.setattr("peer.web.broadcast.PING_S", 0.2)

    async def check(port: int, said: list[str]) -> None:
        _, reader, writer = await first_bytes(port, get("/api/events"), b"event: findings")
        for _ in range(3):
            await reader.readuntil(b": alive")
        await closed(writer)

    opened(tmp_path, check)


def test_connections_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 2)

    async def check(port: int, said: list[str]) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        held[1][1].write(get("/"))
        assert (await held[1][0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(ConnectionError):  # it may be closed with a reset
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            held.append((reader, writer))
            assert await reader.read() == b""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.9", 0))
        writer.write(get("/"))
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200"), "another address has its place"
        await closed(writer, *(writer for _, writer in held))

    opened(tmp_path, check)


def test_rubbish_is_not_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def check(port: int, said: list[str]) -> None:
        head, _, writer = await first_bytes(port, b"rubbish\r\n\r\n", b"\r\n")
        assert b" 400 " in head
        await closed(writer)

    opened(tmp_path, check)
    assert capfd.readouterr() == ("", "")


def test_a_taken_port_is_told_with_another_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = WebAddress("127.0.0.1", holder.getsockname()[1])
        with pytest.raises(AddressError, match=f"cannot listen at 127.0.0.1:{address.port}") as told:
            address.bind()
    assert "--web 127.0.0.1:0" in told.value.fix


@pytest.mark.parametrize(
    ("text", "host", "port", "shown", "local"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80, "127.0.0.1:80", True),
        ("4880", "127.0.0.1", 4880, "127.0.0.1:4880", True),
        (":4880", "127.0.0.1", 4880, "127.0.0.1:4880", True),
        ("[::1]:0", "::1", 0, "[::1]:0", True),
        ("0.0.0.0:1", "0.0.0.0", 1, "0.0.0.0:1", False),
        ("swarm.example:443", "swarm.example", 443, "swarm.example:443", False),
    ],
)
def test_addresses_are_read(text: str, host: str, port: int, shown: str, local: bool) -> None:
    address = WebAddress.parse(text)
    assert (address.host, address.port, str(address), address.local) == (host, port, shown, local)


@pytest.mark.parametrize("text", ["", "localhost", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "a:b", "a:１"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no port"):
        WebAddress.parse(text)


def test_the_token_is_kept_and_for_its_owner_alone(tmp_path: Path) -> None:
    os.umask(os.umask(0))
    first = token.load_or_create(tmp_path)
    path = tmp_path / token.FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token.load_or_create(tmp_path) == first
    path.chmod(0o644)
    assert token.load_or_create(tmp_path) != first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_damaged_token_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / token.FILE
    for damaged in ("", "short", "x" * 40 + "\n<script>"):
        path.write_text(damaged)
        path.chmod(0o600)
        assert len(token.load_or_create(tmp_path)) == 43


def test_a_link_in_place_of_the_token_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("y" * 43)
    (tmp_path / token.FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HomeUnusable, match=token.FILE):
        token.load_or_create(tmp_path)


def test_a_broken_account_is_told_and_training_goes_on(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    def broken() -> DaemonStatus:
        raise KeyError("broken")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        bound = WebAddress("127.0.0.1", 0).bind()
        source = PageSource(home=tmp_path, report=broken, control=nothing)
        async with asyncio.timeout(60), DaemonPages(WebPage(bound)).opened(source, lambda line: None):
            while not told:
                await asyncio.sleep(0)

    asyncio.run(main())
    assert [str(context["exception"]) for context in told] == ["'broken'"]
