"""An event that can be waited for beside other things, without a task that waits for it: most of the time nothing is
told."""

from __future__ import annotations

import asyncio


class Flag:
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
