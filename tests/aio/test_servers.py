"""`close_servers` loses no connection that was accepted just before."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from peer.aio.servers import close_servers


@pytest.mark.parametrize("turns", range(6))
def test_a_caller_accepted_as_the_server_closes_is_not_forgotten(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left_open = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", lambda said: left_open.append(said.exc_value))

    async def main() -> None:
        writers = list[asyncio.StreamWriter]()
        server = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            for _ in range(turns):
                await asyncio.sleep(0)
            await close_servers([server])
            assert len(writers) == (turns >= 2), "it was accepted in the second turn"
            for writer in writers:
                writer.transport.abort()

    asyncio.run(main())
    gc.collect()
    assert not left_open


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_closing_twice_does_nothing(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        for _ in range(2):
            await close_servers([server])
        assert not server.is_serving()

    run(main())
