"""Heavy work off the event loop, in a thread of low priority."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")

BULK_NICE = 5
"""Below the trainer, which the trainer's steps did not notice, and yet served: on two cores with ten times the programs
that fit, 1 ms of a round's work took 1300 ms from when it was due at nice 19, 40 ms at nice 5 and 34 ms at nice 0
(medians, `python -m benchmarks.bulk_priority`)."""


def _lower_this_thread() -> None:
    """To `BULK_NICE`, this thread alone. Linux counts priorities per thread; elsewhere the whole process would sink."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BULK_NICE)


class LowPriorityThread:
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


class Offload(Protocol):
    """Runs heavy work off the event loop, at low priority."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...
