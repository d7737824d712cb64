"""Real time: the machine's clock, corrected by what Hellos measured, and a thread of low priority for heavy work."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

KEPT_OFFSETS = 9


class WallClock:
    """The `Clock` interface on this machine. The correction is the median of the last offsets to other peers: one peer
    with a wrong clock moves nobody."""

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=KEPT_OFFSETS)
        self.correction = 0.0

    def now(self) -> float:
        return time.time() + self.correction

    def raw(self, run_time: float) -> float:
        return run_time - self.correction

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))

    def observe(self, offset_s: float) -> None:
        self._offsets.append(offset_s)
        self.correction = statistics.median(self._offsets)


def _lower_this_thread() -> None:
    """Nice 19 for this thread alone. Linux counts priorities per thread; elsewhere it would lower the whole process."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


class BulkThread:
    """Codec and outer step run here, one after another, so that they never hold up the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="bulk", initializer=_lower_this_thread)

    async def __call__(self, work: Callable[[], T], /) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
