"""Waits for the former daemon of a home whose program has ended, such as when a notebook's kernel is restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.errors import NotRunning
from peer.node.control import send_command
from peer.run.home import Home, holder_of

FORMER_S = 30.0
"""Longest wait in seconds. A daemon whose program has ended drains for at most `peer.node.peer.ORPHANED_S`."""
ANSWER_S = 2.0
LOOK_S = 0.2


async def wait_for_previous_daemon(home: Home, say: Callable[[str], None]) -> None:
    """Wait while the daemon that holds the home is leaving or does not answer, at most `FORMER_S`. The caller then
    takes the lock, which decides whether the home is free.

    Raises HomeUnusable when the lock cannot be read."""
    until = asyncio.get_running_loop().time() + FORMER_S
    said = False
    while (holder := holder_of(home.path)) is not None and asyncio.get_running_loop().time() < until:
        try:
            if (await send_command(home.control_socket, "status", ANSWER_S))["leaving"] is None:
                return
        except NotRunning:
            pass  # its control socket is not open yet, or already closed
        if not said:
            say(f"waiting for process {holder}, which still leaves the run")
            said = True
        await asyncio.sleep(LOOK_S)
