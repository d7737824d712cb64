"""Told to leave: waits that end early, calls that are given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from peer.daemon.flag import Flag
from peer.daemon.owned import unless

T = TypeVar("T")


class Leaving:
    """Set once, by `peer leave` or a signal."""

    def __init__(self) -> None:
        self.told = Flag()

    def __bool__(self) -> bool:
        return self.told.is_set()

    def set(self) -> None:
        self.told.set()

    async def within(self, seconds: float) -> bool:
        """Wait so long; True at once when told to leave meanwhile."""
        await asyncio.wait({self.told.future}, timeout=seconds)
        return bool(self)

    async def unless(self, call: Awaitable[T]) -> T | None:
        """The call's result, or None when we were told to leave first; then the call is cancelled."""
        return await unless(self.told.future, call)
