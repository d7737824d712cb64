"""How to end a server of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


async def close_servers(servers: Sequence[asyncio.Server]) -> None:
    """Stop listening. Callers that were just accepted still come to their protocols.

    Without this asyncio forgets a caller whose server closes before its first turn, and leaves the socket open
    (`Server._attach` fails, and the error is dropped)."""
    loop = asyncio.get_running_loop()
    for one in (one for server in servers for one in server.sockets):
        loop.remove_reader(one)
    await asyncio.sleep(0)  # callers accepted before get their transports
    for server in servers:
        server.close()
    await asyncio.sleep(0)  # their protocols are told
