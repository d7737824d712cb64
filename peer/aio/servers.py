"""How to end a server of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


async def close_servers(servers: Sequence[asyncio.Server]) -> None:
    """Stop listening. Callers that were just accepted still come to their protocols. A second call does nothing.

    A plain `close` makes asyncio's own server forget a caller that was accepted in the same turn. Its socket then stays
    open: `Server._attach` fails, and the error is dropped."""
    own = [server for server in servers if isinstance(server, asyncio.base_events.Server)]  # uvloop's do not forget
    for server in own:
        for one in server.sockets:
            asyncio.get_running_loop().remove_reader(one)
    if own:
        await asyncio.sleep(0)  # callers accepted before get their transports
    for server in servers:
        server.close()
    if own:
        await asyncio.sleep(0)  # their protocols are told
