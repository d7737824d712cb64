"""Closing of asyncio servers without losing connections that were just accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


async def close_servers(servers: Sequence[asyncio.Server]) -> None:
    """Stop listening on these servers. Connections that were just accepted still reach their protocols. A second call
    does nothing.

    `asyncio.Server.close` alone loses a connection that was accepted in the same turn of the event loop:
    `Server._attach` fails, asyncio drops the error, and the socket stays open. So the listening sockets are removed
    from the loop first, and the servers are closed one turn later."""
    own = [server for server in servers if isinstance(server, asyncio.base_events.Server)]  # uvloop's has no such fault
    for server in own:
        for one in server.sockets:
            asyncio.get_running_loop().remove_reader(one)
    if own:
        await asyncio.sleep(0)  # let asyncio create the transports of connections accepted before
    for server in servers:
        server.close()
    if own:
        await asyncio.sleep(0)  # let asyncio call `connection_made` of their protocols
