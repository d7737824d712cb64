"""An event that one task waits for, for so long and no longer. As `asyncio.Event` under `asyncio.timeout`, without an
exception each time that nothing happens, which is most of the times: a peer does little else."""

from __future__ import annotations

import asyncio


class Bell:
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
