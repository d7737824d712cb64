"""Told to leave: waits that end early, calls that are given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from peer.daemon.owned import unless

T = TypeVar("T")


class Leaving:
    """Set once, by `peer leave` or a signal."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    async def within(self, seconds: float) -> bool:
        """Wait so long; True at once when told to leave meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    async def unless(self, call: Awaitable[T]) -> T | None:
        """The call's result, or None when we were told to leave first; then the call is cancelled."""
        return await unless(self._event, call)
