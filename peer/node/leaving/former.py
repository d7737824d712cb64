"""Wait for the former daemon of a home, whose program ended: a notebook's kernel was restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.errors import NotRunning
from peer.node.control import send_command
from peer.run.home import Home, holder_of

FORMER_S = 30.0
"""Longest wait. A daemon whose program is gone drains for at most `peer.node.peer.ORPHANED_S`, and then ends."""
ANSWER_S = 2.0
LOOK_S = 0.2


async def wait_for_previous_daemon(home: Home, say: Callable[[str], None]) -> None:
    """Return when no daemon holds the home, when the one that does is not leaving, or after `FORMER_S`. Whether the
    home is free is for the lock to decide, which the caller takes then.

    Raises HomeUnusable when the lock cannot be looked at."""
    until = asyncio.get_running_loop().time() + FORMER_S
    said = False
    while (holder := holder_of(home.path)) is not None and asyncio.get_running_loop().time() < until:
        try:
            if (await send_command(home.control_socket, "status", ANSWER_S))["leaving"] is None:
                return
        except NotRunning:
            pass  # it has not begun to answer, or has ceased to
        if not said:
            say(f"waiting for process {holder}, which still leaves the run")
            said = True
        await asyncio.sleep(LOOK_S)
