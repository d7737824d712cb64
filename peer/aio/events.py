"""An event that one task waits for, for so long and no longer. As `asyncio.Event` under `asyncio.timeout`, without an
exception each time that nothing happens, which is most of the times: a peer does little else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

from peer.aio.tasks import race


class Signal:
    """Rung, it stays so until it is hushed. One task waits at a time."""

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def rung(self) -> bool:
        return self._rung

    def ring(self) -> None:
        self._rung = True
        if self._waiter is not None:
            _release(self._waiter)

    def hush(self) -> None:
        """What was rung before counts no more."""
        self._rung = False

    async def within(self, seconds: float) -> bool:
        """Wait for it, but no longer; whether it has been rung. At once when it was before; else others run at least
        once meanwhile."""
        if self._rung:
            return True
        assert self._waiter is None, "somebody waits already"
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(max(seconds, 0.0), _release, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None
        return self._rung


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Latch:
    """Set and cleared as an `asyncio.Event` is; who waits for it has a future."""

    __slots__ = ("_future", "_set")

    def __init__(self) -> None:
        self._set = False
        self._future: asyncio.Future[None] | None = None

    @property
    def future(self) -> asyncio.Future[None]:
        """Done as soon as the flag is set. All who wait share it: not to be cancelled."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
            if self._set:
                self._future.set_result(None)
        return self._future

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def clear(self) -> None:
        self._set = False
        if self._future is not None and self._future.done():
            self._future = None


class Condition:
    """Wakes everybody who waits for something to change; they look again for themselves."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Until it rings, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(timeout_s, 0.001)):
                await self._event.wait()


T = TypeVar("T")


class Shutdown:
    """Set once, by `peer leave` or a signal."""

    def __init__(self) -> None:
        self.told = Latch()

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
        return await race(self.told.future, call)
