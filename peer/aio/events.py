"""Waiting primitives that the standard library lacks.

Use `asyncio.Event` where a task waits without a limit, and `asyncio.timeout` where a timeout is an error. Otherwise:

- `Signal`: an event that a task awaits for a limited time; that time passing is an ordinary result.
- `Latch`: an event whose waiters need a future, for `asyncio.wait` or `race`.
- `Shutdown`: the latch of an orderly stop.
- `Condition`: several tasks wait until some state changes, and check that state themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

from peer.aio.tasks import race

T = TypeVar("T")


class Signal(asyncio.Event):
    """Event with a bounded wait. It stays set until it is cleared."""

    async def wait_for(self, seconds: float) -> bool:
        """Wait until the event is set, at most `seconds`; return whether it is set.

        An event that is set already returns at once. Otherwise the event loop runs other tasks at least once."""
        if self.is_set():
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await self.wait()
        return self.is_set()


class Latch:
    """Event that can be awaited together with other futures. Waiting for it needs no task of its own."""

    __slots__ = ("_future", "_set")

    def __init__(self) -> None:
        self._set = False
        self._future: asyncio.Future[None] | None = None

    @property
    def future(self) -> asyncio.Future[None]:
        """Future that is done once the latch is set. All waiters share it, so no waiter may cancel it."""
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
        """Reset the latch. Tasks that wait for an unset latch go on waiting."""
        self._set = False
        if self._future is not None and self._future.done():
            self._future = None


class Shutdown(Latch):
    """Latch of an orderly stop, set once by `peer leave` or by a signal. It is true while a stop is asked for."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return self.is_set()

    async def wait_for(self, seconds: float) -> bool:
        """Wait until the stop is asked for, at most `seconds`; return whether it is."""
        await asyncio.wait({self.future}, timeout=seconds)
        return self.is_set()

    async def race(self, call: Awaitable[T]) -> T | None:
        """Return the result of `call`, or cancel it and return None when the stop is asked for first."""
        return await race(self.future, call)


class Condition:
    """Wakes all waiting tasks when some state may have changed. Each of them checks the state for itself.

    `asyncio.Condition` adds a lock, which state needs not that changes only between two awaits."""

    def __init__(self) -> None:
        self._changed = Signal()

    def notify_all(self) -> None:
        """Wake the tasks that wait now; a later wait is not affected."""
        self._changed.set()
        self._changed = Signal()

    async def wait_for(self, seconds: float) -> None:
        """Wait until the next `notify_all`, at most `seconds`."""
        await self._changed.wait_for(max(seconds, 0.001))
