"""How many messages of callers may be on their way into memory at once.

gRPC takes of a call what its window allows, and of one that is being read from a whole message. The length of a message
is limited for all calls alike, and a chunk is large; so only a few calls are read from at a time: callers hold at most
PLACES + CONTRIBUTIONS messages, those of our own swaps, and the window of each call.

What happens on failure: who keeps others waiting for its place, and says nothing, loses it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from peer.aio.tasks import cancel_and_wait
from peer.errors import PartnerRefused

T = TypeVar("T")

PLACES = 4
"""For small messages. An honest one is there within a round trip of the caller's turn. A hostile one of the largest
length takes three times that while it is read."""
CONTRIBUTIONS = 32
"""Of members of groups, received at once: two fragments of a usual group. Who comes later waits for its turn."""
PATIENCE_S = 1.0
"""So long may a caller say nothing while others wait for its place."""
LOOK_S = 0.2


class ReadSlots:
    """Who came last is served first: whoever says nothing, many times over, keeps only those like itself waiting."""

    def __init__(self, places: int = PLACES, patience_s: float = PATIENCE_S) -> None:
        self._free = places
        self._patience_s = patience_s
        self._waiting: list[asyncio.Future[None]] = []

    async def read(self, read: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        """What `read` gives. Raises PartnerRefused (`busy`) when there is no place in time, TimeoutError when there is
        one and nothing comes, and what `read` raises; the call has to be ended then, for a part of a message may have
        come."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._enter()
        except TimeoutError:
            raise PartnerRefused("busy", "too many callers are being listened to; ask again", 1.0) from None
        try:
            return await self._read(read, timeout_s)
        finally:
            self._leave()

    async def _enter(self) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove(turn)
            else:
                self._leave()
            raise

    def _leave(self) -> None:
        """The place is the next one's. Who has given up meanwhile is still in the line, and takes itself out."""
        for turn in reversed(self._waiting):
            if not turn.done():
                self._waiting.remove(turn)
                turn.set_result(None)
                return
        self._free += 1

    async def _read(self, read: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        now = asyncio.get_running_loop().time
        began, reading = now(), asyncio.ensure_future(read())
        try:
            while (passed := now() - began) < (self._patience_s if self._waiting else timeout_s):
                done, _ = await asyncio.wait({reading}, timeout=min(LOOK_S, timeout_s - passed))
                if done:
                    return reading.result()
            raise TimeoutError("the message did not come")
        finally:
            await cancel_and_wait(reading)
