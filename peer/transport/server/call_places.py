"""A limited number of places for calls of one kind. When all are taken, the address block that holds most loses one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from peer.codes import Code
from peer.errors import PartnerRefused
from peer.protocol.block_places import BlockPlaces

AGAIN_S = 1.0
"""Seconds after which a caller without a place may retry."""


class CallPlaces:
    """At most `places` calls at once, of which `reserve` are reserved for proven peers. `what` names the calls, for a
    person."""

    def __init__(self, places: int, reserve: int, what: str) -> None:
        self._places: BlockPlaces[asyncio.Timeout] = BlockPlaces(places, reserve)
        self._what = what

    def __len__(self) -> int:
        return len(self._places)

    def busy_reason(self, block: str, *, proven: bool = False) -> str:
        """Return why a caller of this block gets no place now, for a person; empty: it gets one."""
        if self._places.would_admit(block, proven=proven):
            return ""
        return f"too many {self._what} are under way; ask again or ask another"

    @asynccontextmanager
    async def held(self, block: str, *, proven: bool = False, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Hold a place during the block.

        Raises PartnerRefused (`busy`) when there is no place, or when another caller takes the place during the block,
        and TimeoutError after `timeout_s`. The latter two cancel the block."""
        lost = False
        try:
            async with asyncio.timeout(timeout_s) as until:
                placing = self._places.enter(until, block, proven=proven)
                if not placing.admitted:
                    raise PartnerRefused(Code.BUSY, self.busy_reason(block, proven=proven), AGAIN_S)
                if placing.evicted is not None and not placing.evicted.expired():
                    placing.evicted.reschedule(0.0)
                try:
                    yield
                finally:
                    lost = until not in self._places
                    self._places.leave(until)
        except TimeoutError:
            if not lost:
                raise
            reason = f"your place among the {self._what} went to a caller of another network; ask again or ask another"
            raise PartnerRefused(Code.BUSY, reason, AGAIN_S) from None
