"""Waiting primitives that the standard library lacks.

Use `asyncio.Event` where a task waits without a limit, and `asyncio.timeout` where a timeout is an error. Otherwise:

- `Signal`: an event that a task awaits for a limited time. A timeout is an ordinary result.
- `Latch`: an event whose waiters need a future, for `asyncio.wait` or `race`.
- `Shutdown`: the latch that is set when the process has to stop in an orderly way.
- `Condition`: several tasks wait until some state changes, and check that state themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from peer.aio.tasks import race

T = TypeVar("T")


class Signal:
    """Event whose `wait_for` returns after a limited time. It stays set until it is cleared."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for waiter in self._waiters:
            _wake(waiter)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        """Wait until the event is set."""
        if not self._set:
            await self._woken(asyncio.get_running_loop().create_future())

    async def wait_for(self, seconds: float) -> bool:
        """Wait until the event is set, at most `seconds`. Return whether it is set.

        If the event is already set, the call returns at once. Otherwise the event loop runs other tasks at least
        once."""
        if self._set:
            return True
        # A timer that wakes the waiter costs a fraction of `asyncio.timeout`, which cancels the task.
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        timer = loop.call_later(max(seconds, 0.0), _wake, waiter)
        try:
            await self._woken(waiter)
        finally:
            timer.cancel()
        return self._set

    async def _woken(self, waiter: asyncio.Future[None]) -> None:
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Latch:
    """Event that offers a future, so that it can be awaited together with other futures without a task of its own."""

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
        """Reset the latch. Tasks that await an unset latch keep waiting."""
        self._set = False
        if self._future is not None and self._future.done():
            self._future = None


class Shutdown(Latch):
    """Latch that `peer leave` or a signal sets to request an orderly stop. True once the stop is requested."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return self.is_set()

    async def wait_for(self, seconds: float) -> bool:
        """Wait until the stop is requested, at most `seconds`. Return whether it is."""
        await asyncio.wait({self.future}, timeout=seconds)
        return self.is_set()

    async def race(self, call: Awaitable[T]) -> T | None:
        """Return the result of `call`. If the stop is requested first, cancel `call` and return None."""
        return await race(self.future, call)


class Condition:
    """Wakes all waiting tasks when some state may have changed. Each task checks the state itself.

    `asyncio.Condition` also has a lock, which is not needed for state that changes only between two awaits."""

    def __init__(self) -> None:
        self._changed = Signal()

    def notify_all(self) -> None:
        """Wake the tasks that are waiting now. Later calls of `wait_for` are not affected."""
        self._changed.set()
        self._changed = Signal()

    async def wait_for(self, seconds: float) -> None:
        """Wait until the next `notify_all`, at most `seconds` (at least 1 ms)."""
        await self._changed.wait_for(max(seconds, 0.001))
