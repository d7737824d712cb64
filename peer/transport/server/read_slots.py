"""Bounds the memory for messages of callers that are being read.

gRPC buffers the window of each call, and the whole of a message that is being read. Its limit on message length is the
same for all calls, and has to allow a large chunk. So only a few calls may read at a time: callers hold at most PLACES
+ CONTRIBUTIONS messages, those of our own swaps, and the window of each call.

On failure: a caller that sends nothing loses its slot while others wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from peer.aio.tasks import cancel_and_wait
from peer.codes import Code
from peer.errors import PartnerRefused

T = TypeVar("T")

PLACES = 4
"""Slots for small messages. An honest message arrives within one round trip; a hostile one of the maximum length takes
three."""
CONTRIBUTIONS = 32
"""Contributions of a group's members that are received at once: two fragments of a usual group. Further members
wait."""
PATIENCE_S = 1.0
"""Seconds that a caller may send nothing while others wait for its slot."""
LOOK_S = 0.2
"""Interval in seconds at which a waiting read is checked."""


class ReadSlots:
    """A number of slots for reading, given to the latest waiter first. Silent callers therefore delay only each
    other."""

    def __init__(self, places: int = PLACES, patience_s: float = PATIENCE_S) -> None:
        self._free = places
        self._patience_s = patience_s
        self._waiting: list[asyncio.Future[None]] = []

    async def read(self, read: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        """Return the result of `read`, once there is a slot.

        Raises PartnerRefused (`busy`) without a slot in time, TimeoutError without a message in time, and the errors of
        `read`. The call then has to end, because part of a message may have arrived. Time during which our own event
        loop is blocked does not count against the caller."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._enter()
        except TimeoutError:
            raise PartnerRefused(Code.BUSY, "too many callers are being listened to; ask again", 1.0) from None
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
        """Give the slot to the next waiter. A waiter that was cancelled is still in the list, and removes itself."""
        for turn in reversed(self._waiting):
            if not turn.done():
                self._waiting.remove(turn)
                turn.set_result(None)
                return
        self._free += 1

    async def _read(self, read: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        passed, reading = 0.0, asyncio.ensure_future(read())
        try:
            while (left := (self._patience_s if self._waiting else timeout_s) - passed) > 0:
                look_s = min(LOOK_S, left)
                done, _ = await asyncio.wait({reading}, timeout=look_s)
                if done:
                    return reading.result()
                passed += look_s  # not measured by the clock, so that delays of our own loop do not count
            raise TimeoutError("the message did not come")
        finally:
            await cancel_and_wait(reading)
