"""The relay of tests with broken links leaves no socket open."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from tests.support.cutting_relay import Wire, before


@pytest.mark.parametrize("turns", range(8))
def test_who_calls_while_the_relay_ends_is_let_go(turns: int) -> None:
    """An unclosed socket causes a warning, which fails the test."""

    async def main() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.transport.abort(), "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()[:2]
            with socket.socket() as caller:
                caller.setblocking(False)
                async with before(f"{host}:{port}", Wire()) as where:
                    caller.connect_ex((host, int(where.rpartition(":")[2])))
                    for _ in range(turns):
                        await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()
