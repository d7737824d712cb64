"""Threads of low priority for work that would hold up the event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)

BULK_NICE = 5
"""Niceness that the thread has more than the trainer, unless it is told another. A busy machine hardly serves a nice 19
thread at all.

Source: results/studies/bulk_priority.json."""

LOWEST = 19
"""The niceness beyond which Linux has none."""


def _lower_this_thread(by: int) -> None:
    """Lower the priority of the calling thread.

    A volunteer may have started the daemon at a niceness of its own, and to go below that takes a privilege."""
    # Only Linux has priorities per thread; elsewhere the call would lower the entire process.
    if sys.platform == "linux":
        thread = threading.get_native_id()
        try:
            own = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(own + by, LOWEST))
        except OSError as error:
            _warn_once(error.strerror)


@functools.cache
def _warn_once(reason: str) -> None:
    """A priority is a courtesy: service managers and containers may forbid it, and the work is done without."""
    log.warning("codec and outer step run at the daemon's own priority: the system refused a lower one (%s)", reason)


class LowPriorityThread:
    """One thread that runs the codec and the outer step, one call after another. `nice`: what it has more than its
    process."""

    def __init__(self, nice: int = BULK_NICE) -> None:
        self._pool = ThreadPoolExecutor(1, "bulk", _lower_this_thread, (nice,))

    async def __call__(self, work: Callable[[], T], /) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def start(self, work: Callable[[], T], /) -> Future[T]:
        """Queue `work` and return its future at once."""
        return self._pool.submit(work)

    def close(self) -> None:
        """Drop the queued work. Work that has begun runs to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Start(Protocol):
    """Begins work in a thread of low priority."""

    def __call__(self, work: Callable[[], T], /) -> Future[T]: ...


def at_once(work: Callable[[], T], /) -> Future[T]:
    """Run `work` in the caller's own thread: the `Start` of small work and of virtual time. A full disk is the
    future's error, as it would be in another thread."""
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except OSError as error:
        future.set_exception(error)
    return future


class Offload(Protocol):
    """Runs heavy work off the event loop, at low priority."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


async def inline(work: Callable[[], T], /) -> T:
    """Run `work` in the event loop's own thread: the `Offload` of small work and of virtual time."""
    return work()
