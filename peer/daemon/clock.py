"""Real time, corrected by what Hellos measured and deaf to jumps of the wall clock, and a thread of low priority for
heavy work."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from peer.steady import moment_of, steady_time

T = TypeVar("T")

KEPT_OFFSETS = 9


class WallClock:
    """The `Clock` interface on this machine: the wall clock as it stood when this process started, counted on by a
    clock nobody sets, so that a jump tears no round. The correction is the median of the last offsets to other
    peers: one peer with a wrong clock moves nobody."""

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=KEPT_OFFSETS)
        self.correction = 0.0

    def now(self) -> float:
        return steady_time() + self.correction

    def raw(self, run_time: float) -> float:
        return moment_of(run_time - self.correction)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))

    def forget_offsets(self) -> None:
        """What was measured before a sleep counts no more; the correction stays until something is measured again."""
        self._offsets.clear()

    def observe(self, offset_s: float) -> None:
        self._offsets.append(offset_s)
        self.correction = statistics.median(self._offsets)


BULK_NICE = 5
"""Below the trainer, which the trainer's steps did not notice, and yet served: on two cores with ten times the programs
that fit, 1 ms of a round's work took 1300 ms from when it was due at nice 19, 40 ms at nice 5 and 34 ms at nice 0
(medians, `python -m benchmarks.bulk_priority`)."""


def _lower_this_thread() -> None:
    """To `BULK_NICE`, this thread alone. Linux counts priorities per thread; elsewhere the whole process would sink."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BULK_NICE)


class BulkThread:
    """Codec and outer step run here, one after another, so that they never hold up the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="bulk", initializer=_lower_this_thread)

    async def __call__(self, work: Callable[[], T], /) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def start(self, work: Callable[[], T], /) -> Future[T]:
        """The same without waiting."""
        return self._pool.submit(work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
